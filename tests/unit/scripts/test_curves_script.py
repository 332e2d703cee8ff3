"""Learning curves of several seeds are collected, drawn as one, and set against a bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.draw_curves import POINTS, Curve, band, collect, draw, thinned
from scripts.results_table import row, steps_to, told

SCORE = "train/true_objective_mean"


def a_run(folder: Path, scores: list[float | None]) -> Path:
    """The folder of a run that told these scores, one every 1,000 env steps."""
    folder.mkdir()
    rows = [{"env_steps": 1000 * at, SCORE: score} for at, score in enumerate(scores, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_all_runs_of_a_label_are_collected_beside_what_is_there(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "1", [None, 2.0, 3.0004]), a_run(tmp_path / "2", [1.0, 4.0])]
    into = tmp_path / "folder" / "curves.json"

    collect(runs[:1], "old", SCORE, into)
    collect(runs, "plain", SCORE, into)
    collect(runs[1:], "old", SCORE, into)

    first, second = {"env_steps": [2000, 3000], "values": [2.0, 3.0]}, {"env_steps": [1000, 2000], "values": [1.0, 4.0]}
    assert json.loads(into.read_text()) == {
        "old": {"metric": SCORE, "runs": [second]},
        "plain": {"metric": SCORE, "runs": [first, second]},
    }


def test_steps_can_be_those_of_one_policy(tmp_path: Path) -> None:
    folder, into = tmp_path / "1", tmp_path / "curves.json"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"env_steps": 300, "policy_0/steps": 100, SCORE: 2.0}) + "\n")

    collect([folder], "apart", SCORE, into, steps="policy_0/steps")

    assert json.loads(into.read_text())["apart"]["runs"] == [{"env_steps": [100], "values": [2.0]}]


def test_a_run_that_never_told_the_metric_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"metrics.jsonl has no {SCORE}"):
        collect([a_run(tmp_path / "1", [None])], "plain", SCORE, tmp_path / "curves.json")


def test_long_curves_are_thinned_and_keep_their_end_and_their_best() -> None:
    values = [float(at % 1000) for at in range(1301)]

    curve = thinned([10 * at for at in range(1301)], values)

    assert POINTS - 12 <= len(curve.values) <= POINTS + 2
    assert curve.env_steps[-1] == 13_000
    assert max(curve.values) == 999.0
    assert list(curve.env_steps) == sorted(curve.env_steps)


def test_between_its_points_a_curve_is_straight_and_beyond_them_level() -> None:
    curve = Curve([10, 20, 40], [1.0, 3.0, 7.0])

    assert [curve.at(step) for step in (5, 10, 15, 30, 40, 50)] == [1.0, 1.0, 2.0, 5.0, 7.0, 7.0]


def test_runs_are_put_together_where_all_of_them_have_been() -> None:
    together = band([Curve([0, 10, 20], [0.0, 10.0, 20.0]), Curve([5, 15], [9.0, 9.0]), Curve([0, 15], [0.0, 30.0])])

    assert together.env_steps == [5, 10, 15]
    assert together.least == [5.0, 9.0, 9.0]
    assert together.median == [9.0, 10.0, 15.0]
    assert together.most == [10.0, 20.0, 30.0]


def test_a_label_is_one_line_and_a_band_of_several_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "curves.json"
    collect([a_run(tmp_path / "1", [1.0, 5.0]), a_run(tmp_path / "2", [2.0, 4.0])], "two seeds", SCORE, file)
    collect([tmp_path / "1"], "one seed", SCORE, file)

    text = draw(file, "Scores", bar=3.0).read_text()

    assert text.count('id="FillBetweenPolyCollection') + text.count('id="PolyCollection') == 1
    for words in ("two seeds", "one seed", "Scores", "bar: 3"):
        assert words in text


def test_a_bar_is_reached_at_the_first_point_that_is_not_below_it() -> None:
    curve = Curve([1000, 2000, 3000], [4.0, 10.0, 9.0])

    assert steps_to(10.0, curve) == 2000
    assert steps_to(10.5, curve) is None


def test_a_row_of_the_table_has_every_run_and_their_median() -> None:
    fast, slow, never = Curve([1, 2000], [0, 12.0]), Curve([1, 9000], [0, 11.0]), Curve([1, 9000], [0, 9.4])

    assert row("x", [fast, never, slow], 10.0) == ["x", "12.0, 9.4, 11.0", "2,000, not reached, 9,000", "9,000"]
    assert row("x", [never, slow, never], 10.0)[-1] == "not reached"


def test_the_table_has_a_row_for_each_label() -> None:
    labels = {name: {"metric": SCORE, "runs": [{"env_steps": [5], "values": [475.0]}]} for name in ("a", "b")}

    assert told(labels, 475.0).splitlines()[2:] == ["| a | 475.0 | 5 | 5 |", "| b | 475.0 | 5 | 5 |"]
