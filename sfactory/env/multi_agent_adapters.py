"""Adapts multi-agent envs with one of PettingZoo's interfaces or with a list interface to ``AgentsEnv``.

The kind of an env is detected from its attributes, so no extra package is needed.

List interface: the env has ``num_agents`` (and optionally ``is_multiagent``) and the spaces of one agent. ``reset``
returns a list of observations and a list of infos; ``step`` takes a list of actions and returns five lists. An info
with ``"is_active": False`` means that the agent does not act in the next step. sfactory resets the env after all its
agents are terminated or truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

from sfactory.config.import_strings import described
from sfactory.env.conversion import tree_of
from sfactory.env.info_masks import NOT_OF_LISTS, InfoMaskAgentsEnv, has_mask_key
from sfactory.env.multi_agent import AgentsEnv, AgentsStep, AgentsWrapper, BadAgents, Change, blank
from sfactory.errors import EnvError
from sfactory.tensor_spec import MASK_KEY

IS_ACTIVE = "is_active"
_INTEGER = (int, np.integer)
_Pick = Callable[[Mapping[Hashable, Any]], tuple[Any, ...]]


def agents_env_of(env: Any, joins_masks: bool = False) -> AgentsEnv | None:
    """Adapt ``env`` to AgentsEnv; None for a single-agent env. Raises EnvError for an unusable multi-agent env.

    joins_masks: action masks in its infos become part of observations, which only PettingZoo's interfaces have.
    """
    if hasattr(env, "possible_agents") and not isinstance(env, AgentsEnv):
        env = InfoMaskAgentsEnv(env) if joins_masks else env
        agents = TurnAgents(env) if acts_in_turns(env) else ParallelAgents(env)
        return agents if agents.are_equal else UnequalAgents(agents)
    is_many = isinstance(env, AgentsEnv) or getattr(env, "is_multiagent", None)
    if is_many is None:
        count = getattr(env, "num_agents", 1)
        is_many = isinstance(count, _INTEGER) and count > 1
    if is_many and joins_masks:
        raise EnvError(f"--info_action_mask=on: {NOT_OF_LISTS}")
    if isinstance(env, AgentsEnv):
        return env
    return ListedAgents(env) if is_many else None


def acts_in_turns(env: Any) -> bool:
    """Whether ``env`` has PettingZoo's interface of agents that act in turn (AEC)."""
    return callable(getattr(env, "last", None)) and callable(getattr(env, "agent_iter", None))


class _AdaptedAgents(AgentsWrapper):
    """An AgentsEnv around ``env``, which has another interface."""

    def __init__(self, env: Any, agents: tuple[str, ...]) -> None:
        super().__init__(env)
        self.agents = agents
        self._size = len(agents)
        self._active = [True] * self._size
        self._over = [False] * self._size
        self._all_act = True

    def _set(self, active: list[bool], over: list[bool]) -> None:
        self._active, self._over = active, over
        self._all_act = False not in active

    def _changed(
        self, terminated: Sequence[Any], truncated: Sequence[Any], awake: Sequence[bool], infos: Sequence[Any]
    ) -> Change | None:
        """Apply the flags of a step, except those of episodes that had ended before; None if nothing changed."""
        was_active, was_over = self._active, self._over
        died = [bool(flag) and not over for flag, over in zip(terminated, was_over, strict=True)]
        cut = [bool(flag) and not (over or dead) for flag, over, dead in zip(truncated, was_over, died, strict=True)]
        over = [any(flags) for flags in zip(was_over, died, cut, strict=True)]
        active = [acts and not ended for acts, ended in zip(awake, over, strict=True)]
        self._set(active, over)
        return None if active == was_active and over == was_over else Change(died, cut, active, infos)


