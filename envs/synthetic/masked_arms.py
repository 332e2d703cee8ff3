"""A bandit with many arms, few of which are legal at a time: its statistics show whether action masks are kept."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import numpy.typing as npt

Where = Literal["obs", "info"]

CONTEXTS = 10
EPISODE = 10


class MaskedArms(gymnasium.Env[Any, Any]):
    """Of ``arms``, ``legal`` drawn ones may be pulled; reward 1 for the one whose number ends in the context's digit.

    The observation is the context. mask: where the mask of legal arms is: in observation ``action_mask`` beside
    ``context``, or in ``info``. heads: arms are pulled on so many equal bandits at once (MultiDiscrete, and a flat mask
    of all of them); the reward is the mean. An illegal pull earns -1. The statistic ``illegal`` counts them. An episode
    takes EPISODE steps and ends in an observation that allows nothing.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, arms: int = 50, legal: int = 5, mask: Where = "obs", heads: int = 1) -> None:
        self._arms, self._legal, self._mask_in, self._heads = arms, legal, mask, heads
        context = spaces.Discrete(CONTEXTS)
        masks = spaces.MultiBinary(arms * heads)
        self.observation_space: spaces.Space[Any] = (
            spaces.Dict(action_mask=masks, context=context) if mask == "obs" else context
        )
        self.action_space: spaces.Space[Any] = (
            spaces.Discrete(arms) if heads == 1 else spaces.MultiDiscrete([arms] * heads)
        )
        self._mask = np.zeros((heads, arms), np.int8)
        self._context = self._step = self._illegal = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._step = self._illegal = 0
        self._draw()
        return self._shown()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pull an arm of each bandit."""
        pulled = np.atleast_1d(action)
        legal = self._mask[np.arange(self._heads), pulled].astype(bool)
        self._illegal += int((~legal).sum())
        reward = float(np.where(legal, pulled % CONTEXTS == self._context, -1.0).mean())
        self._step += 1
        over = self._step == EPISODE
        self._draw()
        if over:
            self._mask[:] = 0
        obs, info = self._shown()
        if over:
            info["episode_extra_stats"] = {"illegal": self._illegal}
        return obs, reward, over, False, info

    def _draw(self) -> None:
        """The next context, and masks that allow one arm that belongs to it and others that do not."""
        random = self.np_random
        self._context = int(random.integers(CONTEXTS))
        good = np.arange(self._context, self._arms, CONTEXTS)
        others = np.setdiff1d(np.arange(self._arms), good)
        self._mask[:] = 0
        for head in range(self._heads):
            self._mask[head, random.choice(good)] = 1
            self._mask[head, random.choice(others, self._legal - 1, replace=False)] = 1

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        mask: npt.NDArray[np.int8] = self._mask.ravel().copy()
        if self._mask_in == "obs":
            return {"action_mask": mask, "context": self._context}, {}
        return self._context, {"action_mask": mask}
