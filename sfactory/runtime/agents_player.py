"""Room: whole episodes of an env with many agents, all played by one policy. In: an AgentsEnv, a model. Out: episodes.

As ``Player``, row by row. What is told of an episode is the mean of its agents' returns, as training reports it, and
beside it the team's and each agent's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sfactory.actor.agents_life import AgentsLife
from sfactory.actor.agents_recorder import team_stats
from sfactory.env.adapt import action_reader
from sfactory.env.agents import AgentsEnv, AgentsStep, AgentsWriter, blank
from sfactory.errors import named
from sfactory.runtime.evaluation import EnvFailed, Episode, Player, PlayerLike, Policy, StatsTaker, episodes_of
from sfactory.runtime.screen import Screen
from sfactory.spec import EnvSpec


def player_of(
    env: Any, spec: EnvSpec, policy: Policy, screen: Screen, *, name: str, deterministic: bool = False, repeat: int = 1
) -> PlayerLike:
    """What plays ``env``, whatever number of agents it has."""
    make: Any = AgentsPlayer if isinstance(env, AgentsEnv) else Player
    player: PlayerLike = make(env, spec, policy, screen, name=name, deterministic=deterministic, repeat=repeat)
    return player


class AgentsPlayer:
    """One env of A agents and the policy of all of them, one step after the other, on the CPU."""

    def __init__(
        self,
        env: AgentsEnv,
        spec: EnvSpec,
        policy: Policy,
        screen: Screen,
        *,
        name: str,
        deterministic: bool = False,
        repeat: int = 1,
    ) -> None:
        """As ``Player``."""
        self._env, self._spec, self._policy, self._screen = env, spec, policy, screen
        self._name, self._deterministic, self._repeat = name, deterministic, repeat
        self._writer = AgentsWriter(spec, env.observation_space)
        self._read_actions = action_reader(env.action_space)
        size = spec.num_agents
        self._rows = {key: np.zeros((size, *tensor.shape), tensor.dtype) for key, tensor in spec.obs}
        self._obs = {key: torch.from_numpy(row) for key, row in self._rows.items()}
        self._blank = blank(env.observation_space)
        self._life = AgentsLife(size)
        self._state = policy.fresh_state(size)
        self._stats = StatsTaker(name)

    def episodes(self, count: int, max_steps: int, seed: int) -> Iterator[Episode]:
        """As ``Player.episodes``. An episode is the env's, and over once those of all its agents are."""
        return episodes_of(self._episode, count, max_steps, seed)

    def _episode(self, number: int, seed: int | None, max_steps: int) -> Episode | None:
        if max_steps < 1:
            return None
        observations = self._reset(number, seed)
        self._state = self._policy.fresh_state(self._spec.num_agents)
        self._screen.show(self._env)
        returns = [0.0] * self._spec.num_agents
        infos: list[Any] = []
        for step in range(1, max_steps + 1):
            actions = self._actions(observations)
            for _ in range(self._repeat):
                observations, rewards, change = self._step(actions, number, step)
                self._screen.show(self._env)
                returns = [total + float(reward) for total, reward in zip(returns, rewards, strict=True)]
                if change is None:
                    continue
                stops = self._life.change(change, observations)
                infos += [change.infos[agent] for agent in sorted(stops.terminated + stops.truncated + stops.ended)]
                if stops.over:
                    stats = {**team_stats(self._spec.agents, returns), **self._stats.of(infos)}
                    return Episode(sum(returns) / len(returns), step, stats)
        return None

    def _actions(self, observations: Sequence[Any]) -> list[Any]:
        """One action for each agent. Who shows nothing shows zeros, and remembers what it did before."""
        absent = self._life.absent
        self._life.end_showing(of_the_asleep=True)
        shown = [self._blank if agent in absent else obs for agent, obs in enumerate(observations)]
        self._writer.write(shown, self._rows)
        with torch.inference_mode():
            acted = self._policy.act(self._obs, self._state, self._deterministic)
            looks = torch.tensor([agent not in absent for agent in range(len(shown))]).unsqueeze(-1)
            self._state = torch.where(looks, acted.state, self._state)
        return self._read_actions({key: action.numpy() for key, action in acted.actions.items()})

    def _reset(self, number: int, seed: int | None) -> Sequence[Any]:
        try:
            observations = self._env.reset(seed=seed)
        # Foreign code may raise anything.
        except Exception as error:
            raise EnvFailed(f"{self._name}: reset() of episode {number} raised {named(error)}") from error
        self._life.begin(observations)
        for agent, obs in zip(self._spec.agents, observations, strict=True):
            if obs is not None:
                self._writer.check(obs, f"{self._name}, reset() of episode {number}, agent {agent!r}")
        return observations

    def _step(self, actions: Sequence[Any], number: int, step: int) -> AgentsStep:
        try:
            return self._env.step(actions)
        # Same reason as above.
        except Exception as error:
            raise EnvFailed(f"{self._name}: step {step} of episode {number} raised {named(error)}") from error
