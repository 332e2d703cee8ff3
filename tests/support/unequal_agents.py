"""An env with PettingZoo's parallel interface whose agents see and do different things."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium.spaces as spaces
import numpy as np

SEEN = {
    "guide": spaces.Dict(goal=spaces.Discrete(3), noise=spaces.Box(-1, 1, (2,))),
    "mover_0": spaces.Box(-1, 1, (5,)),
    "mover_1": spaces.Box(-1, 1, (5,)),
}
DONE = {"guide": spaces.Discrete(3), "mover_0": spaces.Box(-1, 1, (2,)), "mover_1": spaces.Box(-1, 1, (2,))}


class Unequal:
    """A guide, who earns 1 for the goal that it sees, and two movers, who earn the sum of their moves. 8 steps."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self.agents = list(SEEN), list[str]()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return SEEN[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return DONE[agent]

    def reset(self, seed: int | None = None, options: object = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._steps = list(SEEN), 0
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return self._shown(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert all(DONE[agent].contains(action) for agent, action in actions.items())
        self._steps += 1
        over = dict.fromkeys(self.agents, self._steps == 8)
        rewards = {agent: float(actions[agent].sum()) for agent in ("mover_0", "mover_1")}
        rewards["guide"] = float(actions["guide"] == self._goal)
        shown = self._shown()
        if self._steps == 8:
            self.agents = []
        return shown, rewards, over, dict.fromkeys(over, False), {agent: {} for agent in over}

    def close(self) -> None: ...

    def _shown(self) -> dict[str, Any]:
        self._goal = self._rng.integers(3)
        noise = self._rng.uniform(-1, 1, (3, 5)).astype(np.float32)
        guide = {"goal": self._goal, "noise": noise[0, :2]}
        return {"guide": guide, "mover_0": noise[1], "mover_1": noise[2]}


class MaskedUnequal(Unequal):
    """The same with a mask in the infos of the guide, which may never choose 1."""

    infos: ClassVar[dict[str, Any]] = {"guide": {"action_mask": np.array([1, 0, 1], np.int8)}}

    def reset(self, seed: int | None = None, options: object = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return super().reset(seed, options)[0], self.infos

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert actions["guide"] != 1
        return *super().step(actions)[:-1], self.infos
