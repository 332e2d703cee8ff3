"""Room: what happens to a member of a population. In: a turn. Out: ``Event``, and its line in population.jsonl."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sfactory.population.ranking import Objectives
from sfactory.population.shaping import Shaping


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
