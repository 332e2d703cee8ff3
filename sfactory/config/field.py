"""Room: how a flag is declared in a section. In: default, help, bounds. Out: a dataclass field, ``FlagInfo``.

Room: how a flag says that population-based training may change it. In: a range, a way. Out: ``Mutable``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class How(StrEnum):
    """How a new value is found; ``pbt_perturb_min`` and ``pbt_perturb_max`` bound the factor f."""

    FACTOR = "factor"  # the value times f, or divided by it
    ONE_MINUS = "one_minus"  # 1 - value times f, or divided by it: for what is near 1
    DOUBLE = "double"  # a whole number is doubled or halved
    UNIFORM = "uniform"  # drawn anew, all values of the range alike
    LOG_UNIFORM = "log_uniform"  # drawn anew, all orders of magnitude of the range alike


@dataclass(frozen=True)
class Mutable:
    """That a flag may be changed while a run goes on, within ``low`` and ``high``.

    on: the flag that has it mutated; "" if only ``pbt_hyperparameters`` does. relative: the bounds are multiples of
    the value that the run was given.
    """

    low: float
    high: float
    how: How = How.FACTOR
    on: str = ""
    relative: bool = False


_META = "sfactory"


@dataclass(frozen=True)
class FlagInfo:
    """What is known of one flag beside its type and default: help text and the range it accepts.

    mutable: how population-based training may change it; None: not at all.
    """

    help: str
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    mutable: Mutable | None = None


def flag(
    default: Any,
    help: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    mutable: Mutable | None = None,
) -> Any:
    """Declare a config field: ``default``, ``help`` text and bounds (gt, ge, lt, le; NaN and inf are never legal).

    mutable: that population-based training may change it, and how.
    """
    info = FlagInfo(help=help, gt=gt, ge=ge, lt=lt, le=le, mutable=mutable)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={_META: info})
    return dataclasses.field(default=default, metadata={_META: info})


def flag_info(field: dataclasses.Field[Any]) -> FlagInfo:
    """The ``FlagInfo`` that ``flag`` attached to a dataclass field."""
    info = field.metadata[_META]
    assert isinstance(info, FlagInfo)
    return info
