"""Rock, paper, scissors: two agents choose at the same time, ``rounds`` times in an episode, and see nothing.

The winner of a round gets 1 and the loser -1. Whatever an agent prefers loses to another choice, so a policy that only
learns to beat its newest self never rests: the one that cannot be beaten is uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sfactory.env.multi_agent import AgentsEnv, AgentsStep, Change

CHOICES = 3  # 0: rock, 1: paper, 2: scissors; each loses to the next one, and scissors to rock


class RockPaperScissors(AgentsEnv):
    """The env of the module; its observation is always [1.0]."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env
    render_mode = None

    def __init__(self, rounds: int = 10) -> None:
        self.agents = ("player_0", "player_1")
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(CHOICES)
        self._rounds, self._played = rounds, 0
        self._observations = [np.ones(1, np.float32)] * 2

    def reset(self, *, seed: int | None = None) -> list[Any]:
        """Begin an episode."""
        self._played = 0
        return self._observations

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        """Play a round; the last one terminates both agents."""
        self._played += 1
        reward = (0.0, 1.0, -1.0)[(int(actions[0]) - int(actions[1])) % CHOICES]
        change = Change([True] * 2, [False] * 2, [False] * 2, [{}, {}]) if self._played == self._rounds else None
        return self._observations, [reward, -reward], change

    def render(self) -> Any:
        """There is nothing to be seen."""

    def close(self) -> None:
        """There is nothing to be freed."""
