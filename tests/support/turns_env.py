"""An env with PettingZoo's interface of turns (AEC): agents act in random order, leave early, and earn at any time."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import gymnasium.spaces as spaces
import numpy as np

NAMES = ("ann", "bob", "cat")


class Turn(NamedTuple):
    """A turn of an agent. shown: its observation. earned: from this turn to its next one, or to its end.

    end: how the agent's episode ended then: "", "terminated" or "truncated".
    """

    shown: float
    action: int
    earned: float
    end: str = ""


class Turns:
    """Every turn shows another number. At a tenth of the turns an agent leaves; an episode may end for all.

    turns: by agent, what has happened in its turns.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    possible_agents: ClassVar[list[str]] = list(NAMES)
    render_mode = None

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._shown = 0
        self.turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(5)

    def agent_iter(self) -> None: ...

    def close(self) -> None: ...

    def reset(self, seed: int | None = None, options: object = None) -> None:
        self.agents = [*NAMES]
        self._due = dict.fromkeys(NAMES, 0.0)
        self._open = dict.fromkeys(NAMES, False)
        self._ends = dict.fromkeys(NAMES, "")
        self._next()

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        end, reward = self._ends[agent], self._due[agent]
        if self._open[agent]:
            self.turns[agent][-1] = self.turns[agent][-1]._replace(earned=reward, end=end)
        return np.array([self._shown], np.float32), reward, end == "terminated", end == "truncated", {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self._ends[agent]:
            assert action is None
            self.agents.remove(agent)
        else:
            self.turns[agent].append(Turn(float(self._shown), int(action), 0.0))
            self._open[agent], self._due[agent] = True, 0.0
            for other in self.agents:
                self._due[other] += float(self._rng.integers(-3, 4))
            self._leave()
        if self.agents:
            self._next()

    def _leave(self) -> None:
        """Let agents leave: some one of them, or all, which they learn when they are selected."""
        chance = self._rng.random()
        who = (
            [self.agents[self._rng.integers(len(self.agents))]]
            if chance < 0.1
            else self.agents
            if chance > 0.95
            else []
        )
        for agent in who:
            self._ends[agent] = self._ends[agent] or ("terminated" if self._rng.random() < 0.5 else "truncated")

    def _next(self) -> None:
        over = [agent for agent in self.agents if self._ends[agent]]
        self.agent_selection = (over or self.agents)[self._rng.integers(len(over or self.agents))]
        self._shown += 1
