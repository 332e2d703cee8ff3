"""Room: what every process is doing. In: one row per process, written by it alone. Out: rows, read by main.

Room: how a child says why it died. In: one text per process. Out: that text, after the death.

Plain shared memory and not a queue: it needs no lock, and survives the writer being killed a moment later.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sfactory.clock import now
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec


class State(IntEnum):
    """What a process is about."""

    UNBORN = 0
    STARTING = 1  # importing; an actor: making its envs
    RESETTING = 2  # an actor whose envs get their first reset, and the random steps that may follow it
    RUNNING = 3
    DONE = 4  # a learner that has reached its limit


_FLOATS = (
    *("heartbeat", "busy_since", "watched_since", "busy_s", "waiting_s", "first_step_at", "train_seconds"),
    "counted_at",  # of a learner: its train_seconds when its run_env_steps last grew
    "loop_since",  # since when a worker has been in its loop; 0 before
    # Since when it has been at a ring: a worker to write, a thread of a learner's, but not the one that trains, in all.
    "in_ring_since",
    *("update_s", "save_s"),  # of a learner: the longest that a minibatch took, the last checkpoint
)
_INTS = (
    *("pid", "state", "env_steps", "agent_steps", "updates", "saved_env_steps"),
    "run_env_steps",  # of a learner: of its env steps, those that no other learner counts
    "resetting",  # of an actor: 1 while one of its envs is reset or made anew, which has a limit of its own
    # Of a learner, in this session: datasets learned from, valid steps that were replayed, and that were dropped
    # before they were learned from, publications of weights; in all sessions: updates of the target network.
    *("datasets", "replayed_steps", "dropped_steps", "publications", "target_updates"),
    # Of a learner: valid steps of the slots that it has taken over. Of whoever was replaced, and how
    # often it was: steps that were lost with it.
    *("received_steps", "discarded_steps", "restarts"),
    # Of an actor, in this session: envs that were made anew after they raised, steps whose data was none.
    *("env_restarts", "bad_env_data"),
)
_DEPTHS, _READY = "depths", "ready"
MAX_DEPTH = 255  # what is deeper counts as this


class Times(NamedTuple):
    """Seconds that a process has been busy and has waited; together all the time since its Stopwatch was made."""

    busy: float
    waiting: float


class StatusRow:
    """One process's row. Writers: that process alone; main, once it is dead.

    All times are monotonic seconds, comparable over processes.
    """

    def __init__(self, board: SharedArrays, row: int) -> None:
        # Single numbers are read and written through memoryviews in half the time that arrays take. One refuses to be
        # written what is not of its kind.
        self._cells: dict[str, Any] = {name: board[name].data for name in (*_FLOATS, *_INTS)}
        self._depths, self._ready = board[_DEPTHS][row], board[_READY][row]
        self._row = row

    def get(self, name: str) -> float:
        """A field of the row."""
        return float(self._cells[name][self._row])

    def set(self, name: str, value: float) -> None:
        """Write a field of the row."""
        self._cells[name][self._row] = value

    def add(self, name: str, value: float) -> None:
        """Add to a field of the row."""
        self._cells[name][self._row] += value

    def count_env_steps(self, steps: int) -> None:
        """Add valid env steps; the first ones stamp ``first_step_at``, where training time begins."""
        if not self._cells["first_step_at"][self._row]:
            self._cells["first_step_at"][self._row] = now()
        self._cells["env_steps"][self._row] += steps

    def count_depth(self, messages: int) -> None:
        """The process found so many messages in its ring; no messages are no reading."""
        if messages:
            self._depths[min(messages, MAX_DEPTH)] += 1

    def count_ready(self, datasets: int) -> None:
        """The process, a learner, wanted a dataset to learn from and found so many; of none it has to wait for one."""
        self._ready[min(datasets, MAX_DEPTH)] += 1

    def start(self) -> None:
        """Write pid and state at the start of a process."""
        self.set("pid", os.getpid())
        self.set("state", State.STARTING)
        self.beat()

    def beat(self) -> None:
        """Stamp the heartbeat."""
        self._cells["heartbeat"][self._row] = now()

    def begin_work(self) -> None:
        """The process begins one thing that may take long, such as making an env: stamp since when it is busy."""
        self._cells["busy_since"][self._row] = self._cells["heartbeat"][self._row] = now()

    def begin_reset(self, resetting: bool) -> None:
        """An actor begins one reset of an env, or is through with it: the time that it may take counts from here on."""
        self._cells["busy_since"][self._row] = now()
        self._cells["resetting"][self._row] = resetting

    def enter_ring(self) -> None:
        """The process is about to write to rings, which takes no time unless the lock of one died with a process."""
        self._cells["in_ring_since"][self._row] = now()

    def leave_ring(self) -> None:
        """It has."""
        self._cells["in_ring_since"][self._row] = 0.0

    def times(self, at: float) -> Times:
        """How the process has spent its time up to ``at``, which is now: what it is at right now included.

        Nothing keeps the process from going on while this looks. So what it is at is looked at first, and how long is
        what the counts leave over: a stretch that ends meanwhile is counted once, as what it was.
        """
        is_busy, since = self.get("busy_since") > 0, self.get("watched_since")
        busy, waiting = self.get("busy_s"), self.get("waiting_s")
        if not since:
            return Times(0.0, 0.0)
        under_way = max(0.0, at - since - busy - waiting)
        return Times(busy + under_way, waiting) if is_busy else Times(busy, waiting + under_way)

    def clear(self) -> None:
        """Back to before birth. Called by main, once the process is dead and another takes its place."""
        for name in ("pid", "state", "heartbeat", "busy_since", "loop_since", "in_ring_since", "resetting"):
            self.set(name, 0)


class Stopwatch:
    """Splits all time since it was made into busy and waiting, and keeps the heartbeat.

    It is told before and after each wait, and whatever is no wait for other processes is busy: a process that is ready
    to run and is given no core, too. Of one thread only: of a learner with several, the one that trains (see
    LearnerWorker).
    """

    def __init__(self, row: StatusRow) -> None:
        self._row = row
        self._mark = now()
        row.set("watched_since", self._mark - row.get("busy_s") - row.get("waiting_s"))
        row.set("busy_since", self._mark)
        row.set("heartbeat", self._mark)
        row.set("loop_since", self._mark)

    def before_wait(self) -> None:
        """The process is about to block."""
        moment = now()
        self._row.add("busy_s", moment - self._mark)
        self._row.set("busy_since", 0.0)
        self._mark = moment

    def after_wait(self) -> None:
        """The process woke up."""
        moment = now()
        self._row.add("waiting_s", moment - self._mark)
        self._row.set("busy_since", moment)
        self._row.set("heartbeat", moment)
        self._mark = moment

    def lap(self) -> None:
        """The process goes on without a wait, with a new piece of work: it does not hang, however long it is busy."""
        moment = now()
        self._row.add("busy_s", moment - self._mark)
        self._row.set("busy_since", moment)
        self._row.set("heartbeat", moment)
        self._mark = moment


class StatusBoard:
    """One row per process, in the order of ``names``."""

    def __init__(self, names: list[str]) -> None:
        self.names = list(names)
        rows = (len(names),)
        fields = {name: TensorSpec(rows, "float64") for name in _FLOATS}
        fields |= {name: TensorSpec(rows, "int64") for name in _INTS}
        fields |= {name: TensorSpec((*rows, MAX_DEPTH + 1), "int64") for name in (_DEPTHS, _READY)}
        self._shared = SharedArrays("status", fields)

    def row(self, name: str) -> StatusRow:
        """The row of the process called ``name``."""
        return StatusRow(self._shared, self.names.index(name))

    def total(self, field: str, prefix: str) -> float:
        """Sum of a field over all processes whose name starts with ``prefix``."""
        values = self._shared[field]
        return float(sum(values[row] for row, name in enumerate(self.names) if name.startswith(prefix)))

    def values(self, field: str, prefix: str) -> list[float]:
        """A field of all processes whose name starts with ``prefix``."""
        values = self._shared[field]
        return [float(values[row]) for row, name in enumerate(self.names) if name.startswith(prefix)]

    def times(self, prefix: str, at: float) -> list[Times]:
        """``StatusRow.times`` of all processes whose name starts with ``prefix``."""
        rows = [row for row, name in enumerate(self.names) if name.startswith(prefix)]
        return [StatusRow(self._shared, row).times(at) for row in rows]

    def depths(self, prefix: str) -> npt.NDArray[np.int64]:
        """[MAX_DEPTH + 1]: how often the rings of all processes whose name starts with ``prefix`` were that deep."""
        return self._histogram(_DEPTHS, prefix)

    def ready(self, prefix: str) -> npt.NDArray[np.int64]:
        """[MAX_DEPTH + 1]: how often these processes found so many datasets ready when they wanted one."""
        return self._histogram(_READY, prefix)

    def _histogram(self, field: str, prefix: str) -> npt.NDArray[np.int64]:
        rows = [row for row, name in enumerate(self.names) if name.startswith(prefix)]
        total: npt.NDArray[np.int64] = self._shared[field][rows].sum(axis=0)
        return total


_TEXT_BYTES = 16_384


class FailureBoard:
    """One text per process, in the order of ``names``."""

    def __init__(self, names: list[str]) -> None:
        self._names = list(names)
        self._shared = SharedArrays(
            "failures",
            {
                "length": TensorSpec((len(names),), "int64"),
                "text": TensorSpec((len(names), _TEXT_BYTES), "uint8"),
            },
        )

    def write(self, name: str, text: str) -> None:
        """Leave ``text`` (its last 16 KiB) as the reason of ``name``'s death."""
        row = self._names.index(name)
        data = text.encode(errors="replace")[-_TEXT_BYTES:]
        self._shared["text"][row, : len(data)] = memoryview(data)
        self._shared["length"][row] = len(data)

    def read(self, name: str) -> str:
        """What ``name`` left, or ''."""
        row = self._names.index(name)
        length = int(self._shared["length"][row])
        return self._shared["text"][row, :length].tobytes().decode(errors="replace")
