"""Envs that go wrong: some are refused before a run starts, with a reason that the user can act on, others later."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from threadpoolctl import threadpool_info

from sfactory.messages import TrajectoryReady
from sfactory.shared.channel import Channel
from sfactory_envs.synthetic.faulty import Fuse
from tests.support.rings import lock_for_ever


class _Still(gymnasium.Env[Any, Any]):
    """An environment in which nothing happens."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


class Exiting(_Still):
    """Calls sys.exit(0) at its step ``exit_at``, as a simulator's launcher may."""

    def __init__(self, exit_at: int) -> None:
        super().__init__(gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._left = exit_at

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left == 0:
            sys.exit(0)
        return super().step(action)


class ChattyInC(_Still):
    """Writes to stdout with C's stdio, which keeps the last lines to itself until it is flushed."""

    def __init__(self) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._puts = ctypes.CDLL(None).puts

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._puts(b"a step was taken in C")
        return super().step(action)


class FailingReset(_Still):
    """Can be made, but not reset."""

    def __init__(self) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        raise RuntimeError("the level file is missing")


def raising(**_: object) -> gymnasium.Env[Any, Any]:
    """A factory that cannot do its work."""
    raise ValueError("the simulator is not licensed")


def leaving() -> gymnasium.Env[Any, Any]:
    """A factory that ends the process it runs in."""
    raise SystemExit("gone away")


def nothing() -> None:
    """A factory that forgets to return."""


def text_observations() -> gymnasium.Env[Any, Any]:
    """An environment whose observations are words."""
    return _Still(gymnasium.spaces.Text(8), gymnasium.spaces.Discrete(2))


def graph_actions() -> gymnasium.Env[Any, Any]:
    """An environment whose actions are sets of indices."""
    numbers = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))
    return _Still(gymnasium.spaces.Box(-1, 1, (2,), np.float32), numbers)


def _raise() -> None:
    raise ConnectionError("the simulator refused the connection")


_FAULTS: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "exit": lambda: sys.exit("the simulator asked to leave"),
    "leave": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(9999),
}


class FirstResets(_Still):
    """Its first reset goes wrong in the process called ``who``, in as many processes of that name as ``times``.

    how: what happens then, see _FAULTS; in the constructor instead if ``in_constructor``. Each process writes what
    befell it to a file of its name in ``folder``, one JSON object a line: the event, its time, the seed or what the
    env can see of GPUs. making_s, reset_s: how long these take.
    """

    def __init__(
        self,
        folder: str,
        who: str = "",
        how: str = "raise",
        times: int = 1,
        in_constructor: bool = False,
        making_s: float = 0.0,
        reset_s: float = 0.0,
    ) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._path = Path(folder) / Path("/proc/self/comm").read_text().strip()
        self._faulty = self._path.name == who
        self._how, self._times, self._reset_s, self._is_fresh = how, times, reset_s, True
        seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "EGL_DEVICE_ID")}
        self._tell("making", **seen)
        time.sleep(making_s)
        if in_constructor:
            self._fail("constructor")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._is_fresh:
            self._is_fresh = False
            time.sleep(self._reset_s)
            self._fail("first reset", seed=seed)
            self._tell("was reset")
        return super().reset(seed=seed)

    def _fail(self, event: str, **more: object) -> None:
        if self._faulty and self._tell(event, **more) <= self._times:
            _FAULTS[self._how]()

    def _tell(self, event: str, **more: object) -> int:
        """Write it down; returns how many processes have had this event."""
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **more}) + "\n")
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return len({line["pid"] for line in lines if line["event"] == event})


class Unclosable(_Still):
    """In actors, its close() raises, or does not come back."""

    def __init__(self, how: str) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._how = how

    def close(self) -> None:
        if Path("/proc/self/comm").read_text().startswith("sf-actor"):
            _FAULTS[self._how]()


class LateLibrary(_Still):
    """Loads a BLAS of its own when it is made, and when it is closed writes how many threads it computes on.

    folder: takes the library, a copy of numpy's, and one file per process.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._folder = Path(folder)
        self._library = self._folder / f"libopenblas-of-{os.getpid()}.so"
        if not self._library.exists():
            own = next(Path(np.__file__).parent.with_name("numpy.libs").glob("libscipy_openblas*"))
            shutil.copy(own, self._library)
        ctypes.CDLL(str(self._library))

    def close(self) -> None:
        threads = [info["num_threads"] for info in threadpool_info() if info["filepath"] == str(self._library)]
        name = Path("/proc/self/comm").read_text().strip()
        (self._folder / name).write_text(json.dumps(threads))


class LocksRing(_Still):
    """Dies once, at step ``at``, with the lock of the ring that ``reader`` reads, as if it was killed within a put."""

    def __init__(self, reader: str, at: int, fuse: str) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._reader, self._left, self._fuse = reader, at, Fuse(fuse, 0, 1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-3)
        self._left -= 1
        if self._left == 0 and self._fuse.trip():
            (channel,) = [
                found for found in gc.get_objects() if isinstance(found, Channel) and found.reader == self._reader
            ]
            lock_for_ever(channel)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class _Brief(_Still):
    """Episodes of 8 steps of a millisecond."""

    def __init__(self) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-3)
        self._steps += 1
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self._steps == 8, False, info


class SlowReset(_Brief):
    """Once, reset number ``slow_reset`` of an env takes ``slow_s`` seconds."""

    def __init__(self, slow_reset: int, slow_s: float, fuse: str) -> None:
        super().__init__()
        self._left, self._slow_s, self._fuse = slow_reset, slow_s, Fuse(fuse, 0, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._left -= 1
        if self._left == 0 and self._fuse.trip():
            time.sleep(self._slow_s)
        return super().reset(seed=seed, options=options)


class Unresettable(_Brief):
    """Once there is the file ``order``, no reset succeeds any more, first resets of fresh envs included."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self._order = Path(order)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._order.exists():
            raise RuntimeError("the level file is gone")
        return super().reset(seed=seed, options=options)


class SpoilsInbox(_Still):
    """Once there is the file ``order``, puts into the ring of the learner what no actor would, once in a run.

    how: "poison", the announcement of a slot that is not there; "flood", an announcement that is harmless, again and
    again, as long as there is room. The file ``order``.done is there from then on.
    """

    def __init__(self, how: str, order: str) -> None:
        super().__init__(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
        self._how, self._order, self._done = how, Path(order), Path(f"{order}.done")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-3)
        if self._order.exists() and not self._done.exists() and Fuse(str(self._done), 0, 1).trip():
            (ring,) = [
                found for found in gc.get_objects() if isinstance(found, Channel) and found.reader == "sf-learner-0"
            ]
            if self._how == "poison":
                ring.put(TrajectoryReady(0, 1_000_000))
            else:
                while ring.try_put(TrajectoryReady(0, 0)):
                    pass
        return super().step(action)
