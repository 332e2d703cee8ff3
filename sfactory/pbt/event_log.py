"""Room: what happens to a member of a population. In: a turn. Out: ``Event``, and its line in population.jsonl.

Room: population.jsonl, the history of a population. In: events. Out: one line each; all events that were read.

NOTE [Numbered events]: an event is written here first, and then the state that holds its number. If the process is
killed in between, or the state cannot be written, the next session takes the turn again: a line supersedes all earlier
ones of its number and above. A line that was cut off is taken away before the next one is written.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from sfactory.errors import RunDirError
from sfactory.pbt.mutation import Shaping
from sfactory.pbt.ranking import Objectives


class Kind(StrEnum):
    """What kind of event it is."""

    BEGIN = "begin"  # a member gets its first hyperparameters
    KEEP = "keep"  # a turn that changes nothing
    MUTATE = "mutate"  # its hyperparameters are mutated
    REPLACE = "replace"  # it takes over the weights of its parent, and the parent's hyperparameters, mutated
    SKIP = "skip"  # it would have been replaced or mutated, but that could not be done: it keeps what it has
    RESTORE = "restore"  # a session goes on with it


@dataclass(frozen=True)
class Event:
    """What happens to ``policy`` at its env step ``env_steps``.

    hyperparameters, reward_shaping: those that it has afterwards. parent: whom it takes weights from. objectives:
    what was ranked. reason: why, in words.
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
        """This turn if it cannot be carried out, for example because the parent's checkpoint cannot be read."""
        return dataclasses.replace(self, kind=Kind.SKIP, reason=reason)

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which ``from_json`` makes an equal event."""
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
        """An event that was read. Raises KeyError, TypeError, ValueError or AttributeError if it is none."""
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


GENEALOGY_NAME = "population.jsonl"
_NUMBER = "number"


class PbtEventLog:
    """The file of a run, to be written. Env steps of a policy never go back, but where a session goes on with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: dict[int, int] = {}

    def append(self, number: int, event: Event) -> None:
        """Write event ``number``, and have it on the disk. Raises OSError; then the file ends as it did.

        Raises ValueError if it lies before an event of the same policy.
        """
        last = self._last.get(event.policy, 0)
        if event.kind is not Kind.RESTORE and event.env_steps < last:
            raise ValueError(
                f"{event.kind} of policy {event.policy} at env step {event.env_steps}, after one at {last}"
            )
        line = json.dumps({_NUMBER: number, **event.to_json()}, allow_nan=False).encode() + b"\n"
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            end = _end_of_whole_lines(fd)
            os.ftruncate(fd, end)
            _write_at(fd, line, end)
        finally:
            os.close(fd)
        self._last[event.policy] = event.env_steps


def read_genealogy(run_dir: Path) -> list[Event]:
    """All events of a run that count, in their order (see NOTE [Numbered events]); [] if there is no file.

    Raises RunDirError, naming the line, if one is no event; half a line at the end, as a kill leaves it, is left out.
    """
    return list(_numbered(run_dir).values())


def next_number(run_dir: Path) -> int:
    """The number of the event that follows all that a run has had; raises what ``read_genealogy`` raises."""
    return max(_numbered(run_dir), default=-1) + 1


def births(events: Sequence[Event]) -> list[Event]:
    """The events in which one member took over from another."""
    return [event for event in events if event.kind is Kind.REPLACE and event.parent is not None]


def _numbered(run_dir: Path) -> dict[int, Event]:
    path = run_dir / GENEALOGY_NAME
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
                f"{path}, line {row}: is no event of a population ({type(error).__name__}: {error}); put back a copy "
                "of this file, or take this line out"
            ) from error
        while events and next(reversed(events)) >= number:
            events.popitem()
        events[number] = event
    return events


def _end_of_whole_lines(fd: int) -> int:
    """Bytes up to the last line that has an end."""
    end = os.fstat(fd).st_size
    step = 1 << 16
    while end:
        start = max(0, end - step)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
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
