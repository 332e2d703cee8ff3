"""What a learner tells of its datasets, and how it comes to its end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.clock import now
from sfactory.learner.learner import Publisher
from sfactory.learner.staging import REPLAYED
from sfactory.messages import LearnerTimes, PolicyLag, TrainStats
from tests.support.lone_learner import LoneLearner


def test_finish_raises_the_failure_of_the_pass_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = LoneLearner(tmp_path)
    publishing, let_go = threading.Event(), threading.Event()

    def fail(publisher: Publisher, train_step: int) -> None:
        publishing.set()
        let_go.wait(30.0)
        raise ValueError("weights are not finite")

    def learn() -> None:
        with pytest.raises(ValueError, match="not finite"):
            learner.learn()

    monkeypatch.setattr(Publisher, "publish_if_due", fail)
    training = threading.Thread(target=learn)
    training.start()
    assert publishing.wait(30.0)
    threading.Timer(0.2, let_go.set).start()

    with pytest.raises(ValueError, match="weights are not finite"):
        learner.learning.finish(save=True)

    training.join(30.0)
    assert CheckpointDir(tmp_path / "checkpoint_p0", keep=2).load() is None


def test_timings_are_reported_and_work_is_counted() -> None:
    learner = LoneLearner()

    for _ in range(3):
        learner.learn()
    learner.learning.report()

    times = learner.messages(LearnerTimes)
    assert times
    for message in times:
        assert message.grad_ms == message.update_ms > 0  # a dataset is one minibatch, and is passed over once
        assert message.publish_ms > 0
    # The first weights are published before anything is learned.
    assert (learner.row.get("datasets"), learner.row.get("publications")) == (3, 4)


def test_time_of_the_last_counted_steps_is_reported() -> None:
    learner = LoneLearner(num_epochs=2)
    learning, row = learner.learning, learner.row
    learning.progress.start_clock(now() - 1.0)

    dataset = learning.open(learner.area)
    learning.one_pass(dataset)
    counted_at, reported_at = row.get("counted_at"), row.get("train_seconds")
    learning.one_pass(dataset)

    assert 1.0 <= counted_at <= reported_at < row.get("train_seconds")
    assert (row.get("run_env_steps"), row.get("counted_at")) == (20, counted_at)


def test_nothing_is_learned_after_the_end(tmp_path: Path) -> None:
    learner = LoneLearner(tmp_path)
    learner.learn()
    learner.learning.finish(save=True)

    learner.learn()

    loaded = CheckpointDir(tmp_path / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    assert loaded.payload["env_steps"] == learner.learning.progress.env_steps == 20


def test_reported_lag_covers_steps_that_are_too_old() -> None:
    learner = LoneLearner(max_policy_lag=3)
    # The learner is at update 0: versions below 0 stand for steps that waited for so many updates.
    learner.area.scalars["policy_version"][:] = torch.tensor([0, -1, -3, -7], dtype=torch.int32)
    learner.area.scalars["valid"][2, :] = False  # never taken: what lies there is garbage
    learner.area.scalars["policy_version"][2, :] = torch.tensor([1, -99, -99, -99], dtype=torch.int32)

    learner.learn()
    learner.learning.report()

    (stats,) = learner.messages(TrainStats)
    assert stats.lag == PolicyLag(0.0, (0 + 1 + 3 + 7) / 4, 7.0)
    assert learner.learning.progress.env_steps == 2 * 4


def test_the_lag_of_replayed_steps_is_reported_apart() -> None:
    learner = LoneLearner(replay_proportion=1.0, replay_slots=10, max_policy_lag=3, max_replay_lag=50)
    scalars = learner.area.scalars
    scalars["policy_version"][:] = torch.tensor([0, -1, -40, -70], dtype=torch.int32)
    scalars[REPLAYED][:, 2:] = True
    scalars["valid"][1:3, 3] = False

    learner.learn()
    learner.learning.report()

    (stats,) = learner.messages(TrainStats)
    assert stats.lag == PolicyLag(0.0, 0.5, 1.0)
    assert stats.replay_lag == PolicyLag(40.0, (5 * 40 + 3 * 70) / 8, 70.0)
