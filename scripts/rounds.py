"""Measures in rounds and compares measurements of the same round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


def alternating(
    systems: Mapping[str, Callable[[], T]], rounds: int, show: Callable[[T], str] = str
) -> dict[str, list[T]]:
    """The results of each system in each round. Rounds alternate between systems, so that drift affects all alike."""
    results: dict[str, list[T]] = {name: [] for name in systems}
    for round_ in range(rounds):
        for name, measure in systems.items():
            results[name].append(measure())
            print(f"round {round_ + 1}: {name}: {show(results[name][-1])}", flush=True)
    return results


def side_by_side(
    names: Sequence[str],
    measure: Callable[[Sequence[str]], Mapping[str, T]],
    rounds: int,
    show: Callable[[T], str] = str,
) -> dict[str, list[T]]:
    """The results of each of ``names`` in each round; ``measure`` measures all at once, started in this order.

    Every other round has the opposite order, because the first one is alone until the next has started.
    """
    results: dict[str, list[T]] = {name: [] for name in names}
    for round_ in range(rounds):
        found = measure(names if round_ % 2 == 0 else names[::-1])
        for name in names:
            results[name].append(found[name])
        all_shown = ", ".join(f"{name}: {show(found[name])}" for name in names)
        print(f"round {round_ + 1}, side by side: {all_shown}", flush=True)
    return results


def medians(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each series that has numbers."""
    return {name: statistics.median(values) for name, values in rounds.items() if values}


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
