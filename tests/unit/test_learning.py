"""What a learner tells of its datasets, and how it comes to its end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.config.flags import config_of
from sfactory.layout import Layout
from sfactory.learner.learning import Learning
from sfactory.learner.publisher import Publisher
from sfactory.learner.staging import Staging
from sfactory.messages import LearnerTimes, TrainStats
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.run.wiring import Wiring
from tests.support.parts import VECTOR

FLAGS = {
    "env": "any",
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "worker_num_splits": 1,
    "rollout": 5,
    "batch_size": 20,
    "encoder_mlp_layers": (8,),
    "max_policy_lag": 3,
}


def ready(wiring: Wiring, layout: Layout, checkpoints: Path | None = None) -> tuple[Learning, Staging]:
    """A learner that has begun, and a full staging area."""
    setup = wiring.learner(0, config_of(FLAGS), 1, "cpu", 1, None if checkpoints is None else str(checkpoints))
    learning = Learning(setup, wiring.status.row("sf-learner-0"))
    learning.begin()
    staging = Staging(VECTOR, layout, pin=False)
    staging.obs["obs"].normal_()
    staging.scalars["valid"].fill_(True)
    return learning, staging


def shared() -> tuple[Wiring, Layout]:
    """What a learner works with."""
    config = config_of(FLAGS)
    layout = Layout.plan(config.sampling, config.learner, "central")
    return Wiring(VECTOR, layout, flat_bytes(ActorCritic(VECTOR, config.model))), layout


def test_what_fails_while_the_end_waits_for_it_is_raised_there_and_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiring, layout = shared()
    learning, staging = ready(wiring, layout, tmp_path / "checkpoint_p0")
    publishing, let_go = threading.Event(), threading.Event()

    def fail(publisher: Publisher, train_step: int) -> bool:
        publishing.set()
        let_go.wait(30.0)
        raise ValueError("weights are not finite")

    def learn() -> None:
        with pytest.raises(ValueError, match="not finite"):
            learning.learn(staging)

    monkeypatch.setattr(Publisher, "after_updates", fail)
    training = threading.Thread(target=learn)
    training.start()
    assert publishing.wait(30.0)
    threading.Timer(0.2, let_go.set).start()

    with pytest.raises(ValueError, match="weights are not finite"):
        learning.finish(save=True)

    training.join(30.0)
    assert CheckpointDir(tmp_path / "checkpoint_p0", keep=2).load() is None


def test_how_long_datasets_took_is_told_with_their_statistics_and_what_was_done_is_counted() -> None:
    wiring, layout = shared()
    learning, staging = ready(wiring, layout)

    for _ in range(3):
        learning.learn(staging)
    learning.report()

    told = wiring.learners_to_main[0].get(1)
    times = [message for message in told if isinstance(message, LearnerTimes)]
    assert len(times) == len([message for message in told if isinstance(message, TrainStats)]) >= 1
    for message in times:
        assert message.grad_ms == message.update_ms > 0  # a dataset is one minibatch, and is passed over once
        assert message.publish_ms > 0
    row = wiring.status.row("sf-learner-0")
    # The first weights are published before anything is learned.
    assert (row.get("datasets"), row.get("publications")) == (3, 4)


def test_nothing_is_learned_after_the_end(tmp_path: Path) -> None:
    wiring, layout = shared()
    learning, staging = ready(wiring, layout, tmp_path / "checkpoint_p0")
    learning.learn(staging)
    learning.finish(save=True)

    learning.learn(staging)

    loaded = CheckpointDir(tmp_path / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    assert loaded.payload["env_steps"] == learning.progress.env_steps == 20


def test_the_policy_lag_that_is_reported_covers_steps_that_are_too_old_to_learn_from_and_no_others() -> None:
    wiring, layout = shared()
    learning, staging = ready(wiring, layout)
    # The learner is at update 0: versions below 0 stand for steps that waited for so many updates.
    staging.scalars["policy_version"][:] = torch.tensor([0, -1, -3, -7], dtype=torch.int32)
    staging.scalars["valid"][2, :] = False  # never taken: what lies there is garbage
    staging.scalars["policy_version"][2, :] = torch.tensor([1, -99, -99, -99], dtype=torch.int32)

    learning.learn(staging)
    learning.report()

    (stats,) = [message for message in wiring.learners_to_main[0].get(1) if isinstance(message, TrainStats)]
    assert (stats.lag_min, stats.lag_mean, stats.lag_max) == (0.0, (0 + 1 + 3 + 7) / 4, 7.0)
    assert learning.progress.env_steps == 2 * 4
