"""Envs for whole runs: with known returns, with faults, and with reports of what their process has; policy mappings."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from threadpoolctl import threadpool_info

from sfactory.messages import TrajectoryReady
from sfactory.shared.channel import Channel
from sfactory.shared.objects import SharedObjects
from sfactory_envs.synthetic.faulty import Fuse
from tests.support.rings import lock_for_ever

LOW_RETURN, HIGH_RETURN = 1.0, 5.0
STEPS = 4  # of an episode
Step = tuple[Any, float, bool, bool, dict[str, Any]]


def process_name() -> str:
    """The name of this process, sf-actor-0 for example."""
    return Path("/proc/self/comm").read_text().strip()


class Seesaw(gymnasium.Env[Any, Any]):
    """Returns are LOW_RETURN and HIGH_RETURN in turns, whatever is done, and ``score`` is 1000 times as much."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    _episode, _step = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._episode, self._step = self._episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Step:
        self._step += 1
        if self._step < STEPS:
            return self._obs(), 0.0, False, False, {}
        value = HIGH_RETURN if self._episode % 2 else LOW_RETURN
        return self._obs(), value, True, False, {"episode_extra_stats": {"score": 1000.0 * value}}

    def _obs(self) -> Any:
        return np.array([self._step / STEPS], np.float32)


class Fading(Seesaw):
    """Each episode returns less than the one before: the policy that plays the first ones is the best."""

    def step(self, action: Any) -> Step:
        obs, _, over, truncated, info = super().step(action)
        return obs, -float(self._episode) if over else 0.0, over, truncated, info


class Meddling(Seesaw):
    """Sets what belongs to the whole process: modes of torch, warnings, errors of numpy, the current directory."""

    def __init__(self) -> None:
        warnings.simplefilter("error")
        self._left_on = torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)
        for mode in self._left_on:
            mode.__enter__()
        self._meddle()

    def step(self, action: Any) -> Step:
        self._meddle()
        return super().step(action)

    def _meddle(self) -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        torch.set_default_device("meta")
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        np.seterr(all="raise")
        os.chdir("/")


class Unhurried(Seesaw):
    """A step takes a millisecond, so that main sees a run of some thousand steps in progress."""

    def step(self, action: Any) -> Step:
        time.sleep(1e-3)
        return super().step(action)


class Reporting(Seesaw):
    """Appends what its process has, as one JSON object a line, to a file in ``folder`` called like the process.

    It does so at its first step: {"threads": number by path of each native library, of which ``library`` is loaded
    first, "drawn": numbers of the generators of Python, numpy and torch}.
    """

    def __init__(self, folder: str, library: str | None = None) -> None:
        if library is not None:
            ctypes.CDLL(library)
        self._path: Path | None = Path(folder) / process_name()

    def step(self, action: Any) -> Step:
        if self._path is not None:
            threads = {str(info["filepath"]): int(info["num_threads"]) for info in threadpool_info()}
            drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
            with self._path.open("a") as file:
                file.write(json.dumps({"threads": threads, "drawn": drawn}) + "\n")
            self._path = None
        return super().step(action)


class HangsInActor1(Seesaw):
    """Its first step never ends in the process sf-actor-1."""

    def step(self, action: Any) -> Step:
        if process_name() == "sf-actor-1":
            time.sleep(9999.0)
        return super().step(action)


class Exiting(Seesaw):
    """Calls sys.exit(0) in its 200th step, as a simulator's launcher may."""

    _left = 200

    def step(self, action: Any) -> Step:
        self._left -= 1
        if self._left == 0:
            sys.exit(0)
        return super().step(action)


class FailsLate(Seesaw):
    """A fault ends every episode, in step ``at``; how: see below. In the process that checks envs, none does."""

    def __init__(self, how: str, at: int) -> None:
        self._how, self._at = how, at
        self._is_checked = process_name() == "sf-probe"

    def step(self, action: Any) -> Step:
        self._step += 1
        how = self._how if self._step >= self._at and not self._is_checked else ""
        if how == "raise":
            raise ConnectionError("the simulator refused the connection")
        shown = {"nan": np.full(1, np.nan), "shape": np.zeros(3), "dtype": np.zeros(1, complex)}
        return shown.get(how, np.zeros(1, np.float32)), np.inf if how == "reward" else 0.0, False, False, {}


def _ring_of(reader: str) -> Channel[Any]:
    (shared,) = [found for found in gc.get_objects() if isinstance(found, SharedObjects)]
    rings: list[Channel[Any]] = [*shared.to_policies, *shared.to_learners, shared.actors_to_main]
    (ring,) = [ring for ring in rings if ring.reader == reader]
    return ring


class LocksRing(Unhurried):
    """Dies once, in step ``at``, with the lock of the ring that ``reader`` reads, as if it was killed within a put."""

    def __init__(self, reader: str, at: int, fuse: str) -> None:
        self._reader, self._left, self._fuse = reader, at, Fuse(fuse, 0, 1)

    def step(self, action: Any) -> Step:
        self._left -= 1
        if self._left == 0 and self._fuse.trip():
            lock_for_ever(_ring_of(self._reader))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class SpoilsInbox(Unhurried):
    """Once the file ``order`` exists, spoils the ring of the learner, once in a run, and creates ``order``.done.

    how: "poison", the announcement of a slot that does not exist; "flood", announcements until the ring is full.
    """

    def __init__(self, how: str, order: str) -> None:
        self._how, self._order, self._done = how, Path(order), Path(f"{order}.done")

    def step(self, action: Any) -> Step:
        if self._order.exists() and not self._done.exists() and Fuse(str(self._done), 0, 1).trip():
            ring = _ring_of("sf-learner-0")
            if self._how == "poison":
                ring.put(TrajectoryReady(0, 1_000_000))
            else:
                while ring.try_put(TrajectoryReady(0, 0)):
                    pass
        return super().step(action)


