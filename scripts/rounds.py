"""Room: measuring in rounds. In: ways to measure, by name. Out: what each gave in each round, and medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def alternating(
    systems: Mapping[str, Callable[[], T]], rounds: int, told: Callable[[T], str] = str
) -> dict[str, list[T]]:
    """What each system gives in each round. Rounds alternate between systems, so that drift treats all alike."""
    results: dict[str, list[T]] = {name: [] for name in systems}
    for round_ in range(rounds):
        for name, measure in systems.items():
            results[name].append(measure())
            print(f"round {round_ + 1}: {name}: {told(results[name][-1])}", flush=True)
    return results


def medians(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each series that has numbers."""
    return {name: statistics.median(values) for name, values in rounds.items() if values}
