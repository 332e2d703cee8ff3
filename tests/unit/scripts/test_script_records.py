"""What scripts keep of their measurements: rounds, paired ratios, the machine, tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from scripts.markdown import table
from scripts.ratios import Spread, paired, ratio
from scripts.record import cpu_model, instructions, machine
from scripts.rounds import alternating, medians, side_by_side
from sfactory.system.cores import Cores


def test_medians_leave_out_what_has_no_numbers() -> None:
    assert medians({"a": [3.0, 1.0, 2.0], "b": [1.0, 4.0], "c": []}) == {"a": 2.0, "b": 2.5}


def test_rounds_alternate_between_systems() -> None:
    count = itertools.count(1)

    results = alternating({"a": lambda: next(count), "b": lambda: next(count)}, rounds=2)

    assert results == {"a": [1, 3], "b": [2, 4]}


def test_rounds_side_by_side_begin_with_another_system_each() -> None:
    begun: list[list[str]] = []

    def measure(names: Sequence[str]) -> dict[str, int]:
        begun.append(list(names))
        return {name: len(begun) * 10 + place for place, name in enumerate(names)}

    results = side_by_side(["a", "b"], measure, rounds=3)

    assert begun == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert results == {"a": [10, 21, 30], "b": [11, 20, 31]}


def test_figures_of_the_same_round_are_paired() -> None:
    assert paired({1: 10.0, 2: 30.0, 4: 8.0}, {1: 5.0, 2: 10.0, 3: 1.0}) == {1: 2.0, 2: 3.0}


def test_a_ratio_is_the_median_of_ratios_with_its_bounds() -> None:
    found = ratio({1: 10.0, 2: 30.0, 3: 8.0}, {1: 5.0, 2: 10.0, 3: 1.0})

    # Of the medians it would be 2.
    assert found == Spread(median=3.0, least=2.0, most=8.0)
    assert ratio({1: 10.0}, {2: 5.0}) is None


def test_a_spread_is_kept_and_told() -> None:
    spread = Spread(0.71571, 0.66912, 1.0)

    assert spread.to_json() == {"median": 0.7157, "min": 0.6691, "max": 1.0}
    assert Spread.from_json(spread.to_json()).as_share() == "72% (67-100)"
    assert Spread(3.8549, 3.83, 5.702).as_times() == "3.85 times (3.83-5.7)"
    assert Spread.of([4.0, 1.0, 2.0, 3.0]) == Spread(2.5, 1.0, 4.0)


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [[1, "x"], [2, ""]]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 |  |"


def test_the_model_of_the_cpu_is_read() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: Some CPU\ncpu MHz\t: 1\nmodel name\t: Other\n") == "Some CPU"


def test_what_the_processor_has_units_for_is_told() -> None:
    assert instructions("flags\t\t: fpu avx avx2 sse avx512f\nflags\t\t: avx512_bf16\n") == ["avx2", "avx512f"]
    assert instructions("Features\t: fp asimd bf16\n") == ["bf16"]
    assert instructions("nothing") == []


def test_the_machine_is_this_one() -> None:
    facts = machine()

    assert facts["cores"] == Cores.available().count
    assert {"date", "cpu", "instructions", "python", "torch"} <= facts.keys()