class ChattyInC(Seesaw):
    """Writes to stdout with C's stdio, which keeps the last lines to itself until it is flushed."""

    def __init__(self) -> None:
        self._puts = ctypes.CDLL(None).puts

    def step(self, action: Any) -> Step:
        self._puts(b"a step was taken in C")
        return super().step(action)


class SlowReset(Unhurried):
    """Once, reset number ``slow_reset`` of an env takes ``slow_s`` seconds."""

    def __init__(self, slow_reset: int, slow_s: float, fuse: str) -> None:
        self._left, self._slow_s, self._fuse = slow_reset, slow_s, Fuse(fuse, 0, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._left -= 1
        if self._left == 0 and self._fuse.trip():
            time.sleep(self._slow_s)
        return super().reset(seed=seed, options=options)


class Unresettable(Unhurried):
    """Once there is the file ``order``, no reset succeeds any more, first resets of fresh envs included."""

    def __init__(self, order: str) -> None:
        self._order = Path(order)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._order.exists():
            raise RuntimeError("the level file is gone")
        return super().reset(seed=seed, options=options)


def _raise() -> None:
    raise ConnectionError("the simulator refused the connection")


_FAULTS: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "exit": lambda: sys.exit("the simulator asked to leave"),
    "leave": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(9999),
}


class Unclosable(Seesaw):
    """In actors, its close() raises, or does not return."""

    def __init__(self, how: str) -> None:
        self._how = how

    def close(self) -> None:
        if process_name().startswith("sf-actor"):
            _FAULTS[self._how]()


class StartsProcesses(Seesaw):
    """Starts processes, and ends none: programs that sleep, one with a session of its own, a daemon, a forked child.

    Two pools of one process each, of both kinds that Python has, work in every step, which takes ten milliseconds.

    The daemon ignores SIGTERM, and programs inherit all files that are inheritable, as those do that C starts.
    Their pids are lines of a file in ``folder`` that is called like the pid of its own process. Once there is a file
    ``folder``/NAME, a step in the process of that name hangs. deaf: closes all files of its process in its 20th step.
    """

    def __init__(self, folder: str, deaf: bool = False) -> None:
        self._hangs, self._deaf, self._left = Path(folder) / process_name(), deaf, 20
        inherit: dict[str, Any] = {"close_fds": False}
        programs = [subprocess.Popen(["sleep", "9999"], start_new_session=own, **inherit) for own in (False, True)]
        command = ["sh", "-c", "trap '' TERM; setsid sleep 9999 >/dev/null & echo $!"]
        daemon = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **inherit)
        forked = os.fork()
        if forked == 0:
            Path("/proc/self/comm").write_text("forked")
            time.sleep(9999)
        fork = multiprocessing.get_context("fork")
        self._pool, self._executor = fork.Pool(1), ProcessPoolExecutor(1, fork)
        self._work()
        workers = [self._pool._pool[0].pid, *self._executor._processes]  # type: ignore[attr-defined]
        with (Path(folder) / str(os.getpid())).open("a") as file:
            pids = forked, *(program.pid for program in programs), daemon.stdout.strip(), *workers
            file.writelines(f"{pid}\n" for pid in pids)

    def _work(self) -> None:
        assert self._pool.apply(abs, (-1,)) == self._executor.submit(abs, -1).result() == 1

    def step(self, action: Any) -> Step:
        self._left -= 1
        if self._deaf and self._left == 0:
            os.closerange(3, 4096)
        time.sleep(10e-3)
        if not self._deaf:  # it would close what connects it with its pools
            self._work()
        if self._hangs.exists():
            time.sleep(9999)
        return super().step(action)


class FirstResets(Seesaw):
    """Its first reset or constructor fails in the first ``times`` processes that are called ``process``.

    how: see _FAULTS. making_s, reset_s: how long these take, the reset in other processes. Each process appends its
    events as JSON to a file of its name in ``folder``: the event, its time, the seed or what the env can see of GPUs.
    """

    def __init__(
        self,
        folder: str,
        process: str = "",
        how: str = "raise",
        times: int = 1,
        in_constructor: bool = False,
        making_s: float = 0.0,
        reset_s: float = 0.0,
    ) -> None:
        self._path = Path(folder) / process_name()
        self._faulty = self._path.name == process
        self._how, self._times, self._reset_s = how, times, reset_s
        self._log("making", **{name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "EGL_DEVICE_ID")})
        time.sleep(making_s)
        if in_constructor:
            self._fail("constructor")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._episode < 0:
            time.sleep(0.0 if self._faulty else self._reset_s)
            self._fail("first reset", seed=seed)
            self._log("was reset")
        return super().reset(seed=seed)

    def _fail(self, event: str, **more: object) -> None:
        if self._faulty and self._log(event, **more) <= self._times:
            _FAULTS[self._how]()

    def _log(self, event: str, **more: object) -> int:
        """Write it down; returns how many processes have had this event."""
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **more}) + "\n")
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return len({line["pid"] for line in lines if line["event"] == event})


def mostly_the_first(agent: str, episode: int, env: int) -> int:
    """Policy 1 in every 20th episode of one env, policy 0 otherwise."""
    return int(env == 0 and episode % 20 == 19)


def soon_without_the_third(agent: str, episode: int, env: int) -> int:
    """Policy 2 plays the first episodes of every env, and never again."""
    return env % 3 if episode < 5 else env % 2
