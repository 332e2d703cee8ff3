"""Room: how a flag says that population-based training may change it. In: a range, a way. Out: ``Mutable``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
