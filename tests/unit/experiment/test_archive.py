"""A new run moves the old one out of its way, and deletes only runs that were moved before."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_of
from sfactory.config.saved_config import write_config
from sfactory.experiment.archive import EarlierRun
from sfactory.experiment.run_dir import RunDir
from tests.support.files import write_files


def fill(path: Path, mark: str, experiment: str = "exp") -> None:
    """Everything that a run leaves in its folder; ``mark`` identifies the run."""
    path.mkdir(parents=True, exist_ok=True)
    write_config(path, config_of({"env": mark, "experiment": experiment}), {})
    names = "metrics.jsonl summary.json sf_log.txt git.diff git_0123456789abcdef.diff run.json matches.json"
    names += " population.json population.jsonl population.svg report.html"
    write_files(path, dict.fromkeys(names.split(), mark))
    (path / "events.out.tfevents.1700000000.host.1").write_bytes(b"\0")
    (path / "policy_0").mkdir(exist_ok=True)
    (path / "policy_0" / "events.out.tfevents.1700000000.host.1").write_bytes(b"\0")
    (path / ".tmp-12-0123456789ab").write_bytes(b"half")
    write_files(path / "videos", dict.fromkeys(("eval_000000000100.mp4", "eval_000000000100.gif"), mark))
    write_files(path / "checkpoint_p0", {"diverged_batch.pt": mark})
    directory = CheckpointDir(path / "checkpoint_p0", keep=2)
    payload = {"w": torch.ones(2)}
    directory.save(payload, 2, 200)
    directory.save(payload, 1, 100)  # renames the other one
    directory.save_best(payload, 1, 100, metric=-1.5)
    directory.save_milestone(payload, 1, 100)


def again(train_dir: Path, behavior: Literal["restart", "overwrite"], mark: str) -> Path | None:
    """Start the run again with that behavior, and leave ``mark`` in its folder; returns where the old one went."""
    with RunDir.open(train_dir, "exp") as run, EarlierRun(run) as earlier:
        earlier.archive(behavior)
        fill(run.path, mark)
        earlier.replace_older()
    return earlier.archived


def fails(train_dir: Path, behavior: Literal["restart", "overwrite"], mark: str, left: dict[str, str]) -> None:
    """A start with that behavior that fails before it has trained, and leaves these files."""
    with RunDir.open(train_dir, "exp") as run, EarlierRun(run) as earlier:
        earlier.archive(behavior)
        if left:
            write_config(run.path, config_of({"env": mark, "experiment": "exp"}), {})
        write_files(run.path, {"sf_log.txt": mark, **left})
        assert earlier.put_back()
        earlier.replace_older()
        assert not run.lost


@pytest.mark.parametrize(
    ("behavior", "left"),
    [
        ("restart", {"exp_old0003": "failed", "exp_old0004": "failed again"}),
        ("overwrite", {"exp_overwritten0002": "failed again"}),
    ],
)
def test_starts_that_fail_before_they_train_cost_no_earlier_run(
    tmp_path: Path, behavior: Literal["restart", "overwrite"], left: dict[str, str]
) -> None:
    for mark in ("first", "second"):
        again(tmp_path, behavior, mark)
    before = folders(tmp_path)

    for mark in ("refused", "refused again"):
        fails(tmp_path, behavior, mark, {})
        assert folders(tmp_path) == before
        assert len(list(tmp_path.iterdir())) == 2
    for mark in ("failed", "failed again"):
        fails(tmp_path, behavior, mark, {"checkpoint_p0/checkpoint_000000000_0.pth": "of no step"})

    assert before["exp"] == "second"
    assert folders(tmp_path) == before | left
    with RunDir.open(tmp_path, "exp"):
        assert len(list(tmp_path.iterdir())) == 2 + len(left)


def test_a_run_that_has_not_trained_replaces_none_that_has(tmp_path: Path) -> None:
    for mark in ("first", "second"):
        again(tmp_path, "overwrite", mark)
    with RunDir.open(tmp_path, "exp") as run, EarlierRun(run) as earlier:  # it is killed before it has saved
        earlier.archive("overwrite")
        write_config(run.path, config_of({"env": "killed", "experiment": "exp"}), {})

    again(tmp_path, "overwrite", "third")

    assert folders(tmp_path) == {
        "exp": "third",
        "exp_overwritten": "first",
        "exp_overwritten0001": "second",
        "exp_overwritten0002": "killed",
    }


def test_a_run_that_has_not_trained_is_put_back_as_well(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, "exp") as run:
        write_config(run.path, config_of({"env": "untrained", "experiment": "exp"}), {})

    fails(tmp_path, "overwrite", "failed", {"checkpoint_p0/checkpoint_000000000_0.pth": "of no step"})

    assert folders(tmp_path) == {"exp": "untrained", "exp_overwritten0001": "failed"}


def test_an_archived_run_that_is_in_use_is_not_put_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    again(tmp_path, "overwrite", "first")
    with RunDir.open(tmp_path, "exp") as run, EarlierRun(run) as earlier:
        earlier.archive("overwrite")
        assert earlier.archived is not None
        with RunDir.open(tmp_path, earlier.archived.name):
            assert not earlier.put_back()

    assert folders(tmp_path) == {"exp_overwritten": "first"}
    assert "is in use by process" in caplog.text


def folders(train_dir: Path) -> dict[str, str]:
    """Mark of the run in each folder, by its name."""
    configs = {path.parent.name: path for path in sorted(train_dir.glob("*/config.json"))}
    return {name: str(json.loads(path.read_text())["config"]["env"]) for name, path in configs.items()}


def test_restarted_runs_are_kept_under_the_first_free_number(tmp_path: Path) -> None:
    assert again(tmp_path, "restart", "first") is None
    assert [path.name for path in tmp_path.iterdir()] == ["exp"]
    (tmp_path / "exp_old0002").write_text("in the way")

    moved = [again(tmp_path, "restart", mark) for mark in ("second", "third")]

    assert moved == [tmp_path / "exp_old0001", tmp_path / "exp_old0003"]
    assert folders(tmp_path) == {"exp": "third", "exp_old0001": "first", "exp_old0003": "second"}
    loaded = CheckpointDir(tmp_path / "exp_old0001" / "checkpoint_p0", keep=1).load()
    assert loaded is not None
    assert loaded.path.name == "checkpoint_000000001_100.pth"


def test_an_overwritten_run_replaces_the_one_before_unless_that_is_in_use(tmp_path: Path) -> None:
    moved = [again(tmp_path, "overwrite", mark) for mark in ("first", "second", "third")]

    assert moved == [None, tmp_path / "exp_overwritten", tmp_path / "exp_overwritten"]
    assert folders(tmp_path) == {"exp": "third", "exp_overwritten": "second"}
    assert len(list(tmp_path.iterdir())) == 2
    with RunDir.open(tmp_path, "exp_overwritten"):
        again(tmp_path, "overwrite", "fourth")
    assert folders(tmp_path) == {"exp": "fourth", "exp_overwritten": "second", "exp_overwritten0001": "third"}


@pytest.mark.parametrize(
    "place",
    [
        "replay.mp4",
        "videos/1.mp4",
        "checkpoint_p0/mine.pth",
        "checkpoint_p0/milestones/diverged_batch.pt",
        "checkpoint_p0/milestones/mine/a.txt",
        "checkpoint_p0/checkpoint_000000001_100.pth/inner",
        "git_mine.diff",
        "sf_log.txt.d/a",
    ],
)
def test_an_overwritten_run_with_a_file_of_the_user_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    fill(tmp_path / "exp", "first")
    again(tmp_path, "overwrite", "second")
    if place.endswith("inner"):
        (tmp_path / "exp_overwritten" / place).parent.unlink()
    write_files(tmp_path / "exp_overwritten", {place: "precious"})
    before = sorted(tmp_path.glob("exp_overwritten/**/*"))

    with caplog.at_level(logging.WARNING):
        moved = [again(tmp_path, "overwrite", mark) for mark in ("third", "fourth")]

    # The run under the name with a number holds no file of the user, and is replaced.
    assert moved == [tmp_path / "exp_overwritten0001"] * 2
    assert folders(tmp_path) == {"exp": "fourth", "exp_overwritten": "first", "exp_overwritten0001": "third"}
    assert sorted(tmp_path.glob("exp_overwritten/**/*")) == before
    assert (tmp_path / "exp_overwritten" / place).read_text() == "precious"
    assert str((tmp_path / "exp_overwritten" / place).relative_to(tmp_path).parts[1]) in caplog.text


def test_a_link_in_an_overwritten_run_is_not_followed(tmp_path: Path) -> None:
    precious = write_files(tmp_path / "elsewhere", {"checkpoint_000000001_100.pth": "precious"})
    train_dir = tmp_path / "train_dir"
    fill(train_dir / "exp", "first")
    again(train_dir, "overwrite", "second")
    (train_dir / "exp_overwritten" / "checkpoint_p1").symlink_to(precious)

    assert again(train_dir, "overwrite", "third") == train_dir / "exp_overwritten0001"
    (train_dir / "exp_overwritten").rename(train_dir / "moved")
    (train_dir / "exp_overwritten").symlink_to(train_dir / "moved")
    assert again(train_dir, "overwrite", "fourth") == train_dir / "exp_overwritten0001"

    assert (precious / "checkpoint_000000001_100.pth").read_text() == "precious"
    assert folders(train_dir)["moved"] == "first"


@pytest.mark.parametrize("config", [None, "{half", "[]", '{"config": 3}'])
def test_a_run_of_the_same_name_that_was_not_overwritten_is_kept(tmp_path: Path, config: str | None) -> None:
    other = tmp_path / "exp_overwritten"
    fill(other, "own", experiment="exp_overwritten")
    if config is not None:
        (other / "config.json").write_text(config)
    before = {path: path.read_bytes() for path in other.iterdir() if path.is_file()}
    fill(tmp_path / "exp", "first")

    assert again(tmp_path, "overwrite", "second") == tmp_path / "exp_overwritten0001"

    assert {path: path.read_bytes() for path in before} == before


def test_a_removal_that_was_cut_short_is_continued(tmp_path: Path) -> None:
    fill(tmp_path / "exp", "first")
    again(tmp_path, "overwrite", "second")
    half_gone = tmp_path / "exp_overwritten"
    shutil.rmtree(half_gone / "checkpoint_p0")
    (half_gone / "metrics.jsonl").unlink()

    assert again(tmp_path, "overwrite", "third") == half_gone
    for path in half_gone.rglob("*"):
        if path.is_file() and path.name != ".lock":
            path.unlink()
    for folder in ("checkpoint_p0", "policy_0", "videos"):
        shutil.rmtree(half_gone / folder)
    assert again(tmp_path, "overwrite", "fourth") == half_gone

    assert folders(tmp_path) == {"exp": "fourth", "exp_overwritten": "third"}
