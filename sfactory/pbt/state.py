"""Room: population.json, the state of a population. In: members. Out: the same members in the next session.

What a member draws in a turn follows from the population's seed and the number of the turn (``Branch.POPULATION``), so
the number is all that there is to save of its generator.
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
    """One policy. parent: whom it last took over from. next_turn: the env step of its own from which it has its turn.

    turns: how many it has had, its first hyperparameters included.
    """

    policy: int
    hyperparameters: Mapping[str, float]
    reward_shaping: Shaping | None
    parent: int | None
    next_turn: int
    turns: int


@dataclass(frozen=True)
class PopulationState:
    """All that has to be saved. reward_shaping: the env's own. events: how many lines the genealogy has by now."""

    seed: int
    events: int
    reward_shaping: Shaping | None
    members: Mapping[int, Member]

    def with_member(self, member: Member) -> PopulationState:
        """This state after one more event, with ``member`` in place of what was known of its policy."""
        members = dict(sorted({**self.members, member.policy: member}.items()))
        return dataclasses.replace(self, events=self.events + 1, members=members)

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which ``from_json`` makes an equal state."""
        return {
            "format_version": FORMAT_VERSION,
            "seed": self.seed,
            "events": self.events,
            "reward_shaping": self.reward_shaping,
            "members": [dataclasses.asdict(member) for member in self.members.values()],
        }

    @classmethod
    def from_json(cls, data: Any) -> PopulationState:
        """A state that was read. Raises ValueError saying what is wrong with it."""
        _demand(isinstance(data, Mapping), "it holds no JSON object")
        version = data.get("format_version")
        _demand(
            version == FORMAT_VERSION, f"it has format_version {version!r}, and this version reads {FORMAT_VERSION}"
        )
        seed, events = (_count(data, name) for name in ("seed", "events"))
        _demand(isinstance(data.get("members"), list), "'members' is no list")
        members = [_member(entry) for entry in data["members"]]
        by_policy = {member.policy: member for member in members}
        _demand(len(by_policy) == len(members), "'members' has a policy twice")
        return cls(seed, events, _shaping(data), by_policy)


def save_state(run_dir: Path, state: PopulationState) -> None:
    """Write population.json, whole or not at all. Raises OSError."""
    atomic.write_json(run_dir / STATE_NAME, state.to_json())


def load_state(run_dir: Path) -> PopulationState | None:
    """What ``save_state`` wrote, or None if there is no such file.

    Raises RunDirError, naming the file, what is wrong and what to do, if it cannot be used.
    """
    path = run_dir / STATE_NAME
    try:
        return PopulationState.from_json(strict_json(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunDirError(
            f"{path}: cannot be used: {reason}; put back a copy of this file, or move it away to begin a new "
            "population with the saved weights and with hyperparameters from the flags"
        ) from error


def _member(data: Any) -> Member:
    _demand(isinstance(data, Mapping), "a member is no JSON object")
    values = data.get("hyperparameters")
    _demand(isinstance(values, Mapping), "'hyperparameters' of a member is no JSON object")
    for name, value in values.items():
        _demand(name in mutable_flags() and is_number(value), f"{name}={value!r} is no hyperparameter with its value")
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
    _demand(isinstance(value, int) and not isinstance(value, bool) and value >= 0, f"{name!r} is no count: {value!r}")
    assert isinstance(value, int)
    return value


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
