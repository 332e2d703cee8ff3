"""The result of a run is written to a file and a last line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sfactory.errors import CannotSaveError
from sfactory.experiment.summary import Summary, result_line
from sfactory.messages import PolicyLag

FIRST_KEYS = (
    "status env_steps agent_steps frames train_seconds fps sample_fps episodes episode_return_mean "
    "best_episode_return_mean episode_length_mean policy_lag updates"
)
LATER_KEYS = "true_objective_mean episode_extra_stats evaluation policies best_policy best_is_full ended_by"


def summary(fps: float | None = 100.0, lag: PolicyLag | None = None) -> Summary:
    return Summary("done", 1000, 1000, 4000, 10.0, fps, 120.0, 7, 21.5, None, 33.0, lag or PolicyLag(), 12)


def test_a_summary_is_written_with_the_agreed_keys_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with pytest.raises(CannotSaveError, match=r"summary\.json could not be written"):
        summary().write(tmp_path / "absent" / "summary.json")
    written = dataclasses.replace(
        summary(lag=PolicyLag(0.0, 1.25, 3.0)),
        true_objective_mean=0.75,
        episode_extra_stats={"kills": 2.5, "coins": 0.0},
        evaluation={"policy_version": 7, "episodes": 3, "episode_return_mean": None},
        policies=[{"env_steps": 600, "episode_return_mean": 20.0}, {"env_steps": 400, "episode_return_mean": None}],
        best_policy=0,
        best_is_full=True,
        ended_by="my_watch:Watch",
    )

    written.write(path)

    content = json.loads(path.read_text())
    assert list(content) == [*FIRST_KEYS.split(), *LATER_KEYS.split()]
    assert content["policy_lag"] == {"min": 0.0, "mean": 1.25, "max": 3.0}
    assert content["best_episode_return_mean"] is None
    assert Summary.read(path) == written
    assert written.ended("done") == written
    assert written.ended("interrupted") == dataclasses.replace(written, status="interrupted", ended_by=None)
    assert [item.name for item in tmp_path.iterdir()] == ["summary.json"]
    # An earlier version wrote the first keys alone.
    path.write_text(json.dumps({key: summary().to_dict()[key] for key in FIRST_KEYS.split()}))
    assert Summary.read(path) == summary()


def test_json_is_one_line_and_numbers_that_are_not_finite_are_null() -> None:
    text = json.dumps(summary(fps=float("inf"), lag=PolicyLag(0.0, float("nan"), None)).to_dict(), allow_nan=False)

    assert "\n" not in text
    assert json.loads(text)["fps"] is None
    assert json.loads(text)["policy_lag"] == {"min": 0.0, "mean": None, "max": None}


def test_the_result_line_is_one_line_and_ends_with_the_command_that_resumes() -> None:
    interrupted = result_line("interrupted", env_steps=5000, return_mean=195.25, resume_command="python -m x")
    ended = result_line("done", env_steps=5000, return_mean=1.0, ended_by="my_watch:Watch", resume_command="python")
    failed = result_line("failed", env_steps=0, return_mean=None, resume_command="a \\\n b")

    assert interrupted == "RESULT interrupted env_steps=5000 return=195.250 resume: python -m x"
    assert ended == "RESULT done env_steps=5000 return=1.000 ended by: my_watch:Watch resume: python"
    assert result_line("done", env_steps=8, return_mean=1234567.891) == "RESULT done env_steps=8 return=1234568"
    assert failed == "RESULT failed env_steps=0 return=none resume: a \\  b"
    assert result_line("failed", env_steps=7, return_mean=None) == "RESULT failed env_steps=7 return=none"
