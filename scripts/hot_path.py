"""Runs the steps of splits alone and records what they call and allocate.

The workers of a run take turns in this process, as in serial mode, over an env whose step costs next to nothing.
"""

from __future__ import annotations

import contextlib
import cProfile
import ctypes
import gc
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

import torch

from sfactory.actor.actor_process import make_actor
from sfactory.actor.setup import ActorSetup, make_splits
from sfactory.config.schema import Config, LearnerConfig, ModelConfig, RunConfig, SamplingConfig
from sfactory.env.factory import EnvFactory
from sfactory.inference.policy_worker import PolicySetup, PolicyWorker
from sfactory.layout import Layout
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.staging import Staging
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.objects import SharedObjects
from sfactory.spec import EnvSpec

Inference = Literal["central", "local"]
SPLITS, ENVS, ROLLOUT, SEED = 2, 128, 32, 1
STEPS_OF_A_DATASET = SPLITS * ROLLOUT  # split steps: a dataset takes one slot of each split
EPISODE = 200  # steps: what the env counts down from needs no integer but those that Python always keeps
MOST_TURNS = 10 * ROLLOUT  # that a dataset may take

# What is looked for, by patterns of the names that ``name_of`` gives.
PICKLING = {
    "`pickle`": r"\b_?pickle\b",
    "`copyreg` and `__reduce__`": r"\bcopyreg\b|\b__reduce",
    "`json` and `marshal`": r"\b_?json\b|\bmarshal\b",
    "`copy.deepcopy`": r"\bcopy:\w*deepcopy",
    "`multiprocessing.reduction`": r"multiprocessing\.reduction",
}
# A lock that is taken by ``with`` shows when it is given back.
LOCKS = r"_thread\.|\bthreading:|multiprocessing\.synchronize|SemLock"
FENCE = r"weights:SharedWeights\._barrier$"
ENCODED, DECODED = r"messages:Codec\.encode$", r"messages:Codec\.decode$"


def hot_config(inference: Inference, envs: int = ENVS) -> Config:
    """Two splits of ``envs`` envs: of one actor, or, with local inference, where an actor has one split, of two."""
    central = inference == "central"
    return Config(
        run=RunConfig(
            env="sfactory_envs.synthetic.costfree:CostFree",
            env_kwargs={"length": EPISODE},
            device="cpu",
            serial_mode=True,
        ),
        sampling=SamplingConfig(
            num_workers=1 if central else SPLITS,
            num_envs_per_worker=SPLITS * envs if central else envs,
            worker_num_splits=SPLITS,
            inference=inference,
            rollout=ROLLOUT,
        ),
        learner=LearnerConfig(batch_size=SPLITS * envs * ROLLOUT, train_in_background_thread=False),
        model=ModelConfig(encoder_mlp_layers=(64, 64)),
    )


class Worker(Protocol):
    """An actor or policy worker that takes turns."""

    def turn(self, timeout: float) -> None:
        """Do what can be done, waiting up to ``timeout`` seconds for what it needs."""


