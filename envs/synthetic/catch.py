"""A game of images that is learned in a minute: catch the ball that falls."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]

_SIDE, _SCALE = 10, 4  # of the board, and pixels of a field


class Catch(gymnasium.Env[Frame, np.int64]):
    """A ball falls from a random column of a board of 10 x 10; the paddle on the last row moves left, stays, or right.

    Observations are grey images of 40 x 40. The only reward comes with the last of 9 steps: 1 if the ball was caught,
    else -1. A random policy gets about -0.6, and 1 is the best mean return.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (_SIDE * _SCALE, _SIDE * _SCALE, 1), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.render_mode = render_mode
        self._row = self._column = self._paddle = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin with the paddle in the middle."""
        super().reset(seed=seed)
        self._row, self._column, self._paddle = 0, int(self.np_random.integers(_SIDE)), _SIDE // 2
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Move the paddle; the ball falls by a field."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), _SIDE - 1)
        self._row += 1
        over = self._row == _SIDE - 1
        reward = 0.0 if not over else 1.0 if self._paddle == self._column else -1.0
        return self._frame(), reward, over, False, {}

    def render(self) -> Any:
        """The frame, in color."""
        return self._frame().repeat(3, axis=2)

    def _frame(self) -> Frame:
        board = np.zeros((_SIDE, _SIDE), np.uint8)
        board[_SIDE - 1, self._paddle] = 128
        board[self._row, self._column] = 255
        return board.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)[:, :, None]
