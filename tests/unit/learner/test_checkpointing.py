"""Which checkpoints are saved, and when: the latest, the best and milestones, whatever fails in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import CannotSaveError, DivergedError
from sfactory.learner import checkpointing as checkpointing
from tests.support.desk import LOWEST, NEVER, Desk, Saved


def test_better_policy_is_saved_as_the_best(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    found = []
    for mark, mean_return in [(1.0, 10.0), (2.0, 9.0), (3.0, 10.0), (4.0, 11.0), (5.0, -3.0)]:
        desk.learn(mark, mean_return)
        desk.checkpointer.after_dataset()
        found.append(desk.best())

    first, second = Saved(1.0, 10.0), Saved(4.0, 11.0)
    assert found == [first, first, first, second, second]


def test_best_policy_at_the_end_is_saved_within_the_interval(tmp_path: Path) -> None:
    desk = Desk(tmp_path, save_best_every_sec=NEVER)
    desk.learn(1.0, 50.0)
    desk.checkpointer.after_dataset()
    assert desk.best() is None

    desk.checkpointer.finish()

    assert desk.best() == Saved(1.0, 50.0)
    latest = CheckpointDir(tmp_path, keep=2).load()
    assert latest is not None
    assert latest.payload["best_objective"] == 50.0


def test_latest_is_saved_although_the_best_cannot_be(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "best_000000001_200_50.000.pth").mkdir()  # where the best policy is to be saved
    desk.learn(1.0, 50.0)

    with pytest.raises(CannotSaveError, match="best_000000001_200"):
        desk.checkpointer.finish()

    latest = CheckpointDir(tmp_path, keep=2).load()
    assert latest is not None
    assert latest.payload["env_steps"] == 200


@pytest.mark.parametrize(("after", "saved"), [(201, None), (200, Saved(1.0, 50.0))])
def test_no_policy_is_the_best_before_save_best_after(tmp_path: Path, after: int, saved: Saved | None) -> None:
    desk = Desk(tmp_path, save_best_after=after)
    desk.learn(1.0, 50.0)  # at env step 200

    desk.checkpointer.after_dataset()
    desk.checkpointer.finish()

    assert desk.best() == saved


@pytest.mark.parametrize(
    ("mark", "mean_return", "saved"),
    [
        pytest.param(2.0, 60.0, Saved(2.0, 60.0), id="still good"),
        pytest.param(2.0, 4.0, Saved(0.5, 5.0), id="collapsed meanwhile"),
    ],
)
def test_failed_save_of_the_best_policy_is_repeated_with_its_present_objective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: float, mean_return: float, saved: Saved
) -> None:
    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    desk, folder, elsewhere = Desk(tmp_path / "here"), tmp_path / "here", tmp_path / "elsewhere"
    desk.learn(0.5, 5.0)
    desk.checkpointer.after_dataset()
    folder.rename(elsewhere)
    folder.write_text("a file where a folder should be")
    desk.learn(1.0, 50.0)

    desk.checkpointer.after_dataset()

    assert desk.progress.best_objective == 5.0
    folder.unlink()
    elsewhere.rename(folder)
    desk.learn(mark, mean_return)
    desk.checkpointer.after_dataset()
    assert desk.best() == saved


def test_a_resumed_run_has_to_beat_the_best_policy_on_disk(tmp_path: Path) -> None:
    killed = Desk(tmp_path)
    killed.learn(1.0, 5.0)
    killed.checkpointer.save()
    # Then killed: the latest checkpoint has not heard of the best one.
    killed.learn(2.0, 50.0)
    killed.checkpointer.after_dataset()
    resumed = Desk(tmp_path)

    resumed.checkpointer.load()
    found = []
    for mark, mean_return in [(3.0, 49.0), (4.0, 51.0)]:
        resumed.learn(mark, mean_return)
        resumed.checkpointer.after_dataset()
        found.append(resumed.best())

    assert found == [Saved(2.0, 50.0), Saved(4.0, 51.0)]


def test_milestones_are_saved_at_multiples_of_their_interval(tmp_path: Path) -> None:
    desk = Desk(tmp_path, save_milestones_sec=10.0)

    found = []
    for seconds in (0.0, 9.0, 10.0, 11.0, 19.0, 45.0, 49.0, 50.5):
        desk.train_until(seconds)
        desk.checkpointer.after_dataset()
        found.append(desk.milestones())

    assert found[0] == found[1] == []
    assert found[2] == found[3] == found[4] == [10.0]
    # Time that was spent in one long dataset makes one milestone, not three.
    assert found[5] == found[6] == [10.0, 45.0]
    assert found[7] == [10.0, 45.0, 50.5]


def test_a_resumed_run_has_its_milestones_at_the_times_of_one_that_never_stopped(tmp_path: Path) -> None:
    earlier = Desk(tmp_path, save_milestones_sec=10.0)
    earlier.train_until(8.0)
    earlier.checkpointer.finish()
    resumed = Desk(tmp_path, save_milestones_sec=10.0)

    resumed.checkpointer.load()
    found = []
    for seconds in (9.0, 12.0):
        resumed.train_until(seconds)
        resumed.checkpointer.after_dataset()
        found.append(resumed.milestones())

    assert found == [[], [12.0]]


def test_a_milestone_that_cannot_be_saved_stays_due_and_the_others_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    desk = Desk(tmp_path, save_every_sec=1e-9, save_milestones_sec=10.0)
    in_the_way = tmp_path / "milestones"
    in_the_way.write_text("a file where a folder should be")
    desk.train_until(11.0)
    desk.control.tell_objective(0, 5.0)
    desk.checkpointer.after_dataset()
    latest = CheckpointDir(tmp_path, keep=2).load()
    assert latest is not None
    assert latest.payload["train_seconds"] == 11.0
    assert desk.best() == Saved(11.0, 5.0)
    in_the_way.unlink()

    desk.train_until(12.0)
    desk.checkpointer.after_dataset()

    assert desk.milestones() == [12.0]


def test_run_resumes_from_its_newest_milestone(tmp_path: Path) -> None:
    earlier = Desk(tmp_path, save_milestones_sec=10.0)
    earlier.train_until(11.0)
    earlier.checkpointer.after_dataset()
    earlier.train_until(15.0)
    earlier.checkpointer.finish()
    back = Desk(tmp_path, save_milestones_sec=10.0, load_checkpoint_kind="milestone")

    back.checkpointer.load()
    assert (back.progress.env_steps, back.progress.train_seconds, back.trainer.train_step) == (200, 11.0, 1)
    back.checkpointer.finish()

    latest = CheckpointDir(tmp_path, keep=2).load()
    assert latest is not None
    assert latest.payload["env_steps"] == 200
    assert [path.name for path in tmp_path.glob("set_aside_*.pth")] == ["set_aside_checkpoint_000000002_300.pth"]


def back_to_a_milestone(path: Path) -> Desk:
    """A run whose best policy (worth 50) came after its only milestone, resumed from that milestone."""
    earlier = Desk(path, save_milestones_sec=10.0)
    earlier.train_until(11.0)
    earlier.checkpointer.after_dataset()
    earlier.learn(2.0, 50.0)
    earlier.checkpointer.finish()
    back = Desk(path, save_milestones_sec=10.0, load_checkpoint_kind="milestone")
    back.checkpointer.load()
    return back


def test_best_policy_from_after_the_milestone_is_set_aside(tmp_path: Path) -> None:
    back = back_to_a_milestone(tmp_path)

    bar = back.progress.best_objective
    back.learn(3.0, 20.0)
    back.checkpointer.after_dataset()

    assert bar == LOWEST
    assert back.best() == Saved(3.0, 20.0)
    assert len(list(tmp_path.glob("set_aside_best_*_50.000.pth"))) == 1


def test_run_resumed_from_its_best_policy_has_to_beat_it(tmp_path: Path) -> None:
    earlier = Desk(tmp_path, save_milestones_sec=10.0)
    earlier.learn(1.0, 50.0)
    earlier.checkpointer.after_dataset()
    earlier.train_until(11.0)
    earlier.checkpointer.after_dataset()
    earlier.checkpointer.finish()
    back = Desk(tmp_path, save_milestones_sec=10.0, load_checkpoint_kind="best")

    back.checkpointer.load()
    bar = back.progress.best_objective
    back.learn(2.0, 49.0)
    back.checkpointer.finish()

    assert bar == 50.0
    assert back.best() == Saved(1.0, 50.0)
    assert CheckpointDir(tmp_path, keep=2).load("milestone") is None
    assert len(list((tmp_path / "milestones").glob("set_aside_*.pth"))) == 1


def test_saved_steps_are_those_of_the_best_policy_without_a_latest_checkpoint(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for mean_return in (1.0, 2.0):
        desk.learn(mean_return, mean_return=mean_return)
        desk.checkpointer.after_dataset()

        assert desk.row.get("saved_env_steps") == desk.progress.env_steps

    desk.checkpointer.save()
    saved = desk.progress.env_steps
    desk.learn(3.0, mean_return=3.0)
    desk.checkpointer.after_dataset()

    assert desk.best() == Saved(3.0, 3.0)
    assert desk.row.get("saved_env_steps") == saved


def test_failed_checkpoint_stays_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    desk = Desk(tmp_path, save_every_sec=0.0)
    desk.checkpointer._save_due.seconds = NEVER  # once it is saved
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointDir, "save", lambda *_: (_ for _ in ()).throw(CannotSaveError("no room")))
        desk.learn(1.0, LOWEST)
        desk.checkpointer.after_dataset()
    assert CheckpointDir(tmp_path, keep=2).load() is None

    for mark in (2.0, 3.0):
        desk.learn(mark, LOWEST)
        desk.checkpointer.after_dataset()

    latest = CheckpointDir(tmp_path, keep=2).load()
    assert latest is not None
    assert latest.payload["train_step"] == 2
    assert desk.row.get("save_s") > 0


@pytest.mark.parametrize("due", ["latest", "best", "milestone"])
def test_weights_that_are_not_finite_are_saved_as_nothing(tmp_path: Path, due: str) -> None:
    desk = Desk(
        tmp_path,
        save_every_sec=0.0 if due == "latest" else NEVER,
        save_milestones_sec=10.0 if due == "milestone" else -1.0,
    )
    desk.learn(1.0, 10.0)
    desk.checkpointer.save(10.0)
    desk.checkpointer.after_dataset()
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    desk.train_until(20.0)
    desk.learn(float("nan"), 20.0 if due == "best" else 0.0)

    for save in (desk.checkpointer.after_dataset, desk.checkpointer.finish, desk.checkpointer.save):
        with pytest.raises(DivergedError, match="not finite"):
            save()

    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    assert desk.best() == Saved(1.0, 10.0)
