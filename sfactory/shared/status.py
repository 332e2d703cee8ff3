"""Room: what every process is doing. In: one row per process, written by it alone. Out: rows, read by main."""

from __future__ import annotations

import os
from enum import IntEnum

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


_FLOATS = ("heartbeat", "busy_since", "busy_s", "waiting_s", "first_step_at", "train_seconds")
_INTS = ("pid", "state", "env_steps", "agent_steps", "updates", "saved_env_steps")
_DEPTHS = "depths"
MAX_DEPTH = 255  # what is deeper counts as this


class StatusRow:
    """One process's row. Writers: that process alone. All times are monotonic seconds, comparable over processes."""

    def __init__(self, board: SharedArrays, row: int) -> None:
        self._arrays = {name: board[name] for name in (*_FLOATS, *_INTS)}
        self._depths = board[_DEPTHS][row]
        self._row = row

    def get(self, name: str) -> float:
        """A field of the row."""
        return float(self._arrays[name][self._row])

    def set(self, name: str, value: float) -> None:
        """Write a field of the row."""
        self._arrays[name][self._row] = value

    def add(self, name: str, value: float) -> None:
        """Add to a field of the row."""
        self._arrays[name][self._row] += value

    def count_env_steps(self, steps: int) -> None:
        """Add valid env steps; the first ones stamp ``first_step_at``, where training time begins."""
        if not self._arrays["first_step_at"][self._row]:
            self._arrays["first_step_at"][self._row] = now()
        self._arrays["env_steps"][self._row] += steps

    def count_depth(self, messages: int) -> None:
        """The process found so many messages in its ring; no messages are no reading."""
        if messages:
            self._depths[min(messages, MAX_DEPTH)] += 1

    def start(self) -> None:
        """Write pid and state at the start of a process."""
        self.set("pid", os.getpid())
        self.set("state", State.STARTING)
        self.beat()

    def beat(self) -> None:
        """Stamp the heartbeat."""
        self._arrays["heartbeat"][self._row] = now()

    def begin_work(self) -> None:
        """The process begins one thing that may take long, such as making an env: stamp since when it is busy."""
        self._arrays["busy_since"][self._row] = self._arrays["heartbeat"][self._row] = now()

    def clear(self) -> None:
        """Back to before birth. Called by main, once the process is dead and another takes its place."""
        for name in ("pid", "state", "heartbeat", "busy_since"):
            self.set(name, 0)


class Stopwatch:
    """Splits a process's time into busy and waiting, and keeps its heartbeat, told before and after each wait."""

    def __init__(self, row: StatusRow) -> None:
        self._row = row
        self._mark = now()

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


class StatusBoard:
    """One row per process, in the order of ``names``."""

    def __init__(self, names: list[str]) -> None:
        self.names = list(names)
        rows = (len(names),)
        fields = {name: TensorSpec(rows, "float64") for name in _FLOATS}
        fields |= {name: TensorSpec(rows, "int64") for name in _INTS}
        fields[_DEPTHS] = TensorSpec((*rows, MAX_DEPTH + 1), "int64")
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

    def depths(self, prefix: str) -> npt.NDArray[np.int64]:
        """[MAX_DEPTH + 1]: how often the rings of all processes whose name starts with ``prefix`` were that deep."""
        rows = [row for row, name in enumerate(self.names) if name.startswith(prefix)]
        total: npt.NDArray[np.int64] = self._shared[_DEPTHS][rows].sum(axis=0)
        return total
