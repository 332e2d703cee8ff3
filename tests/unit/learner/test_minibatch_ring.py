"""Datasets are turned over as RLlib's MinibatchBuffer turns over its batches: its traces, and what holds for any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactory.learner.training_loop import MinibatchRing


def letters() -> Iterator[str]:
    return iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def trace(ring: MinibatchRing[str], turns: int) -> str:
    """What is learned from in turn; * marks the last pass over it."""
    source, words = letters(), []
    for _ in range(turns):
        item = ring.turn(lambda: next(source))
        assert item is not None
        words.append(item + ("*" if ring.passed() else ""))
    return " ".join(words)


@pytest.mark.parametrize(
    ("size", "passes", "warmup", "expected"),
    [
        (1, 3, 0, "A A A* B B B* C"),
        (2, 2, 0, "A B A* B* C D C* D*"),
        (3, 2, 0, "A B C A* B* C* D"),
        (1, 3, 1, "A* B B* C C C* D D D*"),
        (2, 3, 1, "A* B C B* C D C* D"),
        (2, 1, 0, "A* B* C*"),
        (2, 2, 2, "A B A* B* C D C* D*"),
    ],
)
def test_golden_traces(size: int, passes: int, warmup: int, expected: str) -> None:
    assert trace(MinibatchRing(size, passes, warmup), len(expected.split())) == expected


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 120))
def test_every_item_that_is_released_had_its_passes_and_was_released_once(size: int, passes: int, turns: int) -> None:
    words = [str(number) for number in range(200)]
    source = iter(words)
    ring: MinibatchRing[str] = MinibatchRing(size, passes, 0)
    emitted: Counter[str] = Counter()
    released: Counter[str] = Counter()
    for _ in range(turns):
        item = ring.turn(lambda: next(source))
        assert item is not None
        emitted[item] += 1
        released[item] += ring.passed()

    assert {emitted[item] for item, count in released.items() if count} <= {passes}
    assert max(released.values()) <= 1
    assert sorted(ring.live) == sorted(item for item in emitted if not released[item])
    assert len(ring.live) <= size


def test_where_nothing_comes_the_turn_stays_and_others_go_on_only_if_it_is_skipped() -> None:
    ring: MinibatchRing[str] = MinibatchRing(2, 2, 0)
    assert ring.turn(lambda: "A") == "A"
    ring.passed()

    assert ring.turn(lambda: None) is None
    assert ring.turn(lambda: None) is None
    ring.skip()
    assert ring.turn(lambda: None) == "A"
    assert ring.passed()
    assert ring.live == []
    ring.skip()
    assert ring.turn(lambda: "B") == "B"


def test_passes_that_are_cut_short_release_the_item_at_once() -> None:
    ring: MinibatchRing[str] = MinibatchRing(2, 3, 0)
    source = letters()
    ring.turn(lambda: next(source))

    assert ring.passed(more=False)
    assert ring.turn(lambda: next(source)) == "B"
    assert not ring.passed()
    assert ring.turn(lambda: next(source)) == "C"
