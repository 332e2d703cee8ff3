"""Declares flags: ``flag`` makes a dataclass field with help text and bounds, ``Mutable`` lets PBT change it."""

from __future__ import annotations

import dataclasses
import operator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_META = "sfactory"


class How(StrEnum):
    """How PBT finds a new value; ``pbt_perturb_min`` and ``pbt_perturb_max`` bound the factor f."""

    FACTOR = "factor"  # the value times f, or divided by it
    ONE_MINUS = "one_minus"  # 1 - value times f, or divided by it: for values near 1
    DOUBLE = "double"  # a whole number is doubled or halved
    UNIFORM = "uniform"  # redrawn, uniformly over the range
    LOG_UNIFORM = "log_uniform"  # redrawn, uniformly over the logarithm of the range


@dataclass(frozen=True)
class Mutable:
    """Marks a flag that PBT may change during a run, within ``low`` and ``high``.

    on: the flag that switches its mutation on; "" if only ``pbt_hyperparameters`` does. relative: the bounds are
    multiples of the value that the run was started with.
    """

    low: float
    high: float
    how: How = How.FACTOR
    on: str = ""
    relative: bool = False


@dataclass(frozen=True)
class FlagInfo:
    """Help text, accepted range, and how PBT may change the flag (None: not at all).

    path: it names a file or folder, in which ``~`` is the user's own.
    """

    help: str
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    mutable: Mutable | None = None
    path: bool = False

    def range_text(self) -> str:
        """The accepted range in words, or "" if every finite number is accepted."""
        return " and ".join(f"{words} {bound}" for words, bound, _ in self._bounds())

    def broken_bound(self, number: float) -> str | None:
        """The first bound that ``number`` breaks, in words; None if it is in the range."""
        return next((f"{words} {bound}" for words, bound, holds in self._bounds() if not holds(number, bound)), None)

    def _bounds(self) -> list[tuple[str, float, Any]]:
        bounds = (
            ("at least", self.ge, operator.ge),
            ("greater than", self.gt, operator.gt),
            ("at most", self.le, operator.le),
            ("less than", self.lt, operator.lt),
        )
        return [(words, bound, holds) for words, bound, holds in bounds if bound is not None]


def flag(default: Any, help: str, **facts: Any) -> Any:
    """A config field with its ``default``; ``facts`` are other fields of FlagInfo. NaN and infinity are never legal."""
    metadata = {_META: FlagInfo(help, **facts)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag_info(field: dataclasses.Field[Any]) -> FlagInfo:
    """The ``FlagInfo`` that ``flag`` attached to a dataclass field."""
    info = field.metadata[_META]
    assert isinstance(info, FlagInfo)
    return info
