"""Defines ``AgentsEnv``, the interface of an environment with several agents.

Agents have fixed names and fixed places 0 to A - 1; all per-agent data is passed as lists in this order.
sfactory/env/multi_agent_adapters.py adapts two other interfaces; an env may also derive from ``AgentsEnv`` directly.

An agent may sleep for some steps and wake up again, and its episode may end before those of the others. The episode of
the env ends when the episodes of all its agents have ended.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np

from sfactory.env.conversion import tree_of
from sfactory.errors import EnvError, SFactoryError
from sfactory.spec import EnvSpec


class BadAgents(SFactoryError):
    """A multi-agent env returned inconsistent data about its agents; the text names the agent."""


class Change(NamedTuple):
    """How a step changed the set of acting agents; each field has one entry per agent.

    terminated, truncated: True if the agent's episode ended in this step, even if it slept; terminated wins over
        truncated
    active: True if the agent acts in the next step; False once its episode has ended
    infos: one mapping per agent
    """

    terminated: Sequence[bool]
    truncated: Sequence[bool]
    active: Sequence[bool]
    infos: Sequence[Any]


# Observations and rewards by place, and the Change of acting agents; None if nothing changed.
AgentsStep = tuple[Sequence[Any], Sequence[Any], Change | None]


class AgentsEnv(abc.ABC):
    """An env of A agents, all with the same spaces.

    NOTE [Unequal agents]: agents of different spaces are shown as agents of the same ones: a Dict with an entry for
    each kind of agents, of which an agent fills that of its kind, and of which only its action for that is taken. The
    policy of a kind has only the leaves of its entry (``EnvSpec.part``): it neither sees nor chooses those of others.
    Action masks stand by kind below MASK_KEY, as those of a tree of actions do.

    agents: A names, which never change
    observation_space, action_space: the spaces of one agent
    kinds: by agent, the entry of its own in both spaces; () if agents are equal
    in_turns: True if agents act in turn: one that does not act in the next step waits for its next turn, which is what
        its last one led to, and earns until then; False if it sleeps, which cuts its trajectory
    metadata, render_mode: as in Gymnasium
    """

    agents: tuple[str, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    kinds: tuple[str, ...] = ()
    in_turns: bool = False
    metadata: Mapping[str, Any] = MappingProxyType({})
    render_mode: str | None = None

    @abc.abstractmethod
    def reset(self, *, seed: int | None = None) -> list[Any]:
        """Begin an episode. Returns A observations; None for agents that start asleep."""

    @abc.abstractmethod
    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """Take A actions; actions of inactive agents are ignored.

        For agents that are inactive in the next step, the observation is their last one or None. Inactive agents may
        receive rewards other than 0.
        """

    @abc.abstractmethod
    def render(self) -> Any:
        """Return a frame of the env."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free the resources of the env."""

    @property
    def spec(self) -> EnvSpec:
        """Spaces of one agent and the agents' names; raises EnvError if spaces are not supported."""
        spec = EnvSpec.of_spaces(self.observation_space, self.action_space, self.agents, self.in_turns)
        return dataclasses.replace(spec, kinds=self.kinds)


class AgentsWrapper(AgentsEnv):
    """Shows ``env`` in another form; it is drawn as before, and closed if it can be."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    def render(self) -> Any:
        """See AgentsEnv."""
        return self.env.render()

    def close(self) -> None:
        """See AgentsEnv; an env with another interface need not have it."""
        if hasattr(self.env, "close"):
            self.env.close()


def require_agents(env: AgentsEnv, agents: tuple[str, ...]) -> None:
    """Raise EnvError unless the agents of ``env`` are ``agents``."""
    if env.agents != agents:
        raise EnvError(
            f"an env was made with the agents {list(env.agents)}, and another with {list(agents)}; all copies of an "
            "env must have the same agents"
        )


def blank(space: spaces.Space[Any]) -> Any:
    """Placeholder observation of an inactive agent: zeros, or first choices, in the structure of ``space``."""
    return tree_of(space, _blank_leaf)


def _blank_leaf(leaf: spaces.Space[Any]) -> Any:
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return np.array(leaf.start, leaf.dtype)
    return np.zeros(leaf.shape or (), leaf.dtype)
