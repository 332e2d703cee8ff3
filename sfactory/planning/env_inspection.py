"""Steps an env a thousand times and reports what it is, what it costs, and what is wrong with it.

Unlike env_checker.py it does not stop at the first flaw. It works in a process of its own, where envs may do anything.
"""

from __future__ import annotations

import contextlib
import gc
import io
import mmap
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from sfactory.clock import Deadline
from sfactory.env.factory import EnvFactory
from sfactory.env.vector import SAY_RESETS, UNSAID_RESETS
from sfactory.errors import EnvError, Passing, SFactoryError, named
from sfactory.planning.env_checker import NUM_VECTOR_ENVS
from sfactory.planning.env_findings import Broken, Finding, Inspector
from sfactory.planning.env_probe import Probed, examine, probing
from sfactory.planning.random_play import Play, play_of
from sfactory.process.orphans import OFTEN_S, children_of, name_of
from sfactory.process.spawn import Spawner
from sfactory.process.stack_dump import is_alive
from sfactory.system.operating_system import LINUX

_STEPS_S = 60.0  # no more steps are made once they have taken this long
_SEED_STEPS, _SEED_S = 100, 10.0  # of each of three episodes that are compared
_MOST_BROKEN = 3  # episodes that end by a fault, after which no more are begun
_RESETS = 5  # at least, for their median
_MEMORY_STEPS = 200  # between two looks at the memory
_LEAK_BLOCKS, _LEAK_BYTES = 0.5, 4096  # a step: objects of Python, and bytes
_CLOSE_S = 0.5  # for threads and processes to end after close()
_SHOWN_LINES = 20  # of what an env prints


class At(NamedTuple):
    """The call of the env that begins now ("step 17")."""

    where: str


class Times(NamedTuple):
    """Microseconds of ``number`` calls."""

    number: int
    median: float
    p99: float
    longest: float


@dataclass
class Report:
    """What was found about ``--env=env``.

    kind: what it is. episodes, lengths, returns: under random actions, of whole episodes; returns are sums over agents.
    ranges: the values of each observation. leak_bytes, leak_objects: growth of memory a step, None if not known.
    same_seed: whether a seed with the same actions gives the same episode; other_seed: whether another one gives
    another. threads, children: names of those that run while the env does. probed: what training finds out; None if it
    refuses the env, with its ``refusal``. is_whole: nothing has ended the inspection.
    """

    env: str
    kind: str = ""
    agents: tuple[str, ...] = ()
    steps: int = 0
    episodes: int = 0
    lengths: tuple[int, int] = (0, 0)
    returns: tuple[float, float] = (0.0, 0.0)
    rewards: tuple[float, float] = (0.0, 0.0)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    times: dict[str, Times] = field(default_factory=dict)
    leak_bytes: float | None = None
    leak_objects: float | None = None
    same_seed: bool | None = None
    other_seed: bool | None = None
    threads: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    has_time_limit: bool = False
    findings: tuple[Finding, ...] = ()
    probed: Probed | None = None
    refusal: str = ""
    is_whole: bool = False

    def of_kind(self, kind: str) -> list[Finding]:
        """Findings: violations, warnings or hints."""
        return [finding for finding in self.findings if finding.kind == kind]


def inspect_in_process(spawner: Spawner, factory: EnvFactory, steps: int, seed: int, timeout_s: float) -> Report:
    """``inspect_env`` in a process of its own; that this ends is a finding. timeout_s: of one call of the env.

    Raises EnvError if ``--env`` names nothing that makes an env.
    """
    report, where, refusal = Report(factory.name), "its start", ""
    try:
        with probing(spawner, factory.name, _Inspecting(factory, steps, seed), timeout_s) as received:
            while not report.is_whole:
                answer = received()
                if isinstance(answer, str):
                    refusal = answer
                    raise EnvError(answer)
                report, where = (report, answer.where) if isinstance(answer, At) else (answer, where)
    except EnvError as error:
        if refusal and where == "its start":
            raise
        mend = "remove what ends the process (os._exit, a crash in C) or waits without a limit of time"
        report.findings = (*report.findings, Finding("violation", "process", f"{where}: {error}", mend))
    return report


class _Inspecting(NamedTuple):
    """Work of ``inspect_in_process``."""

    factory: EnvFactory
    steps: int
    seed: int

    def __call__(self, tell: Callable[[Any], None], at_end: contextlib.ExitStack) -> Report:
        return inspect_env(self.factory, self.steps, self.seed, tell)