class _NamedAgents(_AdaptedAgents):
    """An env with one of PettingZoo's interfaces."""

    def __init__(self, env: Any) -> None:
        self._keys: tuple[Hashable, ...] = tuple(env.possible_agents)
        super().__init__(env, tuple(map(str, self._keys)))
        if not self._keys:
            raise EnvError("the env's possible_agents is empty; it must name every agent that there may be")
        if len(set(self.agents)) != self._size:
            raise EnvError(
                f"the env's possible_agents names an agent twice: {list(self.agents)}; every agent needs a name of its "
                "own"
            )
        observed, chosen = _spaces(env, "observation"), _spaces(env, "action")
        self.spaces = list(zip(observed, chosen, strict=True))  # by agent
        self.observation_space, self.action_space = self.spaces[0]

    @property
    def are_equal(self) -> bool:
        """Whether all agents have the same spaces."""
        return all(own == self.spaces[0] for own in self.spaces)


class ParallelAgents(_NamedAgents):
    """An env with PettingZoo's parallel interface. Agents listed in its ``agents`` act in the next step."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        # Picks the values of all agents from a mapping. Of one key, itemgetter would return no tuple.
        first, *others = self._keys
        self._pick: _Pick = itemgetter(*self._keys) if others else lambda values: (values[first],)
        self._no_flags = dict.fromkeys(self._keys, False)
        self._zeros = [0.0] * self._size
        self._acting: list[tuple[Hashable, int]] = []
        self._live: list[Hashable] = []  # the env's ``agents`` while nothing changes
        self._live_set: set[Hashable] = set()

    def reset(self, *, seed: int | None = None) -> list[Any]:
        """See AgentsEnv."""
        observations = self.env.reset(seed=seed)[0]
        active = self._in_agents()
        if True not in active:
            raise BadAgents("no agent is in the env's agents after reset()")
        self._set(active, [False] * self._size)
        shown = self._shown(observations, active, "reset()")
        return [obs if takes_part else None for obs, takes_part in zip(shown, active, strict=True)]

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """See AgentsEnv."""
        chosen = {}
        for key, place in self._acting:  # for few agents twice as fast as dict(zip(...))
            chosen[key] = actions[place]
        result = self.env.step(chosen)
        if not self._all_act:
            return self._without_some(result)
        observations, rewards, terminated, truncated, _ = result
        no_flags = self._no_flags
        if len(self.env.agents) != self._size or not (
            # Comparing dicts is faster than iterating over their values.
            (terminated == no_flags or not any(terminated.values()))
            and (truncated == no_flags or not any(truncated.values()))
        ):
            return self._change(result)
        try:
            return self._pick(observations), self._pick(rewards), None
        except KeyError as error:
            raise BadAgents(f"step() gave no observation or no reward of agent {error}, who takes part") from None

    def _without_some(self, result: Any) -> AgentsStep:
        """Handle a step with inactive agents. Fast path: most such steps change nothing."""
        observations, rewards, terminated, truncated, _ = result
        if self.env.agents != self._live or any(terminated.values()) or any(truncated.values()):
            return self._change(result)
        if not observations.keys() >= self._live_set:
            self._in_agents()
            self._shown(observations, self._active, "step()")
        return list(map(observations.get, self._keys)), list(map(rewards.get, self._keys, self._zeros)), None

    def _change(self, result: Any) -> AgentsStep:
        """Handle a step that may change which agents act."""
        observations, rewards, terminated, truncated, infos = result
        awake = self._in_agents()
        for place, agent in enumerate(self.agents):
            if self._over[place] and awake[place]:
                raise BadAgents(f"agent {agent!r} is over, and is among the env's agents all the same; take it out")
        # No agents are left: those without a termination or truncation flag count as truncated.
        empty = True not in awake
        change = self._changed(
            [terminated.get(key) for key in self._keys],
            [(empty or bool(truncated.get(key))) for key in self._keys],
            awake,
            [infos.get(key, {}) for key in self._keys],
        )
        shown = self._shown(observations, self._active, "step()")
        return shown, [rewards.get(key, 0.0) for key in self._keys], change

    def _in_agents(self) -> list[bool]:
        live = set(self.env.agents)
        if unknown := live.difference(self._keys):
            names = ", ".join(sorted(repr(key) for key in unknown))
            raise BadAgents(f"{names} among the env's agents, but not in its possible_agents {list(self.agents)}")
        return [key in live for key in self._keys]

    def _shown(self, observations: Mapping[Hashable, Any], active: Sequence[bool], where: str) -> list[Any]:
        for key, takes_part in zip(self._keys, active, strict=True):
            if takes_part and key not in observations:
                raise BadAgents(f"{where} gave no observation of agent {str(key)!r}, who takes part in the next step")
        return [observations.get(key) for key in self._keys]

    def _set(self, active: list[bool], over: list[bool]) -> None:
        super()._set(active, over)
        self._acting = [(key, place) for place, key in enumerate(self._keys) if active[place]]
        self._live_set = {key for key, _ in self._acting}
        self._live = [key for key in self.env.agents if key in self._live_set]


class TurnAgents(_NamedAgents):
    """An env with PettingZoo's interface of agents that act in turn (AEC). A step is the turn of one agent.

    An agent is paid when its next turn begins, or its episode ends, what it has earned since its last turn.
    """

    in_turns = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._places = {key: place for place, key in enumerate(self._keys)}
        self._turn = 0  # place of the agent that acts in the next step

    def reset(self, *, seed: int | None = None) -> list[Any]:
        """See AgentsEnv."""
        self.env.reset(seed=seed)
        observations, _, terminated, truncated, _ = self._next_turn()
        if True in terminated or True in truncated or not self.env.agents:
            raise BadAgents("after reset() no agent has a turn, or the episode of one is over")
        self._set([place == self._turn for place in range(self._size)], [False] * self._size)
        return observations

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """See AgentsEnv."""
        self.env.step(actions[self._turn])
        observations, rewards, terminated, truncated, infos = self._next_turn()
        if not self.env.agents:  # those without a flag count as truncated, as in ParallelAgents
            truncated = [True] * self._size
        awake = [place == self._turn for place in range(self._size)]
        return observations, rewards, self._changed(terminated, truncated, awake, infos)

    def _next_turn(self) -> tuple[list[Any], list[float], list[bool], list[bool], list[Any]]:
        """What agents see, earn and end with, until one has a turn, or none is left. Ended agents leave the env."""
        observations: list[Any] = [None] * self._size
        rewards, infos = [0.0] * self._size, list[Any]([{}] * self._size)
        terminated, truncated = [False] * self._size, [False] * self._size
        env, places = self.env, self._places
        while env.agents:
            key = env.agent_selection
            if key not in places:
                raise BadAgents(f"agent {key!r} has a turn, and is not in the env's possible_agents {list(places)}")
            self._turn = place = places[key]
            observations[place], rewards[place], terminated[place], truncated[place], infos[place] = env.last()
            if not (terminated[place] or truncated[place]):
                break
            env.step(None)
            if key in env.agents:
                raise BadAgents(f"agent {str(key)!r} is over, and is among the env's agents after step(None)")
        return observations, rewards, terminated, truncated, infos


class ListedAgents(_AdaptedAgents):
    """An env with the list interface; see the module docstring."""

    def __init__(self, env: Any) -> None:
        count = getattr(env, "num_agents", None)
        if not isinstance(count, _INTEGER) or count < 1:
            raise EnvError(
                f"{described(env)} has is_multiagent, but its num_agents is {count!r}; it must be the number of agents"
            )
        super().__init__(env, tuple(f"agent_{place}" for place in range(count)))
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None) -> list[Any]:
        """See AgentsEnv."""
        observations, infos = self.env.reset(seed=seed)
        self._require(len(observations), "observations", "reset()")
        active = self._awake(infos, "reset()")
        self._set(active, [False] * self._size)
        return [obs if active[place] else None for place, obs in enumerate(observations)]

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """See AgentsEnv."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if len(observations) != self._size or len(rewards) != self._size:
            self._require(len(observations), "observations", "step()")
            self._require(len(rewards), "rewards", "step()")
        if self._all_act and not (any(terminated) or any(truncated) or any(infos)):
            return observations, rewards, None
        self._require(len(terminated), "terminated", "step()")
        self._require(len(truncated), "truncated", "step()")
        return observations, rewards, self._changed(terminated, truncated, self._awake(infos, "step()"), infos)

    def _awake(self, infos: Any, where: str) -> list[bool]:
        if not isinstance(infos, Sequence):
            raise BadAgents(f"{where} gave {described(infos)} as infos; it must be a list of {self._size} dicts")
        self._require(len(infos), "infos", where)
        return [bool(info.get(IS_ACTIVE, True)) for info in infos]

    def _require(self, count: int, what: str, where: str) -> None:
        if count != self._size:
            raise BadAgents(f"{where} gave {count} {what} for {self._size} agents")


