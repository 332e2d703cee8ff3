"""The page about the hot path says what was measured, and what should not be is told."""

from __future__ import annotations

from scripts.hot_path import Call, Growth, Traced
from scripts.profile_hot_path import FEW, MANY, PROFILED, Found, page, problems

CALLS = [
    Call("sfactory.messages:Codec.encode", 2 * PROFILED, 0.002 * PROFILED),
    Call("sfactory.messages:Codec.decode", 2 * PROFILED, 0.001 * PROFILED),
    Call("sfactory.shared.weights:SharedWeights._barrier", 4, 0.0),
    Call("method '__exit__' of '_thread.lock' objects", 4, 0.0),
]


def found(calls: list[Call] = CALLS, blocks: int = 3, heap_bytes: int = 1024, size: int = 80, cyclic: int = 7) -> Found:
    growths = [Growth(steps, steps * 1e-4, blocks, heap_bytes, cyclic) for steps in (FEW, MANY)]
    return Found(calls, growths, [Traced(steps, size, 1, ["a.py:1 (+80 bytes)"]) for steps in (FEW, MANY)])


def test_a_constant_amount_is_no_problem() -> None:
    assert problems("local", found()) == []


def test_what_should_not_be_is_told() -> None:
    calls = [
        Call("built-in method _pickle.dumps", 1, 0.0),
        Call("copy:deepcopy", 1, 0.0),
        Call("method 'acquire' of '_thread.lock' objects", 1, 0.0),
    ]

    wrong = problems("central", found(calls, blocks=MANY, heap_bytes=24 * MANY, size=24 * MANY, cyclic=MANY))

    assert wrong == [
        "central: `pickle` was called",
        "central: `copy.deepcopy` was called",
        "central: a lock was taken",
        "central: no message passed the codec",
        f"central: {MANY} blocks stayed of {MANY} split steps",
        f"central: {MANY} objects became garbage",
        f"central: {24 * MANY} bytes of the heap stayed",
        f"central: {24 * MANY} bytes stayed",
    ]


def test_the_page_holds_the_figures_of_both() -> None:
    text = page({"central": found(), "local": found(CALLS[2:])})

    assert "| calls of `pickle` | 0 | 0 |" in text
    assert "| locks taken, apart from the next row's | 0 | 0 |" in text
    assert f"| messages made bytes by the codec | {2 * PROFILED:,} | 0 |" in text
    assert "| `sfactory.messages:Codec.encode` | 2.00 | 2000.0 |" in text
    assert "A split step takes 100 us of CPU time, and 3000 us under cProfile" in text
    assert f"| local | {MANY:,} | 3 (0.0002) | 80 (0.0049) | 1,024 (0.0625) | 7 |" in text
    assert f"- central, {FEW:,} split steps: a.py:1 (+80 bytes)" in text
