"""Room: what an environment of many agents is to sfactory. In: anybody's env of many. Out: an ``AgentsEnv``.

Its agents have fixed names and places, 0 to A - 1, and all that is told of them comes as lists by place. Two foreign
interfaces are understood (sfactory/env/multi_agent_adapters.py); whoever likes may derive from ``AgentsEnv`` itself.

An agent takes part in a step, or it does not: it may sleep, and wake up again, or its episode may be over while others
play on. The env's own episode is over once those of all its agents are.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np

from sfactory.env.conversion import ObsWriter
from sfactory.errors import EnvError, SFactoryError
from sfactory.spec import EnvSpec


class BadAgents(SFactoryError):
    """An env of many agents told something of them that cannot be; the text names the agent."""


class Change(NamedTuple):
    """What a step changed in who takes part; one entry per agent each.

    terminated, truncated: whose episode ended with this very step, asleep or not; terminated wins where both are set
    active: who takes part in the next step; none of those whose episode is over
    infos: what the env says of each, as mappings
    """

    terminated: Sequence[bool]
    truncated: Sequence[bool]
    active: Sequence[bool]
    infos: Sequence[Any]


# Observations and rewards by place, and what has changed in who takes part; None if nothing has.
AgentsStep = tuple[Sequence[Any], Sequence[Any], Change | None]


class AgentsEnv(abc.ABC):
    """An env of A agents, all with the same spaces.

    agents: their names, A of them, which never change
    observation_space, action_space: of each of them
    metadata, render_mode: as in Gymnasium
    """

    agents: tuple[str, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    metadata: Mapping[str, Any]
    render_mode: str | None

    @abc.abstractmethod
    def reset(self, *, seed: int | None = None) -> list[Any]:
        """Begin an episode. A observations; None of agents that begin it asleep."""

    @abc.abstractmethod
    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """Take A actions; those of agents that take no part are ignored.

        Of agents that take no part in the next step, the last observation that they have is given, or None. Rewards of
        agents that took no part may be other than 0.
        """

    @abc.abstractmethod
    def render(self) -> Any:
        """The frame of the env."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free what the env holds."""

    @property
    def spec(self) -> EnvSpec:
        """What each agent sees and does, and who they are; raises EnvError if spaces are not supported."""
        return EnvSpec.of_spaces(self.observation_space, self.action_space, self.agents)


class _NoAgents(AgentsEnv):
    """Stands where an env was closed and none could be made; it is only closed again."""

    def reset(self, *, seed: int | None = None) -> list[Any]:
        raise NotImplementedError

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        raise NotImplementedError

    def render(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to be freed."""


NO_AGENTS: AgentsEnv = _NoAgents()


def shared_space(what: str, agents: Sequence[str], space_of: Callable[[int], spaces.Space[Any]]) -> spaces.Space[Any]:
    """The one space of all agents, of which ``space_of`` tells by place; raises EnvError if two of them differ."""
    first = space_of(0)
    for place in range(1, len(agents)):
        other = space_of(place)
        if other != first:
            raise EnvError(
                f"agent {agents[0]!r} has the {what} space {first}, and agent {agents[place]!r} has {other}; all "
                "agents of an env must have equal spaces: pad the smaller ones (for PettingZoo supersuit has wrappers "
                "that do)"
            )
    return first


def require_agents(env: AgentsEnv, agents: tuple[str, ...]) -> None:
    """Raise EnvError unless the agents of ``env`` are ``agents``."""
    if env.agents != agents:
        raise EnvError(
            f"an env was made with the agents {list(env.agents)}, and another with {list(agents)}; they must be the "
            "same whenever it is made"
        )


def blank(space: spaces.Space[Any]) -> Any:
    """What stands for the observation of an agent that takes no part: zeros in the structure of ``space``."""
    if isinstance(space, spaces.Dict):
        return {name: blank(child) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(blank(child) for child in space.spaces)
    return np.zeros(space.shape or (), space.dtype)


class AgentsWriter(ObsWriter):
    """An ObsWriter that calls rows by env and agent."""

    def __init__(self, spec: EnvSpec, space: spaces.Space[Any]) -> None:
        super().__init__(spec, space)
        self._agents = spec.agents

    def named(self, row: int) -> str:
        """What errors call ``row``."""
        env, place = divmod(row, len(self._agents))
        return f"env {env}, agent {self._agents[place]!r}"
