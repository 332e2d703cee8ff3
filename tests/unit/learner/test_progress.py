"""Training resumes exactly from a checkpoint, and ends at its limits."""

from __future__ import annotations

import copy

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig, RunConfig
from sfactory.errors import CheckpointError
from sfactory.learner.checkpointing import PAYLOAD_VERSION, Progress, payload_of, restore
from sfactory.learner.setup import Limits
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from tests.support.parts import VECTOR, random_batch, tiny_model, trainer_for


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
