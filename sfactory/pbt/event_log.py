"""The event log of a population, population.jsonl: one line for each thing that happens to a member.

NOTE [Numbered events]: an event is appended to the log first, and then the state that contains its number is saved. If
the process is killed in between, or the state cannot be saved, the next session repeats the event: a line supersedes
all earlier lines with its number or a higher one. An incomplete last line is removed before the next one is appended.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sfactory.errors import RunDirError
from sfactory.pbt.mutation import Shaping
from sfactory.pbt.ranking import Objectives

EVENT_LOG_NAME = "population.jsonl"
_NUMBER = "number"
_CHUNK_BYTES = 1 << 16


class Kind(StrEnum):
    """The kind of an event."""

    BEGIN = "begin"  # a member gets its first hyperparameters
    KEEP = "keep"  # a turn that changes nothing
    MUTATE = "mutate"  # its hyperparameters are mutated
    REPLACE = "replace"  # it gets the weights of its parent and the parent's hyperparameters, mutated
    SKIP = "skip"  # it should have been replaced or mutated, but that failed: it keeps what it has
    RESTORE = "restore"  # a session resumes it


@dataclass(frozen=True)
class Event:
    """What happens to ``policy`` at its env step ``env_steps``.

    hyperparameters, reward_shaping: its values afterwards. parent: the policy it copies weights from. objectives:
    what was ranked, by policy. reason: an explanation in words.
    """

    kind: Kind
    policy: int
    env_steps: int
    hyperparameters: Mapping[str, float]
    reward_shaping: Shaping | None = None
    parent: int | None = None
    objectives: Objectives = field(default_factory=dict)
    reason: str = ""

    def skipped(self, reason: str) -> Event:
        """This event if it cannot be carried out, for example because the parent's checkpoint cannot be read."""
        return dataclasses.replace(self, kind=Kind.SKIP, reason=reason)

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``from_json``."""
        return {
            "kind": self.kind.value,
            "policy": self.policy,
            "env_steps": self.env_steps,
            "parent": self.parent,
            "hyperparameters": dict(self.hyperparameters),
            "reward_shaping": self.reward_shaping,
            "objectives": {str(policy): value for policy, value in self.objectives.items()},
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """Raises KeyError, TypeError, ValueError or AttributeError for invalid data."""
        parent = data["parent"]
        return cls(
            Kind(data["kind"]),
            int(data["policy"]),
            int(data["env_steps"]),
            dict(data["hyperparameters"]),
            data["reward_shaping"],
            None if parent is None else int(parent),
            {int(policy): value for policy, value in data["objectives"].items()},
            str(data["reason"]),
        )


class PbtEventLog:
    """Appends events. The env steps of a policy never decrease, except when a session resumes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: dict[int, int] = {}

    def append(self, number: int, event: Event) -> None:
        """Append event ``number`` and sync it to disk. Raises OSError and leaves the file as it was if that fails.

        Raises ValueError if an event of the same policy has more env steps.
        """
        last = self._last.get(event.policy, 0)
        if event.kind is not Kind.RESTORE and event.env_steps < last:
            raise ValueError(
                f"{event.kind} of policy {event.policy} at env step {event.env_steps}, after one at {last}"
            )
        line = json.dumps({_NUMBER: number, **event.to_json()}, allow_nan=False).encode() + b"\n"
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            end = _end_of_last_line(fd)
            os.ftruncate(fd, end)
            _write_at(fd, line, end)
        finally:
            os.close(fd)
        self._last[event.policy] = event.env_steps


def read_events(run_dir: Path) -> list[Event]:
    """All valid events of a run in order, see NOTE [Numbered events]; [] if there is no file.

    Raises RunDirError with the line number if a line is invalid; an incomplete last line is ignored.
    """
    return list(_numbered_events(run_dir).values())


def next_number(run_dir: Path) -> int:
    """The number of the next event of a run; raises RunDirError like ``read_events``."""
    return max(_numbered_events(run_dir), default=-1) + 1


def _numbered_events(run_dir: Path) -> dict[int, Event]:
    path = run_dir / EVENT_LOG_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {error.strerror or error}; check its permissions") from error
    events: dict[int, Event] = {}
    for row, line in enumerate(text.split(b"\n")[:-1], 1):
        try:
            content = json.loads(line)
            number, event = int(content[_NUMBER]), Event.from_json(content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunDirError(
                f"{path}, line {row}: is not an event of a population ({type(error).__name__}: {error}); restore a "
                "copy of this file, or remove the line"
            ) from error
        while events and next(reversed(events)) >= number:
            events.popitem()
        events[number] = event
    return events


def _end_of_last_line(fd: int) -> int:
    """Number of bytes up to and including the last newline."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - _CHUNK_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _write_at(fd: int, line: bytes, at: int) -> None:
    view, position = memoryview(line), at
    try:
        while view:
            written = os.pwrite(fd, view, position)
            view, position = view[written:], position + written
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, at)
        raise