class HotPath:
    """Context in which the workers of ``hot_config`` take turns, and nothing is learned.

    A batcher copies slots into a staging area and frees them; after each dataset weights are published, and messages to
    main are read.
    """

    def __init__(self, inference: Inference, envs: int = ENVS) -> None:
        config = hot_config(inference, envs)
        env = EnvFactory.of(config)()
        spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
        model = ActorCritic(spec, config.model)
        self._config, self._weights = config, FlatState(model).to_host()
        self._layout = layout = Layout.plan(config.sampling, config.learner, inference, model.state_size)
        self._shared = shared = SharedObjects(spec, layout, len(self._weights))
        row = shared.status.row(layout.learner_names[0])
        self._assembler = Batcher(Inbox(0, shared, row), False)
        self._staging = Staging(spec, layout, pin=False)
        self._envs = contextlib.ExitStack()
        self._updates = 0
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._publish()
        shared, config = self._shared, self._config
        for worker, name in enumerate(self._layout.policy_worker_names):
            setup = PolicySetup(config, shared, worker, SEED, 0, "cpu")
            self.workers.append(PolicyWorker(setup, setup.make_policy(), shared.status.row(name)))
        for actor, name in enumerate(self._layout.actor_names):
            actor_setup, row = ActorSetup(config, shared, actor, SEED, 0), shared.status.row(name)
            self.workers.append(make_actor(actor_setup, make_splits(actor_setup, row, self._envs), row))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._envs.close()
        torch.set_num_threads(self._threads)

    def run(self, steps: int) -> None:
        """Let the workers take turns until so many split steps, a multiple of STEPS_OF_A_DATASET, are copied."""
        assert steps % STEPS_OF_A_DATASET == 0
        for _ in range(steps // STEPS_OF_A_DATASET):
            self._fill()
            self._publish()
            self._shared.actors_to_main.get(0)

    def _fill(self) -> None:
        self._staging.clear()
        for _ in range(MOST_TURNS):
            for worker in self.workers:
                worker.turn(0)
            if self._assembler.advance(self._staging, 0):
                return
        raise AssertionError(f"no dataset came within {MOST_TURNS} turns")

    def _publish(self) -> None:
        self._shared.weights[0].publish(self._weights, self._updates)
        self._updates += 1


class Call(NamedTuple):
    """A function that was called: how often, and the seconds it took without those of what it called."""

    name: str
    times: int
    own_s: float


def profiled(work: Callable[[], object]) -> list[Call]:
    """What ``work`` calls, that with the most own time first.

    Functions in Python are always seen, functions in C if Python calls them: what compiled modules call
    among themselves is not.
    """
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        work()
    finally:
        profiler.disable()
    modules = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    calls = [Call(name_of(entry.code, modules), entry.callcount, entry.inlinetime) for entry in profiler.getstats()]
    return sorted(calls, key=lambda call: -call.own_s)


def name_of(code: CodeType | str, modules: Mapping[str | None, str]) -> str:
    """``module:Class.function``, or what Python calls a function in C, without its address."""
    if isinstance(code, str):
        return re.sub(r" at 0x[0-9a-f]+", "", code).strip("<>")
    return f"{modules.get(code.co_filename, code.co_filename)}:{code.co_qualname}"


def called(calls: Sequence[Call], pattern: str) -> int:
    """How often anything was called whose name has the pattern in it."""
    return sum(call.times for call in calls if re.search(pattern, call.name))


class Growth(NamedTuple):
    """What came to stay of so many split steps, during which the garbage collector was off.

    blocks: of Python's allocator. heap_bytes: of the C library's heap, what torch takes included. cyclic: objects that
    the collector found and freed afterwards, and that are therefore not among the blocks.
    """

    steps: int
    cpu_s: float
    blocks: int
    heap_bytes: int
    cyclic: int


def growth(path: HotPath, steps: int) -> Growth:
    """What stays of ``steps`` split steps."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        blocks, heap, begun = sys.getallocatedblocks(), heap_in_use(), time.process_time()
        path.run(steps)
        cpu_s, cyclic = time.process_time() - begun, gc.collect()
        return Growth(steps, cpu_s, sys.getallocatedblocks() - blocks, heap_in_use() - heap, cyclic)
    finally:
        if was_on:
            gc.enable()


class _MallInfo(ctypes.Structure):
    _fields_ = [(f"field_{index}", ctypes.c_size_t) for index in range(10)]


_MALLINFO: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _MALLINFO is not None:
    _MALLINFO.restype = _MallInfo


def heap_in_use() -> int:
    """Bytes that are taken of the C library's heap, mapped ones included; 0 where it does not tell."""
    if _MALLINFO is None:
        return 0
    info = _MALLINFO()
    return int(info.field_4 + info.field_7)  # hblkhd + uordblks


class Traced(NamedTuple):
    """What tracemalloc found to stay of so many split steps, and the lines to which most of it belongs."""

    steps: int
    size: int
    blocks: int
    lines: list[str]


def traced(path: HotPath, *lengths: int) -> list[Traced]:
    """What stays of each of these numbers of split steps, one after the other."""
    tracemalloc.start()
    try:
        path.run(lengths[0])  # what is replaced from now on was traced when it was made
        _snapshot()  # the first one makes what the next ones use again
        snapshots = [_snapshot()]
        for steps in lengths:
            path.run(steps)
            snapshots.append(_snapshot())
    finally:
        tracemalloc.stop()
    lines = [later.compare_to(before, "lineno") for before, later in pairwise(snapshots)]
    return [_stayed(*known) for known in zip(lengths, lines, strict=True)]


def _snapshot() -> tracemalloc.Snapshot:
    gc.collect()
    own = [tracemalloc.Filter(False, file) for file in (tracemalloc.__file__, __file__)]
    return tracemalloc.take_snapshot().filter_traces(own)


def _stayed(steps: int, lines: Sequence[tracemalloc.StatisticDiff]) -> Traced:
    largest = [
        f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} ({line.size_diff:+,} bytes)"
        for line in sorted(lines, key=lambda line: -abs(line.size_diff))
        for frame in line.traceback
        if line.size_diff
    ]
    return Traced(steps, sum(line.size_diff for line in lines), sum(line.count_diff for line in lines), largest[:3])
