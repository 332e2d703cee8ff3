"""Reports of a learner about its datasets, what it publishes, and its end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from sfactory.clock import now
from sfactory.errors import DivergedError
from sfactory.learner.learner import Publisher
from sfactory.learner.staging import REPLAYED
from sfactory.messages import LearnerTimes, PolicyLag, TrainStats
from tests.support.lone_learner import LoneLearner


@pytest.mark.parametrize("published", [True, False])
def test_weights_that_are_not_finite_are_not_published(published: bool) -> None:
    learning = LoneLearner(use_rnn=True, use_cpc=True, cpc_forward_steps=3, cpc_time_subsample=4).learning
    module = learning.trainer.model if published else learning.trainer.auxiliary
    assert module is not None
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = float("inf")

    with pytest.raises(DivergedError, match="not published or saved"):
        learning.publisher.publish(0)


def test_finish_raises_the_failure_of_the_pass_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = LoneLearner(tmp_path)
    publishing, resume = threading.Event(), threading.Event()

    def fail(publisher: Publisher, train_step: int) -> None:
        publishing.set()
        resume.wait(30.0)
        raise ValueError("weights are not finite")

    def learn() -> None:
        with pytest.raises(ValueError, match="not finite"):
            learner.learn()

    monkeypatch.setattr(Publisher, "publish_if_due", fail)
    training = threading.Thread(target=learn)
    training.start()
    assert publishing.wait(30.0)
    threading.Timer(0.2, resume.set).start()

    with pytest.raises(ValueError, match="weights are not finite"):
        learner.learning.finish(save=True)

    training.join(30.0)
    assert learner.saved() is None


def test_timings_are_reported_and_work_is_counted(tmp_path: Path) -> None:
    learner = LoneLearner(tmp_path)
    for _ in range(3):
        learner.learn()
    learner.learning.finish(save=True)
    learner.learn()  # nothing is learned after the end

    times = learner.messages(LearnerTimes)
    assert times
    for message in times:
        assert message.grad_ms == message.update_ms > 0  # a dataset is one minibatch, and is passed over once
        assert message.publish_ms > 0
    # The first weights are published before anything is learned.
    assert learner.row.get("publications") == 4
    assert 0 < learner.row.get("update_s") < 60
    saved = learner.saved()
    assert saved is not None
    assert saved["env_steps"] == learner.learning.progress.env_steps == 60


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


def test_reported_lag_covers_masked_steps_and_is_apart_for_replayed_ones() -> None:
    learner = LoneLearner(replay_proportion=1.0, replay_slots=10, max_policy_lag=3, max_replay_lag=50)
    scalars = learner.area.scalars
    # The learner is at update 0: versions below 0 stand for steps that waited for so many updates.
    scalars["policy_version"][:] = torch.tensor([0, -7, -40, -70], dtype=torch.int32)
    scalars[REPLAYED][:, 2:] = True
    scalars["valid"][2, :] = False  # never taken: their versions are garbage
    scalars["policy_version"][2, :] = torch.tensor([1, -99, -99, -99], dtype=torch.int32)
    scalars["valid"][1, 3] = False

    learner.learn()
    learner.learning.report()

    (stats,) = learner.messages(TrainStats)
    assert stats.lag == PolicyLag(0.0, 3.5, 7.0)
    assert stats.replay_lag == PolicyLag(40.0, (4 * 40 + 3 * 70) / 7, 70.0)
    assert learner.learning.progress.env_steps == 4
