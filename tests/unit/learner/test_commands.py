"""Commands from main are in force in the next update, in the optimizer and in the loss."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import all_flags
from sfactory.config.hyperparameters import mutable_flags
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import payload_of
from sfactory.learner.learner_process import LearnerWorker
from sfactory.process.threads import Threads
from sfactory.shared.control import LearnerCommand, LearnerCommands, Stop
from tests.support.equality import assert_same, changed, copied
from tests.support.files import truncate
from tests.support.lone_learner import LoneLearner
from tests.support.parts import CPU
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
}


def copy_from(parent: LoneLearner, child: LoneLearner) -> str:
    """Have ``child`` take over the weights that ``parent`` saves; returns the problem."""
    parent.learning.checkpointer.save()
    return child.learning.commands.execute(LearnerCommand(parent=parent.setup.checkpoint_dir))


def test_command_is_read_once_and_answered() -> None:
    commands = LearnerCommands(2)
    values = {"gamma": 0.1 + 0.2, "batch_size": 2048}
    command = LearnerCommand(save=True, parent="here/checkpoint_p0", hyperparameters=values)
    assert commands.waiting(1) is None

    commands.give(1, command)

    assert commands.answer(1) is None
    assert commands.waiting(0) is None
    assert commands.waiting(1) == command
    commands.answered(1, "no")
    assert commands.waiting(1) is None
    assert commands.answer(1) == "no"


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
    batch = Batch.of(learner.area, trainer.algo, trainer.learner, 0, CPU)
    assert batch.discounts[~learner.area.scalars["terminated"]].unique().tolist() == pytest.approx([0.9])


def test_every_mutable_flag_is_in_a_section_that_a_command_replaces() -> None:
    assert {all_flags()[name].section for name in mutable_flags()} == {"algo", "optim", "learner"}


@pytest.mark.parametrize("background", [True, False])
def test_command_is_executed_while_no_dataset_comes(background: bool) -> None:
    learner = LoneLearner(num_policies=2, train_in_background_thread=background)
    commands, threads = learner.shared.learner_commands, Threads()
    assert commands is not None
    worker = LearnerWorker(learner.setup, learner.learning, learner.row)
    worker.start(threads)

    commands.give(0, LearnerCommand(hyperparameters={"num_epochs": 3}))

    try:
        assert eventually(lambda: commands.answer(0) is not None, within_s=60.0)
        assert commands.answer(0) == ""
        assert learner.learning.trainer.learner.num_epochs == 3
    finally:
        learner.shared.control.order_stop(Stop.SAVE)
        threads.wait(worker.over)
        threads.leave()
    learner.learning.finish(save=False)
    commands.give(0, LearnerCommand(hyperparameters={"num_epochs": 4}))
    learner.learning.execute_command()
    assert learner.learning.trainer.learner.num_epochs == 3


def test_child_copies_weights_moments_and_adapted_rates_but_not_steps(tmp_path: Path) -> None:
    adaptive: dict[str, Any] = {"lr_schedule": "kl_adaptive_epoch", "kl_target": 0.01, "kl_loss_coeff": 0.2}
    parent = LoneLearner(tmp_path / "parent", **adaptive)
    child = LoneLearner(tmp_path / "child", seed=7, **adaptive)
    for _ in range(3):
        parent.learn()
    child.area.obs["obs"].mul_(-1.0)
    child.learn()
    steps = child.learning.progress.env_steps

    assert copy_from(parent, child) == ""

    theirs, own = (payload_of(each.learning.trainer, each.learning.progress) for each in (parent, child))
    assert_same(own["model"], theirs["model"])
    assert_same(own["optimizer"]["state"], theirs["optimizer"]["state"])
    assert own["coefficients"] == theirs["coefficients"]
    assert child.learning.progress.env_steps == steps
    saved = child.saved()
    assert saved is not None
    assert_same(dict(saved["model"]), dict(theirs["model"]))


def test_a_member_that_went_back_saves_a_copy_and_nothing_without_one(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"num_policies": 2, "with_pbt": True, "lr_schedule": "kl_adaptive_epoch"}
    values: dict[str, Any] = {"gamma": 0.9, "learning_rate": 3e-4}
    folder = tmp_path / "run" / "checkpoint_p0"
    first = LoneLearner(tmp_path / "run", **flags)
    first.learning.checkpointer.save()
    older = first.saved()
    assert older is not None
    first.learn()
    first.learning.finish(save=True)
    CheckpointDir(folder, keep=2).save_best(older, 0, 0, metric=0.0)
    before = sorted(folder.iterdir())

    back = LoneLearner(tmp_path / "run", **flags, load_checkpoint_kind="best")
    assert back.learning.commands.execute(LearnerCommand(hyperparameters=values)) == ""
    back.learning.finish(save=True)

    assert sorted(folder.iterdir()) == before
    again = LoneLearner(tmp_path / "run", **flags, **values, load_checkpoint_kind="best")
    assert_same(
        *(payload_of(each.learning.trainer, each.learning.progress)["coefficients"] for each in (again, back)),
    )
    assert copy_from(LoneLearner(tmp_path / "parent", seed=7, **flags), again) == ""
    again.learning.finish(save=True)
    saved = again.saved()
    assert saved is not None
    assert_same(dict(saved["model"]), dict(copied(again.learning.trainer.model)))
    assert [path.name[:20] for path in folder.glob("set_aside_*.pth")] == ["set_aside_checkpoint"]


def stale(*_: Any) -> Any:
    raise OSError(errno.ESTALE, "Stale file handle")


def test_a_member_of_another_run_takes_over_the_copy_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = LoneLearner(tmp_path / "parent"), LoneLearner(tmp_path / "child", seed=7)
    copies = tmp_path / "shared" / "member-0"
    for _ in range(4):
        parent.learn()
        assert parent.learning.commands.execute(LearnerCommand(save=True, copy_to=str(copies))) == ""
    theirs = parent.saved()
    assert theirs is not None
    assert len(list(copies.glob("checkpoint_*.pth"))) == 2
    parent.learn()  # goes on, meanwhile

    assert child.learning.commands.execute(LearnerCommand(parent=str(copies))) == ""

    own = payload_of(child.learning.trainer, child.learning.progress)
    assert_same(dict(own["model"]), dict(theirs["model"]))
    assert_same(own["optimizer"]["state"], theirs["optimizer"]["state"])
    (tmp_path / "shared" / "member-1").touch()
    elsewhere = LearnerCommand(save=True, copy_to=str(tmp_path / "shared" / "member-1"))
    assert "member-1" in child.learning.commands.execute(elsewhere)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", stale)
        assert "Stale file handle" in child.learning.commands.execute(LearnerCommand(parent=str(copies)))
    assert changed(child.learning.trainer.model, dict(theirs["model"])) == set()


def test_steps_sampled_before_a_takeover_are_masked(tmp_path: Path) -> None:
    parent, child = LoneLearner(tmp_path / "parent"), LoneLearner(tmp_path / "child")
    child.learn()
    copy_from(parent, child)
    learning, version = child.learning, child.area.scalars["policy_version"]
    before, steps = copied(learning.trainer.model), learning.progress.env_steps

    version.fill_(learning.trainer.train_step - 1)
    child.learn()

    assert learning.progress.env_steps == steps
    assert {name for name in changed(learning.trainer.model, before) if name.endswith("weight")} == set()
    version.fill_(learning.trainer.train_step)
    child.learn()
    assert learning.progress.env_steps > steps


@pytest.mark.parametrize("problem", ["damaged", "no checkpoint", "does not fit the model"])
def test_parent_that_does_not_fit_changes_nothing(tmp_path: Path, problem: str) -> None:
    parent = LoneLearner(tmp_path / "parent", encoder_mlp_layers=(9,) if "fit" in problem else (8,))
    child = LoneLearner(tmp_path / "child")
    folder = tmp_path / "parent" / "checkpoint_p0"
    if problem != "no checkpoint":
        parent.learning.checkpointer.save()
    if problem == "damaged":
        truncate(next(folder.glob("checkpoint_*.pth")))
    trainer = child.learning.trainer
    before = copied(trainer.model)

    answer = child.learning.commands.execute(LearnerCommand(parent=str(folder), hyperparameters={"gamma": 0.5}))

    assert answer if problem == "damaged" else problem in answer
    assert trainer.algo.gamma != 0.5
    assert changed(trainer.model, before) == set()
