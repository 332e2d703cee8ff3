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

from sfactory import atomic
from sfactory.errors import RunDirError, named
from sfactory.pbt.mutation import Shaping
from sfactory.pbt.ranking import Objectives

EVENT_LOG_NAME = "population.jsonl"


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
    the ranked ones, by policy. reason: an explanation in words.
    """

    kind: Kind
    policy: int
    env_steps: int
    hyperparameters: Mapping[str, float]
    reward_shaping: Shaping | None = None
    parent: int | None = None
    objectives: Objectives = field(default_factory=dict)
    reason: str = ""

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Event:
        """The event of a line of the log. Raises KeyError, TypeError, ValueError or AttributeError for invalid data."""
        return Event(
            kind=Kind(data["kind"]),
            policy=int(data["policy"]),
            env_steps=int(data["env_steps"]),
            hyperparameters=dict(data["hyperparameters"]),
            reward_shaping=data["reward_shaping"],
            parent=None if data["parent"] is None else int(data["parent"]),
            objectives={int(policy): value for policy, value in data["objectives"].items()},
            reason=str(data["reason"]),
        )


def append_event(run_dir: Path, number: int, event: Event) -> None:
    """Append event ``number`` and sync it to disk. Raises OSError if that fails; the file is then unchanged."""
    line = json.dumps({"number": number, **dataclasses.asdict(event)}, allow_nan=False).encode() + b"\n"
    fd = atomic.opened(run_dir / EVENT_LOG_NAME, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        atomic.cut_torn_line(fd)
        atomic.append_whole(fd, line, sync=True)
    finally:
        os.close(fd)


def read_events(run_dir: Path) -> list[Event]:
    """All valid events of a run in order, see NOTE [Numbered events]; raises RunDirError like ``numbered_events``."""
    return list(numbered_events(run_dir).values())


def numbered_events(run_dir: Path) -> dict[int, Event]:
    """The valid events by number; {} if there is no file. An incomplete last line is ignored.

    Raises RunDirError with the line number if another line is invalid.
    """
    path = run_dir / EVENT_LOG_NAME
    try:
        text = atomic.read_bytes(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunDirError(f"{path} cannot be read: {error.strerror or error}; check its permissions") from error
    events: dict[int, Event] = {}
    for row, line in enumerate(text.split(b"\n")[:-1], 1):
        try:
            content = atomic.parse_json(line)
            number, event = int(content["number"]), Event.from_json(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunDirError(
                f"{path}, line {row} is not an event of a population ({named(error)}); restore a "
                "copy of this file, or remove the line"
            ) from error
        while events and next(reversed(events)) >= number:
            events.popitem()
        events[number] = event
    return events
