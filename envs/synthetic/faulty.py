"""An env that fails on demand: Bandit episodes, with faults at given steps or resets."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np

from .bandit import Bandit, Obs


class EnvFault(RuntimeError):
    """What a Faulty env raises: the test that ordered it can recognise it by name."""


class Fuse:
    """Counts trips over all processes in the size of a file; lets ``count`` trips through after the first ``skip``.

    Without a path every trip goes through. The count outlives the process that was killed by its own fault.
    """

    def __init__(self, path: str | None, skip: int, count: int) -> None:
        self._path = path
        self._armed = range(skip, skip + count)

    def trip(self) -> bool:
        """Record one trip; True if the fault shall happen."""
        if self._path is None:
            return True
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, b"x")
            # An append is atomic, and leaves this handle's position at the end of its own byte.
            return os.lseek(handle, 0, os.SEEK_CUR) - 1 in self._armed
        finally:
            os.close(handle)


class Faulty(gymnasium.Env[Obs, np.int64]):
    """A Bandit with faults. Counts are per env object and start at 1; 0 means never.

    raise_at, hang_at, gil_hang_at, signal_at: at this ``step`` call and each one after it that passes the fuse, raise
    EnvFault, sleep ``hang_seconds``, wait in C without giving up the interpreter lock, or send itself ``signal_name``.
    nan_reward_at, inf_reward_at, nan_obs_at, inf_obs_at, short_obs_at: the same, giving NaN or infinity, or an
    observation that is too short. raise_in_reset: the same at this ``reset`` call. raise_in_constructor,
    hang_in_constructor: at once. fuse, fuse_skip, fuse_count: see Fuse. step_seconds: cost of an ordinary step.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(
        self,
        *,
        raise_at: int = 0,
        hang_at: int = 0,
        gil_hang_at: int = 0,
        signal_at: int = 0,
        signal_name: str = "SIGKILL",
        nan_reward_at: int = 0,
        inf_reward_at: int = 0,
        nan_obs_at: int = 0,
        inf_obs_at: int = 0,
        short_obs_at: int = 0,
        raise_in_reset: int = 0,
        raise_in_constructor: bool = False,
        hang_in_constructor: bool = False,
        hang_seconds: float = 9999.0,
        step_seconds: float = 0.0,
        fuse: str | None = None,
        fuse_skip: int = 0,
        fuse_count: int = 1,
        length: int = 8,
    ) -> None:
        self._fuse = Fuse(fuse, fuse_skip, fuse_count)
        self._hang_seconds = hang_seconds
        if raise_in_constructor and self._fuse.trip():
            raise EnvFault("the constructor raises, as ordered")
        if hang_in_constructor and self._fuse.trip():
            time.sleep(hang_seconds)
        self._inner = Bandit(num_contexts=4, length=length)
        self.observation_space = self._inner.observation_space
        self.action_space = self._inner.action_space
        self._at = {
            "raise": raise_at,
            "hang": hang_at,
            "gil_hang": gil_hang_at,
            "signal": signal_at,
            "nan_reward": nan_reward_at,
            "inf_reward": inf_reward_at,
            "nan_obs": nan_obs_at,
            "inf_obs": inf_obs_at,
            "short_obs": short_obs_at,
        }
        self._raise_in_reset = raise_in_reset
        self._signal = signal.Signals[signal_name]
        self._step_seconds = step_seconds
        self._steps = 0
        self._resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode, or raise EnvFault if that is ordered."""
        super().reset(seed=seed)
        self._resets += 1
        if 0 < self._raise_in_reset <= self._resets and self._fuse.trip():
            raise EnvFault(f"reset {self._resets} raises, as ordered")
        return self._inner.reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """One step of the Bandit, with the fault that is due."""
        self._steps += 1
        if self._step_seconds:
            time.sleep(self._step_seconds)
        if self._due("raise"):
            raise EnvFault(f"step {self._steps} raises, as ordered")
        if self._due("hang"):
            time.sleep(self._hang_seconds)
        if self._due("gil_hang"):
            # PyDLL keeps the interpreter lock. No handler of a signal runs while a thread waits for a mutex of its own.
            mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
            for _ in range(2):
                libc.pthread_mutex_lock(mutex)
        if self._due("signal"):
            os.kill(os.getpid(), self._signal)
        obs, reward, terminated, truncated, info = self._inner.step(action)
        if self._due("nan_reward"):
            reward = float("nan")
        if self._due("nan_obs"):
            obs = np.full_like(obs, np.nan)
        if self._due("inf_reward"):
            reward = float("inf")
        if self._due("inf_obs"):
            obs = np.full_like(obs, np.inf)
        if self._due("short_obs"):
            obs = obs[1:]
        return obs, float(reward), terminated, truncated, info

    def _due(self, fault: str) -> bool:
        return 0 < self._at[fault] <= self._steps and self._fuse.trip()
