"""Counting envs of many agents that die, sleep, wake up and are truncated, each by its own script.

Observations contain the env, agent, episode and step, and rewards contain the action (see counting.py), in PettingZoo's
parallel form or in lists. Everything is a pure function of (identity of the env, episode, agent, step), which a checker
recomputes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from .counting import FIELD_LIMIT, HEADER, IDENTITY_LIMIT, SEALS, Obs, Position, encode, mix

AGENT_BITS = 4
MOST_AGENTS = 1 << AGENT_BITS
End = Literal["terminated", "truncated"]


def place_of(identity: int) -> tuple[int, int]:
    """(identity of the env, agent) of the identity that an observation states."""
    return identity >> AGENT_BITS, identity % MOST_AGENTS


@dataclass(frozen=True)
class AgentsRules:
    """What the agents of a counting env do, as pure functions.

    agents: A. max_length: most steps of an episode. all_may_sleep: whether all agents may sleep in a step.
    """

    agents: int = 3
    num_actions: int = 7
    max_length: int = 11
    all_may_sleep: bool = False

    def __post_init__(self) -> None:
        """Refuse rules that make no env."""
        if not 1 <= self.agents <= MOST_AGENTS:
            raise ValueError(f"agents is {self.agents}; it must be in [1, {MOST_AGENTS}]")
        if not 1 <= self.max_length < FIELD_LIMIT:
            raise ValueError(f"max_length is {self.max_length}; it must be in [1, {FIELD_LIMIT})")

    def until(self, identity: int, episode: int, agent: int) -> int:
        """Steps of the env's episode after which that of ``agent`` is over; sometimes the same for all agents."""
        together = mix(identity, episode, 1) % 3 == 0
        return 1 + mix(identity, episode, 0 if together else agent, 2) % self.max_length

    def length(self, identity: int, episode: int) -> int:
        """Steps of the env's episode: all of its agents are over by then."""
        return max(self.until(identity, episode, agent) for agent in range(self.agents))

    def end(self, identity: int, episode: int, agent: int) -> End:
        """How the episode of ``agent`` ends."""
        return "terminated" if mix(identity, episode, agent, 3) & 1 else "truncated"

    def acts(self, identity: int, episode: int, agent: int, step: int) -> bool:
        """Whether ``agent`` takes part in the step after ``step`` steps: it is not over, and awake."""
        if step >= self.until(identity, episode, agent):
            return False
        if self._is_awake(identity, episode, agent, step):
            return True
        if self.all_may_sleep and step:
            return False
        left = [other for other in range(self.agents) if step < self.until(identity, episode, other)]
        return agent == left[0] and not any(self._is_awake(identity, episode, other, step) for other in left)

    def _is_awake(self, identity: int, episode: int, agent: int, step: int) -> bool:
        return mix(identity, episode, agent, step // 2, 4) % 4 != 0

    def shows(self, identity: int, episode: int, agent: int, step: int) -> bool:
        """Whether an ``agent`` that takes no part after ``step`` steps gets an observation."""
        return mix(identity, episode, agent, step, 5) % 8 != 0

    def reward(self, position: Position, action: int) -> float:
        """What an agent earns that acts at ``position``: a hash of it in [0, 100) x num_actions, plus the action."""
        return float(mix(*position, 6) % 100 * self.num_actions + action)

    def idle_reward(self, position: Position) -> float:
        """What an agent earns that takes no part in the step at ``position``."""
        return float(mix(*position, 7) % 5)


class _Play:
    """The env without its interface."""

    def __init__(self, rules: AgentsRules, obs_size: int) -> None:
        self.rules, self._obs_size = rules, obs_size
        self.identity: int | None = None
        self.episode, self.steps = -1, 0

    def begin(self, seed: int | None) -> None:
        """Begin the next episode; the first seed becomes the identity."""
        if self.identity is None:
            if seed is None:
                raise ValueError("the first reset() needs a seed, which becomes the identity of the env")
            self.identity = seed % (IDENTITY_LIMIT >> AGENT_BITS)
        self.episode, self.steps = self.episode + 1, 0

    def acts(self, agent: int) -> bool:
        """Whether ``agent`` takes part in the next step."""
        assert self.identity is not None
        return self.rules.acts(self.identity, self.episode, agent, self.steps)

    def is_over(self, agent: int) -> bool:
        """Whether the episode of ``agent`` is over."""
        assert self.identity is not None
        return self.steps >= self.rules.until(self.identity, self.episode, agent)

    def end(self, agent: int) -> End:
        """How it ends."""
        assert self.identity is not None
        return self.rules.end(self.identity, self.episode, agent)

    def shows(self, agent: int) -> bool:
        """Whether ``agent`` is shown something if it takes no part in the next step."""
        assert self.identity is not None
        return self.rules.shows(self.identity, self.episode, agent, self.steps)

    def position(self, agent: int) -> Position:
        """Where ``agent`` stands."""
        assert self.identity is not None
        return Position((self.identity << AGENT_BITS) | agent, self.episode, self.steps)

    def obs(self, agent: int) -> Obs:
        """What ``agent`` is shown there."""
        return encode(self.position(agent), self._obs_size)

    def step(self, actions: dict[int, Any]) -> list[float]:
        """One step with the actions of the agents that act; returns A rewards."""
        rules = self.rules
        acting = {agent for agent in range(rules.agents) if self.acts(agent)}
        if self.steps >= rules.length(self.position(0).identity >> AGENT_BITS, self.episode):
            raise RuntimeError("step() after the end of an episode")
        if set(actions) != acting:
            raise ValueError(f"actions came of agents {sorted(actions)}, but {sorted(acting)} take part")
        for agent, action in actions.items():
            if not 0 <= int(action) < rules.num_actions:
                raise ValueError(f"action {action!r} of agent {agent} is not in [0, {rules.num_actions})")
        rewards = [
            rules.reward(self.position(agent), int(actions[agent]))
            if agent in acting
            else rules.idle_reward(self.position(agent))
            for agent in range(rules.agents)
        ]
        self.steps += 1
        return rewards


class CountingParallel:
    """A counting env of many agents in PettingZoo's parallel form; sleeping agents are not in ``agents``."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as PettingZoo has it
    render_mode = None

    def __init__(self, agents: int = 3, max_length: int = 11, num_actions: int = 7) -> None:
        rules = AgentsRules(agents, num_actions, max_length)
        self._play = _Play(rules, HEADER + SEALS)
        self._box = gymnasium.spaces.Box(0, FIELD_LIMIT, (HEADER + SEALS,), np.float32)
        self._discrete = gymnasium.spaces.Discrete(num_actions)
        self.possible_agents = [f"counter_{agent}" for agent in range(agents)]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """The same for all."""
        return self._box

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """The same for all."""
        return self._discrete

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Obs], Any]:
        """Begin the next episode."""
        self._play.begin(seed)
        self.agents = self._awake()
        return {name: self._play.obs(self._place(name)) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """One step with the actions of those in ``agents``."""
        play, acted = self._play, self.agents
        over = [play.is_over(agent) for agent in range(play.rules.agents)]
        rewards = play.step({self._place(name): action for name, action in actions.items()})
        self.agents = self._awake()
        shown = {
            name: play.obs(self._place(name)) for name in acted if name in self.agents or play.shows(self._place(name))
        }
        shown |= {name: play.obs(self._place(name)) for name in self.agents}
        ended = [agent for agent in range(play.rules.agents) if play.is_over(agent) and not over[agent]]
        names = self.possible_agents
        return (
            shown,
            {name: rewards[agent] for agent, name in enumerate(names)},
            {names[agent]: play.end(agent) == "terminated" for agent in ended},
            {names[agent]: play.end(agent) == "truncated" for agent in ended},
            {names[agent]: {"true_objective": float(play.steps)} for agent in ended},
        )

    def render(self) -> None:
        """There is nothing to be seen."""

    def close(self) -> None:
        """There is nothing to be freed."""

    def _place(self, name: str) -> int:
        return self.possible_agents.index(name)

    def _awake(self) -> list[str]:
        return [name for agent, name in enumerate(self.possible_agents) if self._play.acts(agent)]


class CountingLists:
    """A counting env of many agents in lists; in some steps all agents may sleep."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env
    render_mode = None
    is_multiagent = True

    def __init__(self, agents: int = 3, max_length: int = 11, num_actions: int = 7) -> None:
        self._play = _Play(AgentsRules(agents, num_actions, max_length, all_may_sleep=True), HEADER + SEALS)
        self.num_agents = agents
        self.observation_space = gymnasium.spaces.Box(0, FIELD_LIMIT, (HEADER + SEALS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(num_actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        """Begin the next episode."""
        self._play.begin(seed)
        return [self._play.obs(agent) for agent in range(self.num_agents)], self._infos()

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], ...]:
        """One step; actions of agents that take no part are ignored."""
        play, everybody = self._play, range(self.num_agents)
        rewards = play.step({agent: actions[agent] for agent in everybody if play.acts(agent)})
        shown = [play.obs(agent) if play.acts(agent) or play.shows(agent) else None for agent in everybody]
        terminated = [play.is_over(agent) and play.end(agent) == "terminated" for agent in everybody]
        truncated = [play.is_over(agent) and play.end(agent) == "truncated" for agent in everybody]
        return shown, rewards, terminated, truncated, self._infos()

    def render(self) -> None:
        """There is nothing to be seen."""

    def close(self) -> None:
        """There is nothing to be freed."""

    def _infos(self) -> list[dict[str, Any]]:
        return [{} if self._play.acts(agent) else {"is_active": False} for agent in range(self.num_agents)]
