"""An environment of your own: replace it by yours."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Catch(gymnasium.Env):
    """A ball falls down a grid, and a paddle in the last row must be below it when it lands.

    Observation: [rows, columns] float32, 1 where the ball and the paddle are. Action: left, stay, right. The reward, 1
    or -1, comes at the end.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, rows=10, columns=5, render_mode=None):
        self.observation_space = spaces.Box(0.0, 1.0, (rows, columns), np.float32)
        self.action_space = spaces.Discrete(3)
        self.render_mode = render_mode
        self._rows, self._columns = rows, columns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._row = 0
        self._ball, self._paddle = self.np_random.integers(self._columns, size=2)
        return self._grid(), {}

    def step(self, action):
        self._paddle = np.clip(self._paddle + action - 1, 0, self._columns - 1)
        self._row += 1
        landed = self._row == self._rows - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if landed else 0.0
        return self._grid(), reward, landed, False, {}

    def render(self):
        grid = np.kron(self._grid(), np.ones((32, 32)))
        return np.repeat((255 * grid).astype(np.uint8)[..., None], 3, axis=2)

    def _grid(self):
        grid = np.zeros((self._rows, self._columns), np.float32)
        grid[self._row, self._ball] = grid[-1, self._paddle] = 1.0
        return grid
