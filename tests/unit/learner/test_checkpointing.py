"""Checkpoints: which are saved and when, whatever fails in between, and what a payload restores."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig, RunConfig
from sfactory.errors import CannotSaveError, CheckpointError, DivergedError
from sfactory.learner import checkpointing as checkpointing
from sfactory.learner.checkpointing import PAYLOAD_VERSION, Progress, payload_of, restore
from sfactory.learner.setup import Limits
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from tests.support.lone_learner import LOWEST, NEVER, LoneCheckpointer, Saved
from tests.support.parts import VECTOR, random_batch, tiny_model, trainer_for


def dataset(desk: LoneCheckpointer, mark: float, mean_return: float) -> None:
    """Learn from a dataset and save what is due."""
    desk.learn(mark, mean_return)
    desk.checkpointer.after_dataset()


def train_until(desk: LoneCheckpointer, seconds: float) -> None:
    """The same at ``seconds`` of training time."""
    desk.train_until(seconds)
    desk.checkpointer.after_dataset()


def latest(path: Path) -> Any:
    """Payload of the latest checkpoint."""
    loaded = CheckpointDir(path, keep=2).load()
    assert loaded is not None
    return loaded.payload


def test_better_policy_is_saved_as_the_best(tmp_path: Path) -> None:
    desk = LoneCheckpointer(tmp_path)

    found = []
    for mark, mean_return in [(1.0, 10.0), (2.0, 9.0), (3.0, 10.0), (4.0, 11.0), (5.0, -3.0)]:
        dataset(desk, mark, mean_return)
        found.append(desk.best())

    first, second = Saved(1.0, 10.0), Saved(4.0, 11.0)
    assert found == [first, first, first, second, second]


def test_best_policy_at_the_end_is_saved_within_the_interval(tmp_path: Path) -> None:
    desk = LoneCheckpointer(tmp_path, save_best_every_sec=NEVER)
    dataset(desk, 1.0, 50.0)
    assert desk.best() is None

    desk.checkpointer.finish()

    assert desk.best() == Saved(1.0, 50.0)
    assert latest(tmp_path)["best_objective"] == 50.0


def test_latest_is_saved_although_the_best_cannot_be(
    tmp_path: Path,
) -> None:
    desk = LoneCheckpointer(tmp_path)
    (tmp_path / "best_000000001_200_50.000.pth").mkdir()  # where the best policy is to be saved
    desk.learn(1.0, 50.0)

    with pytest.raises(CannotSaveError, match="best_000000001_200"):
        desk.checkpointer.finish()

    assert latest(tmp_path)["env_steps"] == 200


@pytest.mark.parametrize(("after", "saved"), [(201, None), (200, Saved(1.0, 50.0))])
def test_no_policy_is_the_best_before_save_best_after(tmp_path: Path, after: int, saved: Saved | None) -> None:
    desk = LoneCheckpointer(tmp_path, save_best_after=after)
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
    desk, folder, elsewhere = LoneCheckpointer(tmp_path / "here"), tmp_path / "here", tmp_path / "elsewhere"
    dataset(desk, 0.5, 5.0)
    folder.rename(elsewhere)
    folder.write_text("a file where a folder should be")
    dataset(desk, 1.0, 50.0)

    assert desk.progress.best_objective == 5.0
    folder.unlink()
    elsewhere.rename(folder)
    dataset(desk, mark, mean_return)
    assert desk.best() == saved


def test_a_resumed_run_has_to_beat_the_best_policy_on_disk(tmp_path: Path) -> None:
    killed = LoneCheckpointer(tmp_path)
    killed.learn(1.0, 5.0)
    killed.checkpointer.save()
    # Then killed: the latest checkpoint has not heard of the best one.
    dataset(killed, 2.0, 50.0)
    resumed = LoneCheckpointer(tmp_path)

    resumed.checkpointer.load()
    found = []
    for mark, mean_return in [(3.0, 49.0), (4.0, 51.0)]:
        dataset(resumed, mark, mean_return)
        found.append(resumed.best())

    assert found == [Saved(2.0, 50.0), Saved(4.0, 51.0)]


def test_milestones_are_saved_at_multiples_of_their_interval(tmp_path: Path) -> None:
    desk = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)

    found = []
    for seconds in (0.0, 9.0, 10.0, 11.0, 19.0, 45.0, 49.0, 50.5):
        train_until(desk, seconds)
        found.append(desk.milestones())

    assert found[0] == found[1] == []
    assert found[2] == found[3] == found[4] == [10.0]
    # Time that was spent in one long dataset makes one milestone, not three.
    assert found[5] == found[6] == [10.0, 45.0]
    assert found[7] == [10.0, 45.0, 50.5]


def test_a_resumed_run_has_its_milestones_at_the_times_of_one_that_never_stopped(tmp_path: Path) -> None:
    earlier = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)
    earlier.train_until(8.0)
    earlier.checkpointer.finish()
    resumed = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)

    resumed.checkpointer.load()
    found = []
    for seconds in (9.0, 12.0):
        train_until(resumed, seconds)
        found.append(resumed.milestones())

    assert found == [[], [12.0]]


def test_a_milestone_that_cannot_be_saved_stays_due_and_the_others_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    desk = LoneCheckpointer(tmp_path, save_every_sec=1e-9, save_milestones_sec=10.0)
    in_the_way = tmp_path / "milestones"
    in_the_way.write_text("a file where a folder should be")
    desk.train_until(11.0)
    desk.control.tell_objective(0, 5.0)
    desk.checkpointer.after_dataset()
    assert latest(tmp_path)["train_seconds"] == 11.0
    assert desk.best() == Saved(11.0, 5.0)
    in_the_way.unlink()

    train_until(desk, 12.0)

    assert desk.milestones() == [12.0]


def test_run_resumes_from_its_newest_milestone(tmp_path: Path) -> None:
    earlier = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)
    train_until(earlier, 11.0)
    earlier.train_until(15.0)
    earlier.checkpointer.finish()
    back = LoneCheckpointer(tmp_path, save_milestones_sec=10.0, load_checkpoint_kind="milestone")

    back.checkpointer.load()
    assert (back.progress.env_steps, back.progress.train_seconds, back.trainer.train_step) == (200, 11.0, 1)
    back.checkpointer.finish()

    assert latest(tmp_path)["env_steps"] == 200
    assert [path.name for path in tmp_path.glob("set_aside_*.pth")] == ["set_aside_checkpoint_000000002_300.pth"]


def back_to_a_milestone(path: Path) -> LoneCheckpointer:
    """A run whose best policy (worth 50) came after its only milestone, resumed from that milestone."""
    earlier = LoneCheckpointer(path, save_milestones_sec=10.0)
    train_until(earlier, 11.0)
    earlier.learn(2.0, 50.0)
    earlier.checkpointer.finish()
    back = LoneCheckpointer(path, save_milestones_sec=10.0, load_checkpoint_kind="milestone")
    back.checkpointer.load()
    return back


def test_best_policy_from_after_the_milestone_is_set_aside(tmp_path: Path) -> None:
    back = back_to_a_milestone(tmp_path)

    bar = back.progress.best_objective
    dataset(back, 3.0, 20.0)

    assert bar == LOWEST
    assert back.best() == Saved(3.0, 20.0)
    assert len(list(tmp_path.glob("set_aside_best_*_50.000.pth"))) == 1


def test_run_resumed_from_its_best_policy_has_to_beat_it(tmp_path: Path) -> None:
    earlier = LoneCheckpointer(tmp_path, save_milestones_sec=10.0)
    dataset(earlier, 1.0, 50.0)
    train_until(earlier, 11.0)
    earlier.checkpointer.finish()
    back = LoneCheckpointer(tmp_path, save_milestones_sec=10.0, load_checkpoint_kind="best")

    back.checkpointer.load()
    bar = back.progress.best_objective
    back.learn(2.0, 49.0)
    back.checkpointer.finish()

    assert bar == 50.0
    assert back.best() == Saved(1.0, 50.0)
    assert CheckpointDir(tmp_path, keep=2).load("milestone") is None
    assert len(list((tmp_path / "milestones").glob("set_aside_*.pth"))) == 1


def test_saved_steps_are_those_of_the_best_policy_without_a_latest_checkpoint(tmp_path: Path) -> None:
    desk = LoneCheckpointer(tmp_path)
    for mean_return in (1.0, 2.0):
        dataset(desk, mean_return, mean_return=mean_return)

        assert desk.row.get("saved_env_steps") == desk.progress.env_steps

    desk.checkpointer.save()
    saved = desk.progress.env_steps
    dataset(desk, 3.0, mean_return=3.0)

    assert desk.best() == Saved(3.0, 3.0)
    assert desk.row.get("saved_env_steps") == saved


def test_failed_checkpoint_stays_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "_RETRY_S", 0.0)
    desk = LoneCheckpointer(tmp_path, save_every_sec=0.0)
    desk.checkpointer._save_due.seconds = NEVER  # once it is saved
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointDir, "save", lambda *_: (_ for _ in ()).throw(CannotSaveError("no room")))
        dataset(desk, 1.0, LOWEST)
    assert CheckpointDir(tmp_path, keep=2).load() is None

    for mark in (2.0, 3.0):
        dataset(desk, mark, LOWEST)

    assert latest(tmp_path)["train_step"] == 2
    assert desk.row.get("save_s") > 0


@pytest.mark.parametrize("due", ["latest", "best", "milestone"])
def test_weights_that_are_not_finite_are_saved_as_nothing(tmp_path: Path, due: str) -> None:
    desk = LoneCheckpointer(
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


def trainer_of(seed: int = 0) -> Trainer:
    return trainer_for(tiny_model(seed), AlgoConfig(), OptimConfig(learning_rate=0.01), LearnerConfig())


def test_training_time_counts_from_the_first_start_of_the_clock_and_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactory.learner.checkpointing.now", lambda: 110.0)
    progress = Progress(earlier_seconds=5.0)
    assert progress.train_seconds == 5.0

    progress.start_clock(100.0)
    progress.start_clock(109.0)

    assert progress.train_seconds == 15.0


@pytest.mark.parametrize(
    ("frameskip", "frames", "env_steps"), [(1, 8000, 8000), (4, 8000, 2000), (4, 8001, 2001), (4, 3, 1)]
)
def test_a_limit_of_frames_is_one_of_env_steps_that_skip_frames(frameskip: int, frames: int, env_steps: int) -> None:
    limits = Limits.of(RunConfig(train_for_frames=frames), env_frameskip=frameskip)

    assert limits.env_steps == env_steps


def test_the_nearer_of_both_step_limits_counts() -> None:
    run = RunConfig(train_for_env_steps=1999, train_for_frames=8000)

    assert Limits.of(run, env_frameskip=4).env_steps == 1999
    assert Limits.of(run, env_frameskip=5).env_steps == 1600


@pytest.mark.parametrize(
    ("limits", "over"),
    [
        (Limits(env_steps=1001, seconds=51.0), False),
        (Limits(env_steps=1000, seconds=51.0), True),
        (Limits(env_steps=1001, seconds=50.0), True),
    ],
)
def test_training_is_over_at_either_limit(limits: Limits, over: bool) -> None:
    progress = Progress(env_steps=1000, earlier_seconds=50.0)

    assert progress.reached(limits) is over


def test_a_resumed_optimizer_keeps_its_moments_and_takes_the_new_settings() -> None:
    first = trainer_of(seed=0)
    first.train(random_batch(first.model))
    payload = copy.deepcopy(payload_of(first, Progress()))
    optim = OptimConfig(learning_rate=0.125, adam_eps=0.25, adam_beta1=0.5, adam_beta2=0.75)
    resumed = trainer_for(tiny_model(seed=7), AlgoConfig(), optim, LearnerConfig())

    restore(payload, "here", resumed, Progress())

    groups = resumed.updater.optimizer.param_groups
    assert [(group["eps"], group["betas"]) for group in groups] == [(0.25, (0.5, 0.75))]
    assert resumed.coefficients.rates.policy == 0.125
    moments = resumed.updater.optimizer.state_dict()["state"]
    assert {int(moment["step"]) for moment in moments.values()} == {1}
    for index, moment in first.updater.optimizer.state_dict()["state"].items():
        assert torch.equal(moments[index]["exp_avg"], moment["exp_avg"])


def test_a_payload_holds_plain_numbers_and_tensors_only(tmp_path: object) -> None:
    trainer = trainer_of()
    trainer.train(random_batch(trainer.model))
    path = f"{tmp_path}/payload.pth"

    torch.save(payload_of(trainer, Progress(env_steps=20, agent_steps=60, run_env_steps=10)), path)
    loaded = torch.load(path, weights_only=True)

    assert loaded["payload_version"] == PAYLOAD_VERSION
    assert (loaded["train_step"], loaded["env_steps"], loaded["agent_steps"]) == (1, 20, 60)
    assert loaded["run_env_steps"] == 10


def test_a_payload_of_another_version_is_refused() -> None:
    payload = payload_of(trainer_of(), Progress()) | {"payload_version": 999}

    with pytest.raises(CheckpointError, match="checkpoint_7 was written by another version"):
        restore(payload, "checkpoint_7", trainer_of(), Progress())


def test_payload_of_version_2_is_restored() -> None:
    optim = OptimConfig(learning_rate=1e-3, lr_schedule="kl_adaptive_epoch")
    first, resumed = (trainer_for(tiny_model(seed), AlgoConfig(), optim, LearnerConfig()) for seed in (0, 7))
    batch = random_batch(first.model)
    first.train(batch)
    payload = copy.deepcopy(payload_of(first, Progress(env_steps=60)))
    # As version 2 wrote it.
    optimizer = {key: payload["optimizer"][key] for key in ("state", "param_groups")}
    rate = payload.pop("coefficients")["learning_rate"]
    payload |= {"payload_version": 2, "optimizer": optimizer, "learning_rate": rate}

    restore(payload, "here", resumed, Progress())
    for trainer in (first, resumed):
        trainer.train(batch)

    assert resumed.coefficients.rates == first.coefficients.rates
    for mine, other in zip(first.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"optimizer": "rmsprop"}, "saved with --optimizer=adam, and --optimizer=rmsprop has other moments"),
        ({"separate_value_optimizer": True}, "saved with --separate_value_optimizer=False, which cannot become True"),
    ],
)
def test_a_payload_of_another_optimizer_is_refused(fields: dict[str, object], reason: str) -> None:
    optim = OptimConfig(**fields)  # type: ignore[arg-type]
    resumed = trainer_for(tiny_model(), AlgoConfig(), optim, LearnerConfig())

    with pytest.raises(CheckpointError, match=f"checkpoint_7 does not fit the optimizer .*{reason}"):
        restore(payload_of(trainer_of(), Progress()), "checkpoint_7", resumed, Progress())


def test_a_payload_of_another_model_is_refused() -> None:
    other = ActorCritic(VECTOR, ModelConfig(encoder_mlp_layers=(9,)))
    trainer = trainer_for(other, AlgoConfig(), OptimConfig(), LearnerConfig())

    with pytest.raises(CheckpointError, match="checkpoint_7 does not fit the model"):
        restore(payload_of(trainer, Progress()), "checkpoint_7", trainer_of(), Progress())
