"""Shares and describes the status of every process, and shares the reason why a child failed.

Each process writes only its own row and text. Unlike a queue, shared memory needs no lock and survives the writer.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sfactory.clock import now
from sfactory.layout import ACTORS
from sfactory.shared.memory import SharedArrays, SharedTexts
from sfactory.shared.slots import SlotTable
from sfactory.spec import TensorSpec


class State(IntEnum):
    """The state of a process."""

    NEW = 0  # not started
    STARTING = 1  # importing; an actor: creating its envs
    RESETTING = 2  # an actor during the first reset of its envs and the optional random steps after it
    RUNNING = 3
    DONE = 4  # a learner that has reached its limit


_FLOATS = (
    *("heartbeat", "busy_since", "watched_since", "busy_s", "waiting_s", "first_step_at", "train_seconds"),
    "counted_at",  # learner: its train_seconds when its run_env_steps last grew
    "loop_since",  # worker: when it entered its loop; 0 before
    # When it started to use a ring: a worker for a write; a learner's thread other than the training one for any use.
    "in_ring_since",
    # Learner: longest time of a minibatch, time of the last save; since when it has been saving, 0 if it is not.
    *("update_s", "save_s", "saving_since"),
)
_INTS = (
    *("pid", "state", "env_steps", "agent_steps", "updates", "saved_env_steps"),
    "ended",  # 1 + its exit code; 0 before, and if it was killed or crashed
    "run_env_steps",  # learner: its env steps that no other learner counts
    "resetting",  # actor: 1 while an env is reset or recreated, which has its own time limit
    # Learner, in this session: datasets trained on, valid steps replayed, valid steps dropped before training,
    # publications of weights; over all sessions: updates of the target network.
    *("datasets", "replayed_steps", "dropped_steps", "publications", "target_updates"),
    # Learner: valid steps of the slots that it has received. Replaced process: steps that were lost with it, and the
    # number of replacements.
    *("received_steps", "discarded_steps", "restarts"),
    # Actor, in this session: envs recreated after an exception, steps with invalid data.
    *("env_restarts", "bad_env_data"),
    # Actor, in this session: episodes, of each agent, that ended as the env wants; of each env, that a fault ended.
    *("finished_episodes", "lost_episodes"),
)
_HISTOGRAMS = ("depths", "ready")
MAX_DEPTH = 255  # larger values count as this


class Times(NamedTuple):
    """Busy and waiting seconds of a process; their sum is the time since its Stopwatch was created."""

    busy: float
    waiting: float


class StatusRow:
    """The row of one process. Only that process writes it, and main after its death.

    All times are monotonic seconds, comparable between processes.
    """

    def __init__(self, board: SharedArrays, row: int) -> None:
        # Memoryviews read and write single numbers twice as fast as arrays, and reject values of another type.
        self._cells: dict[str, Any] = {name: board[name].data for name in (*_FLOATS, *_INTS)}
        self._depths, self._ready = (board[name][row] for name in _HISTOGRAMS)
        self._row = row

    def get(self, name: str) -> float:
        return float(self._cells[name][self._row])

    def set(self, name: str, value: float) -> None:
        self._cells[name][self._row] = value

    def add(self, name: str, value: float) -> None:
        self._cells[name][self._row] += value

    def count_env_steps(self, steps: int) -> None:
        """Add valid env steps; the first call sets ``first_step_at``, the start of training time."""
        if not self._cells["first_step_at"][self._row]:
            self._cells["first_step_at"][self._row] = now()
        self._cells["env_steps"][self._row] += steps

    def count_depth(self, messages: int) -> None:
        """Count the messages found in the ring; 0 is not counted."""
        if messages:
            self._depths[min(messages, MAX_DEPTH)] += 1

    def count_ready(self, datasets: int) -> None:
        """Count the number of datasets ready when the learner wanted one; with 0 it has to wait."""
        self._ready[min(datasets, MAX_DEPTH)] += 1

    def start(self) -> None:
        """Write pid, state and heartbeat at the start of a process."""
        self.set("pid", os.getpid())
        self.set("state", State.STARTING)
        self.beat()

    def beat(self) -> None:
        self._cells["heartbeat"][self._row] = now()

    def begin_work(self) -> None:
        """Mark the start of work that may take long, such as creating an env."""
        self._cells["busy_since"][self._row] = self._cells["heartbeat"][self._row] = now()

    def begin_reset(self, resetting: bool) -> None:
        """Mark the start or end of one env reset in an actor; its time limit counts from here."""
        self._cells["busy_since"][self._row] = now()
        self._cells["resetting"][self._row] = resetting

    def enter_ring(self) -> None:
        """Mark the start of writing to rings, which is slow only if the lock of a ring died with a process."""
        self._cells["in_ring_since"][self._row] = now()

    def leave_ring(self) -> None:
        self._cells["in_ring_since"][self._row] = 0.0

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """A block that saves, for which main waits when the run is stopped; a block inside belongs to it."""
        outer, since = self.get("saving_since"), now()
        self.set("saving_since", outer or since)
        try:
            yield
        finally:
            self.set("save_s", now() - since)
            self.set("saving_since", outer)

    def times(self, at: float) -> Times:
        """Busy and waiting time up to ``at`` (the current time), including the current activity.

        The current activity is read first, and lasts for the time that the counters do not cover. So an activity that
        ends while this reads is counted once, under its own kind.
        """
        is_busy, since = self.get("busy_since") > 0, self.get("watched_since")
        busy, waiting = self.get("busy_s"), self.get("waiting_s")
        if not since:
            return Times(0.0, 0.0)
        under_way = max(0.0, at - since - busy - waiting)
        return Times(busy + under_way, waiting) if is_busy else Times(busy, waiting + under_way)

    def clear(self) -> None:
        """Reset the row before a replacement starts; called by main after the process is dead."""
        for name in ("pid", "state", "ended", "heartbeat", "busy_since", "loop_since", "in_ring_since", "resetting"):
            self.set(name, 0)


class Stopwatch:
    """Splits the time since its creation into busy and waiting, and updates the heartbeat.

    The process calls it before and after each wait for other processes. All other time is busy, including time without
    a free core. For one thread only: in a learner with several threads, the training thread (see LearnerWorker).
    """

    def __init__(self, row: StatusRow) -> None:
        self._row = row
        self._mark = now()
        row.set("watched_since", self._mark - row.get("busy_s") - row.get("waiting_s"))
        row.set("busy_since", self._mark)
        row.set("heartbeat", self._mark)
        row.set("loop_since", self._mark)

    def before_wait(self) -> None:
        moment = now()
        self._row.add("busy_s", moment - self._mark)
        self._row.set("busy_since", 0.0)
        self._mark = moment

    def after_wait(self) -> None:
        moment = now()
        self._row.add("waiting_s", moment - self._mark)
        self._row.set("busy_since", moment)
        self._row.set("heartbeat", moment)
        self._mark = moment

    def lap(self) -> None:
        """Mark the start of a new piece of work without a wait, so that long work does not look like a hang."""
        moment = now()
        self._row.add("busy_s", moment - self._mark)
        self._row.set("busy_since", moment)
        self._row.set("heartbeat", moment)
        self._mark = moment


class StatusBoard:
    """One row per process, in the order of ``names``. A ``prefix`` selects the processes with names that start so."""

    def __init__(self, names: list[str]) -> None:
        self.names = list(names)
        rows = (len(names),)
        fields = {name: TensorSpec(rows, "float64") for name in _FLOATS}
        fields |= {name: TensorSpec(rows, "int64") for name in _INTS}
        fields |= {name: TensorSpec((*rows, MAX_DEPTH + 1), "int64") for name in _HISTOGRAMS}
        self._shared = SharedArrays("status", fields)

    def row(self, name: str) -> StatusRow:
        return StatusRow(self._shared, self.names.index(name))

    def total(self, field: str, prefix: str) -> float:
        return sum(self.values(field, prefix), 0.0)

    def values(self, field: str, prefix: str) -> list[float]:
        return [float(value) for value in self._shared[field][self._rows(prefix)]]

    def times(self, prefix: str, at: float) -> list[Times]:
        return [StatusRow(self._shared, row).times(at) for row in self._rows(prefix)]

    def histogram(self, field: str, prefix: str) -> npt.NDArray[np.int64]:
        """[MAX_DEPTH + 1]: how often processes found n messages ("depths"), or learners n datasets ready ("ready")."""
        total: npt.NDArray[np.int64] = self._shared[field][self._rows(prefix)].sum(axis=0)
        return total

    def _rows(self, prefix: str) -> list[int]:
        return [row for row, name in enumerate(self.names) if name.startswith(prefix)]


def describe_processes(status: StatusBoard, table: SlotTable, waiting: Mapping[str, int] | None = None) -> str:
    """One line per process: its state, its activity and for how long; for an actor also its slots by state.

    ``waiting``: unread messages per process; not shown if None. The last line names the process with the newest
    heartbeat. Reads only shared counters, so it works even if all processes are stuck.
    """
    lines = [_line(status, name, table, (waiting or {}).get(name)) for name in status.names]
    heard = {name: status.row(name).get("heartbeat") for name in status.names}
    last = max(heard, key=lambda name: heard[name])
    return "\n".join([*lines, f"  heard of last: {last}, {_ago(heard[last])}"])


def _line(status: StatusBoard, name: str, table: SlotTable, waiting: int | None) -> str:
    row = status.row(name)
    state, since = State(int(row.get("state"))), row.get("busy_since")
    doing = f"busy for {max(0.0, now() - since):.1f} s" if since else "waits"
    text = f"  {name}: {state.name.lower()}, {doing}, heard of {_ago(row.get('heartbeat'))}"
    if row.get("pid"):
        text += f", pid {int(row.get('pid'))}"
    if waiting is not None:
        text += f", {waiting} messages wait for it"
    if name.startswith(ACTORS):
        actor = [each for each in status.names if each.startswith(ACTORS)].index(name)
        states = Counter(table.state(slot).name.lower() for slot in table.slots_of(actor))
        slots = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        text += f", {int(row.get('env_steps'))} env steps; slots: {slots}"
    return text


def _ago(heartbeat: float) -> str:
    return f"{max(0.0, now() - heartbeat):.1f} s ago" if heartbeat else "never"


_FAILURE_BYTES = 16_384


class FailureBoard:
    """One text per process, in the order of ``names``."""

    def __init__(self, names: list[str]) -> None:
        self._names = list(names)
        self._texts = SharedTexts("failures", len(names), _FAILURE_BYTES)

    def write(self, name: str, text: str) -> None:
        """Store the end of ``text``, 16 KiB, as the reason why ``name`` died."""
        self._texts.write(self._names.index(name), text.encode(errors="replace")[-_FAILURE_BYTES:])

    def read(self, name: str) -> str:
        return self._texts.read(self._names.index(name))
