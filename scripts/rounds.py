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


def side_by_side(
    names: Sequence[str],
    measure: Callable[[Sequence[str]], Mapping[str, T]],
    rounds: int,
    told: Callable[[T], str] = str,
) -> dict[str, list[T]]:
    """What each of ``names`` gives in each round; ``measure`` measures all of them at once, begun in this order.

    Every other round goes backwards: who begins is alone until the next has started.
    """
    results: dict[str, list[T]] = {name: [] for name in names}
    for round_ in range(rounds):
        found = measure(names if round_ % 2 == 0 else names[::-1])
        for name in names:
            results[name].append(found[name])
        told_of_all = ", ".join(f"{name}: {told(found[name])}" for name in names)
        print(f"round {round_ + 1}, side by side: {told_of_all}", flush=True)
    return results


def medians(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each series that has numbers."""
    return {name: statistics.median(values) for name, values in rounds.items() if values}
