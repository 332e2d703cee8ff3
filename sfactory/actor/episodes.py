"""Room: episode statistics of one split. In: rewards and ends of each step. Out: finished episodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class EpisodeTally:
    """Raw returns and lengths of the running episodes of N envs, and those that have finished."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        self._started = [0] * num_envs
        self._tick = 0
        self.finished_returns: list[float] = []
        self.finished_lengths: list[int] = []

    def step(self, rewards: npt.NDArray[np.float64]) -> None:
        """Add one env step's rewards [N] (0 for envs that were not stepped)."""
        self._tick += 1
        self._returns += rewards

    def end(self, env: int) -> None:
        """The episode of ``env`` ended with the step just added."""
        self.finished_returns.append(float(self._returns[env]))
        self.finished_lengths.append(self._tick - self._started[env])
        self._returns[env] = 0.0
        self._started[env] = self._tick

    def start(self, env: int) -> None:
        """``env`` was reset instead of stepped in the tick just added: its new episode starts after it."""
        self._started[env] = self._tick

    def put_back(self, returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]) -> None:
        """Undo the ``take`` that gave these episodes."""
        self.finished_returns[:0] = returns.tolist()
        self.finished_lengths[:0] = lengths.tolist()

    def take(self, limit: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Finished episodes not taken yet, at most ``limit``: returns float64 and lengths int64, in order."""
        returns = np.array(self.finished_returns[:limit], np.float64)
        lengths = np.array(self.finished_lengths[:limit], np.int64)
        del self.finished_returns[:limit]
        del self.finished_lengths[:limit]
        return returns, lengths
