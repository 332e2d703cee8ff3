"""Room: ratios of what was measured in the same round. In: figures by round. Out: the median ratio and its bounds.

A machine that is twice as slow in one round is so for all that is measured in it, and the ratio stays what it was; in a
ratio of two medians, each of another round, it does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

Rounds = Mapping[int, float]  # figures by round


class Spread(NamedTuple):
    """The median of some numbers, the least and the greatest of them."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(numbers: Iterable[float]) -> Spread:
        """The spread of at least one number."""
        known = list(numbers)
        return Spread(statistics.median(known), min(known), max(known))

    @staticmethod
    def from_json(values: Mapping[str, float]) -> Spread:
        """Read what ``to_json`` gave."""
        return Spread(values["median"], values["min"], values["max"])

    def to_json(self) -> dict[str, float]:
        """The three numbers by name, to four places."""
        return {"median": round(self.median, 4), "min": round(self.least, 4), "max": round(self.most, 4)}

    def as_times(self) -> str:
        """In words, as a factor: ``3.9 times (3.8-5.7)``."""
        return f"{self.median:.3g} times ({self.least:.3g}-{self.most:.3g})"

    def as_share(self) -> str:
        """In words, as a share: ``72% (67-80)``."""
        return f"{self.median:.0%} ({100 * self.least:.0f}-{100 * self.most:.0f})"


def paired(above: Rounds, below: Rounds) -> dict[int, float]:
    """``above`` over ``below`` in each round that has both."""
    return {round_: above[round_] / below[round_] for round_ in sorted(above.keys() & below.keys())}


def ratio(above: Rounds, below: Rounds) -> Spread | None:
    """The spread of the paired ratios; None if no round has both."""
    ratios = paired(above, below)
    return Spread.of(ratios.values()) if ratios else None
