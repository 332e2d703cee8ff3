"""The best policy on disk is the one that earned the best mean return, whatever comes before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.config.schema import AlgoConfig, CheckpointConfig, Config, LearnerConfig, OptimConfig
from sfactory.learner import keeper as keeper_module
from sfactory.learner.keeper import CheckpointKeeper
from sfactory.learner.progress import Progress
from sfactory.learner.trainer import Trainer
from sfactory.run.wiring import Wiring
from tests.support.parts import VECTOR, small_layout, tiny_model

NEVER = 1e9
LOWEST = float("-inf")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of itself, and the number that its weights carry."""

    mark: float
    best_return: float


class Desk:
    """A keeper with what it saves to; its model's weights carry a number, so that it can be told which were saved."""

    def __init__(self, path: Path, *, save_best_every_sec: float = 0.0, save_best_after: int = 0) -> None:
        checkpoint = CheckpointConfig(
            save_every_sec=NEVER, save_best_every_sec=save_best_every_sec, save_best_after=save_best_after
        )
        wiring = Wiring(VECTOR, small_layout(), weight_bytes=8)
        self.path = path
        self.control = wiring.control
        self.trainer = Trainer(tiny_model(), AlgoConfig(), OptimConfig(), LearnerConfig())
        self.progress = Progress(env_steps=100)
        setup = wiring.learner(0, Config(checkpoint=checkpoint), 1, "cpu", 1, str(path))
        self.keeper = CheckpointKeeper(setup, self.trainer, self.progress, wiring.status.row("sf-learner-0"))

    def learn(self, mark: float, mean_return: float) -> None:
        """One dataset later: the weights carry ``mark``, and main says that the mean return is ``mean_return``."""
        self.trainer.train_step += 1
        self.progress.env_steps += 100
        with torch.no_grad():
            self.trainer.model.value_head.weight.fill_(mark)
        self.control.tell_mean(0, mean_return)

    def best(self) -> Saved | None:
        """The best policy on disk."""
        loaded = CheckpointDir(self.path, keep=2).load("best")
        if loaded is None:
            return None
        marks = {float(mark) for mark in loaded.payload["model"]["value_head.weight"].flatten()}
        assert len(marks) == 1
        return Saved(marks.pop(), loaded.payload["best_return"])


def test_without_a_mean_return_there_is_no_best_policy(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    desk.keeper.after_dataset()
    desk.keeper.finish()

    assert desk.best() is None
    assert desk.progress.best_return == LOWEST


def test_a_policy_is_saved_as_the_best_when_its_mean_return_beats_the_best_saved(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    found = []
    for mark, mean_return in [(1.0, 10.0), (2.0, 9.0), (3.0, 10.0), (4.0, 11.0), (5.0, -3.0)]:
        desk.learn(mark, mean_return)
        desk.keeper.after_dataset()
        found.append(desk.best())

    first, second = Saved(1.0, 10.0), Saved(4.0, 11.0)
    assert found == [first, first, first, second, second]


def test_a_peak_that_is_over_when_saving_is_allowed_again_does_not_store_the_collapsed_policy(tmp_path: Path) -> None:
    desk = Desk(tmp_path, save_best_every_sec=NEVER)
    desk.learn(1.0, 50.0)
    desk.keeper.after_dataset()  # too early: the first save may come only after the interval
    desk.learn(2.0, 3.0)

    desk.keeper.finish()

    # What is stored, for want of a better one, is called what it is worth.
    assert desk.best() == Saved(2.0, 3.0)


def test_a_best_policy_at_the_very_end_is_saved_whatever_the_interval(tmp_path: Path) -> None:
    desk = Desk(tmp_path, save_best_every_sec=NEVER)
    desk.learn(1.0, 50.0)
    desk.keeper.after_dataset()
    assert desk.best() is None

    desk.keeper.finish()

    assert desk.best() == Saved(1.0, 50.0)
    latest = CheckpointDir(tmp_path, keep=2).load()
    assert latest is not None
    assert latest.payload["best_return"] == 50.0


@pytest.mark.parametrize(("after", "saved"), [(201, None), (200, Saved(1.0, 50.0))])
def test_no_policy_is_the_best_before_its_time(tmp_path: Path, after: int, saved: Saved | None) -> None:
    desk = Desk(tmp_path, save_best_after=after)
    desk.learn(1.0, 50.0)  # at env step 200

    desk.keeper.after_dataset()
    desk.keeper.finish()

    assert desk.best() == saved


@pytest.mark.parametrize(
    ("mark", "mean_return", "saved"),
    [
        pytest.param(2.0, 60.0, Saved(2.0, 60.0), id="still good"),
        pytest.param(2.0, 4.0, Saved(0.5, 5.0), id="collapsed meanwhile"),
    ],
)
def test_a_best_policy_that_could_not_be_saved_is_tried_again_for_what_it_is_worth_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: float, mean_return: float, saved: Saved
) -> None:
    monkeypatch.setattr(keeper_module, "_RETRY_S", 0.0)
    desk, folder, elsewhere = Desk(tmp_path / "here"), tmp_path / "here", tmp_path / "elsewhere"
    desk.learn(0.5, 5.0)
    desk.keeper.after_dataset()
    folder.rename(elsewhere)
    folder.write_text("a file where a folder should be")
    desk.learn(1.0, 50.0)

    desk.keeper.after_dataset()

    assert desk.progress.best_return == 5.0
    folder.unlink()
    elsewhere.rename(folder)
    desk.learn(mark, mean_return)
    desk.keeper.after_dataset()
    assert desk.best() == saved


def test_a_resumed_run_has_to_beat_the_best_policy_on_disk(tmp_path: Path) -> None:
    killed = Desk(tmp_path)
    killed.learn(1.0, 5.0)
    killed.keeper.save()
    # Then killed: the latest checkpoint has not heard of the best one.
    killed.learn(2.0, 50.0)
    killed.keeper.after_dataset()
    resumed = Desk(tmp_path)

    resumed.keeper.load()
    found = []
    for mark, mean_return in [(3.0, 49.0), (4.0, 51.0)]:
        resumed.learn(mark, mean_return)
        resumed.keeper.after_dataset()
        found.append(resumed.best())

    assert found == [Saved(2.0, 50.0), Saved(4.0, 51.0)]


def test_a_resumed_run_whose_best_policy_is_gone_saves_the_next_best(tmp_path: Path) -> None:
    earlier = Desk(tmp_path)
    earlier.learn(1.0, 50.0)
    earlier.keeper.finish()
    for path in tmp_path.glob("best_*"):
        path.unlink()
    resumed = Desk(tmp_path)

    resumed.keeper.load()
    resumed.learn(2.0, 10.0)
    resumed.keeper.finish()

    assert resumed.best() == Saved(2.0, 10.0)
