"""What main orders of a learner in mid-run is in force in its next update, in the optimiser and in the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import payload_of
from sfactory.learner.commands import with_values
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.threads import Threads
from sfactory.shared.control import LearnerCommand, LearnerCommands, Stop
from tests.support.files import truncate
from tests.support.lone_learner import LoneLearner
from tests.support.processes import eventually

CHANGED = {
    "learning_rate": 3e-4,
    "adam_eps": 1e-5,
    "adam_beta1": 0.7,
    "max_grad_norm": 0.5,
    "gamma": 0.9,
    "ppo_clip_ratio": 0.3,
    "exploration_loss_coeff": 0.02,
    "value_loss_coeff": 2.0,
    "num_epochs": 3,
}


def weights_of(learner: LoneLearner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.learning.trainer.model.parameters()]


def test_command_is_read_once_and_answered() -> None:
    orders = LearnerCommands(2)
    order = LearnerCommand(
        save=True, parent="here/checkpoint_p0", hyperparameters={"gamma": 0.1 + 0.2, "batch_size": 2048}
    )
    assert orders.waiting(1) is None

    orders.give(1, order)

    assert orders.answer(1) is None
    assert orders.waiting(0) is None
    assert orders.waiting(1) == order
    orders.answered(1, "no")
    assert orders.waiting(1) is None
    assert orders.answer(1) == "no"


def test_new_hyperparameters_reach_optimizer_loss_and_batch() -> None:
    learner = LoneLearner()
    learner.learn()

    assert learner.learning.commands.execute(LearnerCommand(hyperparameters=CHANGED)) == ""
    learner.learn()

    trainer = learner.learning.trainer
    for group in trainer.updater.optimizer.param_groups:
        assert (group["lr"], group["eps"], group["betas"][0]) == (3e-4, 1e-5, 0.7)
    assert trainer.updater._max_norm == 0.5
    assert trainer.loss.config.ppo_clip_ratio == 0.3
    assert trainer.loss.config.value_loss_coeff == 2.0
    assert trainer.statistics()["exploration_coeff"] == 0.02
    batch = Batch.of(learner.area, trainer.algo, trainer.learner, 0, torch.device("cpu"))
    assert batch.discounts[~learner.area.scalars["terminated"]].unique().tolist() == pytest.approx([0.9])


@pytest.mark.parametrize("background", [True, False])
def test_command_is_executed_while_no_dataset_comes(background: bool) -> None:
    learner = LoneLearner(num_policies=2, train_in_background_thread=background)
    orders, threads = learner.shared.orders, Threads()
    assert orders is not None
    worker = LearnerWorker(learner.setup, learner.learning, learner.row)
    worker.start(threads)

    orders.give(0, LearnerCommand(hyperparameters={"num_epochs": 3}))

    try:
        assert eventually(lambda: orders.answer(0) is not None, within_s=60.0)
        assert orders.answer(0) == ""
        assert learner.learning.trainer.learner.num_epochs == 3
    finally:
        learner.shared.control.order_stop(Stop.SAVE)
        threads.wait(worker.over)
        threads.leave()


def test_no_command_is_executed_after_finish() -> None:
    learner = LoneLearner(num_policies=2)
    orders = learner.shared.orders
    assert orders is not None
    learner.learning.finish(save=False)
    orders.give(0, LearnerCommand(hyperparameters={"learning_rate": 3e-4}))

    learner.learning.execute_command()

    assert orders.answer(0) is None


def test_unknown_hyperparameter_is_an_error() -> None:
    learner = LoneLearner()
    setup = learner.setup

    with pytest.raises(KeyError, match="num_workers"):
        with_values({"gamma": 0.5, "num_workers": 3}, setup.algo, setup.optim, setup.learner)


def test_child_copies_weights_and_moments_but_not_steps(tmp_path: Path) -> None:
    parent, child = LoneLearner(tmp_path / "parent"), LoneLearner(tmp_path / "child", seed=7)
    for _ in range(3):
        parent.learn()
    child.area.obs["obs"].mul_(-1.0)
    child.learn()
    parent.learning.checkpointer.save()
    steps = child.learning.progress.env_steps

    problem = child.learning.commands.execute(LearnerCommand(parent=str(tmp_path / "parent" / "checkpoint_p0")))

    assert problem == ""
    assert all(torch.equal(a, b) for a, b in zip(weights_of(parent), weights_of(child), strict=True))
    theirs, own = (payload_of(each.learning.trainer, each.learning.progress) for each in (parent, child))
    moments = theirs["optimizer"]["state"], own["optimizer"]["state"]
    for key, values in moments[0].items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments[1][key][name]))
    assert child.learning.progress.env_steps == steps
    saved = CheckpointDir(tmp_path / "child" / "checkpoint_p0", keep=2).load()
    assert saved is not None
    assert all(torch.equal(saved.payload["model"][name], value) for name, value in theirs["model"].items())


def test_steps_sampled_before_a_takeover_are_masked(tmp_path: Path) -> None:
    parent, child = LoneLearner(tmp_path / "parent"), LoneLearner(tmp_path / "child")
    parent.learning.checkpointer.save()
    child.learn()
    child.learning.commands.execute(LearnerCommand(parent=str(tmp_path / "parent" / "checkpoint_p0")))
    before, steps = weights_of(child), child.learning.progress.env_steps

    child.area.scalars["policy_version"].fill_(child.learning.trainer.train_step - 1)
    child.learn()

    assert child.learning.progress.env_steps == steps
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(child), strict=True))
    child.area.scalars["policy_version"].fill_(child.learning.trainer.train_step)
    child.learn()
    assert child.learning.progress.env_steps > steps


def test_unreadable_parent_changes_nothing(tmp_path: Path) -> None:
    parent, child = LoneLearner(tmp_path / "parent"), LoneLearner(tmp_path / "child")
    parent.learn()
    parent.learning.checkpointer.save()
    (checkpoint,) = (tmp_path / "parent" / "checkpoint_p0").glob("checkpoint_*.pth")
    truncate(checkpoint)
    before = weights_of(child)

    for folder in (checkpoint.parent, tmp_path / "nowhere"):
        problem = child.learning.commands.execute(LearnerCommand(parent=str(folder), hyperparameters={"gamma": 0.5}))

        assert problem
        assert child.learning.trainer.algo.gamma != 0.5
        assert all(torch.equal(a, b) for a, b in zip(before, weights_of(child), strict=True))


def test_parent_with_another_network_changes_nothing(tmp_path: Path) -> None:
    parent, child = LoneLearner(tmp_path / "parent", encoder_mlp_layers=(9,)), LoneLearner(tmp_path / "child")
    parent.learning.checkpointer.save()
    before = weights_of(child)

    problem = child.learning.commands.execute(LearnerCommand(parent=str(tmp_path / "parent" / "checkpoint_p0")))

    assert "does not fit the model" in problem
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(child), strict=True))