def inspect_env(
    factory: EnvFactory, steps: int = 1000, seed: int = 0, tell: Callable[[At | Report], None] = lambda answer: None
) -> Report:
    """Make the env of ``factory`` and examine it. tell: gets each call of the env, and the report whenever it grows."""
    report = Report(factory.name)

    def on_call(where: str) -> None:
        if len(inspector.findings) != len(report.findings):
            report.findings = tuple(inspector.findings.values())
            tell(report)
        tell(At(where))

    inspector, printed, before = Inspector(on_call, factory.obs_layout), _Printed(sys.stdout), _Running.now()
    gc.freeze()  # the objects of this process are not looked at again
    try:
        with contextlib.redirect_stdout(printed):
            with contextlib.suppress(Broken):
                _inspect(factory, inspector, report, (steps, seed), before)
            _examine_for_training(factory, inspector, report)
    finally:
        gc.unfreeze()
    if printed.lines:
        mend = "print nothing in steps: each line costs time, and a run prints those of all its envs"
        inspector.add("warning", "prints", f"it prints {printed.lines:,} lines", mend)
    report.times = {name: _times(seconds) for name, seconds in inspector.seconds.items() if seconds}
    least, largest = inspector.rewards
    report.rewards = (least, largest) if least <= largest else (0.0, 0.0)  # none may have been a number
    report.findings, report.is_whole = tuple(inspector.findings.values()), True
    return report


def _inspect(
    factory: EnvFactory, inspector: Inspector, report: Report, extent: tuple[int, int], before: _Running
) -> None:
    """All but the probe of training. extent: steps and seed. Raises Broken if no more can be done."""
    steps, seed = extent
    make = (lambda: factory.vector(NUM_VECTOR_ENVS, seed=0)) if factory.makes_vectors else factory.either
    env = inspector.call("make", make)
    try:
        may_mask = factory.info_action_mask != "off"
        play: Play = _guarded(inspector, lambda: play_of(env, inspector, may_mask))
        report.kind, report.agents, report.has_time_limit = play.kind, play.agents, _has_time_limit(env)
        _make_steps(play, inspector, report, steps, seed)
        for checks in play.checks.values():
            report.ranges |= checks.ranges
        _compare_seeds(play, inspector, report, min(steps, _SEED_STEPS), seed)
    finally:
        during = _Running.now().since(before)
        report.threads, report.children = during.names()
        with contextlib.suppress(Broken):
            inspector.call("close", env.close)
        _find_left_behind(during, inspector)


