"""Envs of many agents with a step that costs almost nothing, so that only the trainer is measured.

They ignore actions and return the same objects every time, in PettingZoo's parallel form or in lists. Spaces and
episodes are those of CostFree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from .costfree import CostFree


class CostFreeLists:
    """``agents`` agents, given in lists. The other arguments are those of CostFree."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env
    render_mode = None
    is_multiagent = True

    def __init__(self, agents: int = 4, length: int = 1000, **kwargs: Any) -> None:
        single = CostFree(length=length, **kwargs)
        self.num_agents = agents
        self.observation_space, self.action_space = single.observation_space, single.action_space
        obs, info = single.reset()
        self._observations, self._infos = [obs] * agents, [info] * agents
        self._rewards, self._no, self._yes = [1.0] * agents, [False] * agents, [True] * agents
        self._length = self._left = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        """Begin an episode."""
        self._left = self._length
        return self._observations, self._infos

    def step(self, actions: Sequence[Any]) -> tuple[list[Any], ...]:
        """Count one step; all are truncated after ``length``."""
        self._left -= 1
        truncated = self._no if self._left > 0 else self._yes
        return self._observations, self._rewards, self._no, truncated, self._infos

    def close(self) -> None:
        """There is nothing to be freed."""


class CostFreeParallel:
    """The same in PettingZoo's parallel form."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as PettingZoo has it
    render_mode = None

    def __init__(self, agents: int = 4, length: int = 1000, **kwargs: Any) -> None:
        single = CostFree(length=length, **kwargs)
        self.possible_agents = [f"agent_{agent}" for agent in range(agents)]
        self.agents: list[str] = []
        self._spaces = single.observation_space, single.action_space
        obs, info = single.reset()
        self._observations, self._infos = (
            dict.fromkeys(self.possible_agents, obs),
            dict.fromkeys(self.possible_agents, info),
        )
        self._rewards = dict.fromkeys(self.possible_agents, 1.0)
        self._no, self._yes = dict.fromkeys(self.possible_agents, False), dict.fromkeys(self.possible_agents, True)
        self._length = self._left = length

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """The same for all."""
        return self._spaces[0]

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """The same for all."""
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Begin an episode."""
        self._left = self._length
        self.agents = self.possible_agents
        return self._observations, self._infos

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Count one step; all are truncated after ``length``."""
        self._left -= 1
        if self._left > 0:
            return self._observations, self._rewards, self._no, self._no, self._infos
        self.agents = []
        return self._observations, self._rewards, self._no, self._yes, self._infos

    def close(self) -> None:
        """There is nothing to be freed."""