class UnequalAgents(AgentsWrapper):
    """Shows agents of different spaces as NOTE [Unequal agents] says. A kind has the name of its first agent."""

    def __init__(self, env: _NamedAgents) -> None:
        """Raises EnvError if a kind has the name of the masks."""
        super().__init__(env)
        self.agents, self.in_turns = env.agents, env.in_turns
        self.kinds = tuple(self.agents[env.spaces.index(own)] for own in env.spaces)
        own = dict(zip(self.kinds, env.spaces, strict=True))
        self.action_space = spaces.Dict({kind: chosen for kind, (_, chosen) in own.items()})
        seen, masks = dict[str, spaces.Space[Any]](), dict[str, spaces.Space[Any]]()
        for kind, (observed, _) in own.items():
            if has_mask_key(observed):
                masks[kind] = observed.spaces[MASK_KEY]
                observed = spaces.Dict({key: leaf for key, leaf in observed.spaces.items() if key != MASK_KEY})
            seen[kind] = observed
        if MASK_KEY in seen:
            raise EnvError(f"an agent is called {MASK_KEY!r}, which is the name of action masks: give it another one")
        self.observation_space = spaces.Dict({**seen, MASK_KEY: spaces.Dict(masks)} if masks else seen)
        self._blank = blank(self.observation_space)
        if masks:
            all_legal = tree_of(spaces.Dict(masks), lambda mask: np.ones(mask.shape or (), mask.dtype))
            self._blank[MASK_KEY] = all_legal
        self._masked = frozenset(masks)

    def reset(self, *, seed: int | None = None) -> list[Any]:
        """See AgentsEnv."""
        return self._shown(self.env.reset(seed=seed))

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """See AgentsEnv."""
        chosen = [action[kind] for action, kind in zip(actions, self.kinds, strict=True)]
        observations, rewards, change = self.env.step(chosen)
        return self._shown(observations), rewards, change

    def _shown(self, observations: Sequence[Any]) -> list[Any]:
        shown: list[Any] = []
        for kind, obs in zip(self.kinds, observations, strict=True):
            if obs is None:
                shown.append(None)
            elif kind in self._masked:
                masks = {**self._blank[MASK_KEY], kind: obs[MASK_KEY]}
                shown.append({**self._blank, kind: obs, MASK_KEY: masks})
            else:
                shown.append({**self._blank, kind: obs})
        return shown


def _spaces(env: Any, what: str) -> list[spaces.Space[Any]]:
    """The observation or action spaces of all agents."""
    space_of: Callable[[Hashable], Any] | None = getattr(env, f"{what}_space", None)
    if not callable(space_of):
        raise EnvError(f"{described(env)} has possible_agents, but no {what}_space(agent)")
    return [space_of(agent) for agent in env.possible_agents]