def _has_time_limit(env: Any) -> bool:
    """Whether a wrapper ends episodes."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return False


def _guarded(inspector: Inspector, work: Callable[[], Any]) -> Any:
    """What ``work`` returns. What code of ours raises for the data of an env becomes a violation, and Broken."""
    try:
        return work()
    except Broken:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, SFactoryError) else f"its data cannot be used: {named(error)}"
        inspector.violation("data", text, subject=text)
        raise Broken(text) from error


def _make_steps(play: Play, inspector: Inspector, report: Report, steps: int, seed: int) -> None:
    """Step through episodes, and look at the memory between them."""
    memory, deadline, length, broken = _Memory(), Deadline(_STEPS_S), 0, 0
    lengths, returns = array("q"), array("d")  # which make no objects that would look like those of the env
    play.seed(seed)
    _guarded(inspector, lambda: play.begin(seed))
    while report.steps < steps and not deadline.passed and broken < _MOST_BROKEN:
        report.steps, length = report.steps + 1, length + 1
        try:
            over = _guarded(inspector, play.step)
            report.episodes += play.ended
            if play.ended and not play.resets_itself:
                lengths.append(length)
                returns.append(play.earned)
                play.earned, length = 0.0, 0
        except Broken:
            over, broken, length = True, broken + 1, 0
        if over:
            _guarded(inspector, play.begin)
        memory.look(report.steps, over or length >= _MEMORY_STEPS)
    if lengths:
        report.lengths, report.returns = (min(lengths), max(lengths)), (min(returns), max(returns))
    deadline = Deadline(_SEED_S)
    while len(inspector.seconds["reset"]) < _RESETS and not deadline.passed and not broken:
        _guarded(inspector, play.begin)
    report.leak_bytes, report.leak_objects = memory.growth()
    _judge_memory(report, inspector)


def _compare_seeds(play: Play, inspector: Inspector, report: Report, steps: int, seed: int) -> None:
    """Whether a seed repeats an episode, and another one gives another, with the same actions."""

    def recorded(reset_seed: int) -> list[Any]:
        play.seed(seed)
        _guarded(inspector, lambda: play.begin(reset_seed))
        record, deadline = [_frozen(play.gave)], Deadline(_SEED_S)
        while len(record) <= steps and not deadline.passed:
            if _guarded(inspector, play.step):
                record.append(_frozen(play.gave))
                _guarded(inspector, play.begin)
            record.append(_frozen(play.gave))
        return record

    if any(finding.code.endswith(".raised") for finding in inspector.findings.values()):
        return
    first, again, other = recorded(seed + 1), recorded(seed + 1), recorded(seed + 2)
    pairs = enumerate(zip(first, again, strict=False))
    differs = next((index for index, (one, two) in pairs if one != two), None)
    report.same_seed, report.other_seed = differs is None, first != other
    if differs is not None:
        what = f"step {differs} gives" if differs else "reset gives"
        text = f"after reset(seed={seed + 1}) twice, with the same actions, {what} something else"
        mend = "begin reset() with super().reset(seed=seed), and draw all random numbers from self.np_random"
        inspector.add("violation", "seed", text, mend)
    elif first == other:
        text = f"reset(seed={seed + 1}) and reset(seed={seed + 2}) give the same episode"
        mend = "if something in the env is random, draw it from self.np_random, which super().reset(seed=seed) seeds"
        inspector.add("hint", "seed.unused", text, mend)


def _frozen(value: Any) -> Any:
    """``value`` as something that can be compared, and does not change."""
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_frozen(entry) for entry in value]
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray | np.generic) else value


class _Memory:
    """Memory of this process after some of the steps."""

    def __init__(self) -> None:
        self._looks: list[tuple[int, int, int]] = []

    def look(self, step: int, is_due: bool) -> None:
        """is_due: an episode has just begun, so that what an episode gathers is gone, or it is a long one."""
        if LINUX and is_due and step - (self._looks[-1][0] if self._looks else 0) >= _MEMORY_STEPS:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self._looks.append((step, pages * mmap.PAGESIZE, sys.getallocatedblocks()))

    def growth(self) -> tuple[float | None, float | None]:
        """By how many bytes and objects it grew at least, a step, from each look to the next; None after few looks."""
        pairs = list(pairwise(self._looks))
        if len(pairs) < 2:
            return None, None
        by = [min((late[kind] - early[kind]) / (late[0] - early[0]) for early, late in pairs) for kind in (1, 2)]
        return max(0.0, by[0]), max(0.0, by[1])


def _judge_memory(report: Report, inspector: Inspector) -> None:
    size, objects = report.leak_bytes, report.leak_objects
    if size is None or objects is None or (size < _LEAK_BYTES and objects < _LEAK_BLOCKS):
        return
    text = f"memory grows by {size:,.0f} bytes and {objects:.1f} objects a step"
    mend = "find the list, dict or cache that grows; over 100 million steps of training it fills the memory"
    inspector.add("warning", "memory", text, mend)


class _Running(NamedTuple):
    """Threads of this process, and processes below it."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @staticmethod
    def now() -> _Running:
        """Those that there are, without the two servers of multiprocessing, which stay."""
        tracker, server = resource_tracker._resource_tracker, forkserver._forkserver
        servers = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
        children = frozenset(pid for pid in _descendants(os.getpid()) - servers if is_alive(pid))
        return _Running(frozenset(threading.enumerate()), children)

    def since(self, before: _Running) -> _Running:
        """Those that were not there before."""
        return _Running(self.threads - before.threads, self.children - before.children)

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of threads and of processes."""
        return tuple(sorted(thread.name for thread in self.threads)), tuple(sorted(map(name_of, self.children)))


def _descendants(pid: int) -> set[int]:
    children = children_of(pid)
    return children.union(*map(_descendants, children))


def _find_left_behind(during: _Running, inspector: Inspector) -> None:
    """What the env has started and close() has not ended."""

    def left() -> _Running:
        there = _Running.now()
        return _Running(during.threads & there.threads, during.children & there.children)

    deadline = Deadline(_CLOSE_S)
    while any(left()) and not deadline.passed:
        time.sleep(OFTEN_S)
    for what, names in zip(("thread", "process"), left().names(), strict=True):
        if names:
            text = f"close() leaves behind the {what} {', '.join(names)}"
            mend = f"end it in close(); each env that training makes starts one {what}"
            inspector.add("warning", f"left.{what}", text, mend)


def _examine_for_training(factory: EnvFactory, inspector: Inspector, report: Report) -> None:
    """Hold a second env to what training demands, and have violations say what it refuses, if they do not yet."""
    inspector.where = "made again"
    try:
        report.probed = examine(factory)
        if report.probed.resets_unsaid:
            inspector.add("warning", "autoreset.unsaid", UNSAID_RESETS, SAY_RESETS)
    except Passing:
        raise
    except BaseException as error:
        report.refusal = str(error) if isinstance(error, SFactoryError) else named(error)
        if not any(finding.kind == "violation" for finding in inspector.findings.values()):
            inspector.add("violation", "train", f"training refuses it: {report.refusal}", "")


def _times(seconds: Sequence[float]) -> Times:
    us = 1e6 * np.asarray(seconds)
    return Times(len(us), *(float(np.quantile(us, share)) for share in (0.5, 0.99, 1.0)))


class _Printed(io.TextIOBase):
    """Counts the lines that are printed, and passes the first ones on."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.lines = stream, 0

    def write(self, text: str) -> int:
        if self.lines < _SHOWN_LINES:
            self._stream.write(text)
        self.lines += text.count("\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
