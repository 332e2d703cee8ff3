"""The state of a population, population.json.

What a member draws in a turn follows from the population's seed and the number of the turn (``Branch.POPULATION``), so
no generator has to be saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfactory import atomic
from sfactory.config.flags import strict_json
from sfactory.config.hyperparameters import is_number, mutable_flags
from sfactory.errors import RunDirError
from sfactory.pbt.mutation import Shaping, shaping_problem

STATE_NAME = "population.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Member:
    """One policy. parent: the policy that it last copied. next_turn: its own env step at which its next turn is due.

    turns: number of its turns so far, counting its first hyperparameters.
    """

    policy: int
    hyperparameters: Mapping[str, float]
    reward_shaping: Shaping | None
    parent: int | None
    next_turn: int
    turns: int


@dataclass(frozen=True)
class PopulationState:
    """Everything that is saved. reward_shaping: the env's own. events: number of events in the log."""

    seed: int
    events: int
    reward_shaping: Shaping | None
    members: Mapping[int, Member]

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``from_json``."""
        values = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return values | {"members": list(values["members"].values())}

    @classmethod
    def from_json(cls, data: Any) -> PopulationState:
        """Raises ValueError that describes the problem if the data is invalid."""
        _demand(isinstance(data, Mapping), "it is not a JSON object")
        version = data.get("format_version")
        _demand(
            version == FORMAT_VERSION, f"it has format_version {version!r}, and this version reads {FORMAT_VERSION}"
        )
        seed, events = (_count(data, name) for name in ("seed", "events"))
        _demand(isinstance(data.get("members"), list), "'members' is not a list")
        members = [_member(entry) for entry in data["members"]]
        by_policy = {member.policy: member for member in members}
        _demand(len(by_policy) == len(members), "'members' contains a policy twice")
        return cls(seed, events, _shaping(data), by_policy)


def save_state(run_dir: Path, state: PopulationState) -> None:
    """Write population.json atomically. Raises OSError."""
    atomic.write_json(run_dir / STATE_NAME, state.to_json())


def load_state(run_dir: Path) -> PopulationState | None:
    """The saved state, or None if there is no file. Raises RunDirError if the file is invalid."""
    path = run_dir / STATE_NAME
    try:
        return PopulationState.from_json(strict_json(atomic.read_bytes(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunDirError(
            f"{path} cannot be used: {reason}; restore a copy of this file, or move it away to start a new "
            "population with the saved weights and the hyperparameters of the flags"
        ) from error


def _member(data: Any) -> Member:
    _demand(isinstance(data, Mapping), "a member is not a JSON object")
    values = data.get("hyperparameters")
    _demand(isinstance(values, Mapping), "'hyperparameters' of a member is not a JSON object")
    for name, value in values.items():
        _demand(name in mutable_flags() and is_number(value), f"{name}={value!r} is not a hyperparameter with a number")
    policy, next_turn, turns = (_count(data, name) for name in ("policy", "next_turn", "turns"))
    parent = None if data.get("parent", "") is None else _count(data, "parent")
    return Member(policy, dict(values), _shaping(data), parent, next_turn, turns)


def _shaping(data: Mapping[str, Any]) -> Shaping | None:
    shaping: Shaping | None = data.get("reward_shaping")
    problem = None if shaping is None else shaping_problem(shaping)
    _demand(problem is None, f"'reward_shaping' {problem}")
    return shaping


def _count(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name!r} is not a count: {value!r}")
    return value


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
