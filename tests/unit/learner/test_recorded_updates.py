"""Recorded updates do what updates do, with other numbers, other minibatches and replaced weights and moments."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.learner.auxiliary import make_auxiliary
from sfactory.learner.checkpointing import Progress, payload_of, take_over
from sfactory.learner.recorded_updates import RecordedUpdates
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.system.cuda_graphs import WARM_UPS, Recorder
from tests.support.gpu import made_up_batch, spec_of
from tests.support.recording import OperationRecorder

CPU = torch.device("cpu")
SMALL = {"encoder_mlp_layers": (8,), "encoder_conv_mlp_layers": (8,), "rnn_size": 4}
GAE = {"with_vtrace": False}
SHUFFLED = {"num_batches_per_epoch": 2, "num_epochs": 2, "shuffle_minibatches": True}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "V-trace": {},
    "several passes": {"learner": SHUFFLED},
    "GAE": {"algo": GAE, "learner": SHUFFLED},
    "GRU": {"model": {"use_rnn": True}},
    "microbatches": {"learner": {"microbatch_size": 32}},
    "two optimizers": {
        "model": {"actor_critic_share_weights": False},
        "optim": {"separate_value_optimizer": True, "optimizer": "adamw", "weight_decay": 0.01},
    },
    "target network": {"algo": {"use_target_net": True, "target_update_interval": 2}},
    "spectral norm": {"model": {"use_spectral_norm": True}},
    "KL target": {"algo": {"kl_target": 1e-3, "kl_loss_coeff": 0.1, "exploration_loss": "symmetric_kl"}},
    "rate by KL": {"optim": {"lr_schedule": "kl_adaptive_minibatch"}},
    "rate by the KL of epochs": {"optim": {"lr_schedule": "kl_adaptive_epoch"}, "learner": SHUFFLED},
}


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder does not see what numpy computes."""
    monkeypatch.setattr("sfactory.model.layers._NUMPY_PAYS_UP_TO_THREADS", 0)


def trainer_of(
    case: dict[str, dict[str, Any]], recorder: Recorder | None, dtype: torch.dtype = torch.float32
) -> Trainer:
    torch.manual_seed(5)
    config = ModelConfig(**{**SMALL, **case.get("model", {})})
    algo, optim = AlgoConfig(**case.get("algo", {})), OptimConfig(**{"learning_rate": 1e-3, **case.get("optim", {})})
    learner = LearnerConfig(**{"batch_size": 128, "early_stop_loss_change": 0.0, **case.get("learner", {})})
    model = ActorCritic(spec_of("vector", config), config, dtype)
    FlatState(model)
    auxiliary = make_auxiliary(model, algo, config)
    beside = {"auxiliary": auxiliary, "recorder": recorder}
    return Trainer(model, algo, optim, learner, seed=1, policy=0, total_env_steps=10**6, **beside)  # type: ignore[arg-type]


def state_of(trainer: Trainer) -> dict[str, Any]:
    payload = payload_of(trainer, Progress(best_metric="reward"))
    return {name: payload[name] for name in payload if name != "env_spec"}


def assert_close(found: Any, wanted: Any) -> None:
    """Nested states with tensors that are equal but for the rounding of rates to float32."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            if name != "capturable":
                assert_close(found[name], wanted[name])
    elif isinstance(wanted, Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    elif isinstance(wanted, list | tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-4, nan_ok=True)
    else:
        assert found == wanted


def both(case: dict[str, dict[str, Any]], **more: Any) -> tuple[Trainer, Trainer, OperationRecorder]:
    """A trainer that records its updates, and one that does not."""
    recorder = OperationRecorder()
    return trainer_of(case, recorder, **more), trainer_of(case, None, **more), recorder


def train(trainer: Trainer, *seeds: int, rows: int = 8, change: Callable[[Any], None] = lambda batch: None) -> None:
    for seed in seeds:
        batch = made_up_batch(trainer.model.spec, trainer.model.state_size, rows=rows, seed=seed)
        change(batch)
        trainer.train(batch)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_recorded_updates_learn_what_others_learn(case: dict[str, dict[str, Any]]) -> None:
    recorded, plain, recorder = both(case)
    for trainer in (recorded, plain):
        for dataset in range(6):
            trainer.coefficients._rate *= 0.9
            trainer.coefficients.exploration = 0.01 * dataset
            train(trainer, dataset)
    first_differs = (
        case.get("learner") == SHUFFLED and "algo" not in case
    )  # the first of several passes observes returns
    assert recorder.recorded == (2 if first_differs else 1)
    assert recorder.warmed == WARM_UPS * recorder.recorded
    assert_close(state_of(recorded), state_of(plain))
    assert_close(recorded.statistics(), plain.statistics())
    assert recorded.train_step == plain.train_step >= 6


def test_float16_halves_its_scale_and_skips_updates_in_recordings() -> None:
    recorded, plain, recorder = both({}, dtype=torch.float16)

    def spoil(batch: Any) -> None:
        batch.rewards[1, 0] = torch.nan

    for trainer in (recorded, plain):
        train(trainer, 0, 1, 2, 3, 4)
        before = trainer.model.state_dict()["policy_head.linear.weight"].clone()
        train(trainer, 5, change=spoil)
        assert torch.equal(before, trainer.model.state_dict()["policy_head.linear.weight"])
        train(trainer, 6)
        assert float(trainer.updater.state()["loss_scale"]["scale"]) == 2.0**9
        assert trainer.stats.skipped == 1
    assert recorder.recorded == 1
    assert_close(state_of(recorded), state_of(plain))


def test_minibatches_of_other_sizes_have_recordings_of_their_own() -> None:
    recorded, plain, recorder = both({})
    for trainer in (recorded, plain):
        for rows in (8, 4, 8, 4, 8, 4, 8, 4, 8, 4):
            train(trainer, 0, rows=rows)
    assert recorder.recorded == 2
    assert_close(state_of(recorded), state_of(plain))


def test_replaced_weights_moments_and_settings_are_those_of_the_next_update() -> None:
    recorded, plain, recorder = both({"algo": {"use_target_net": True}})
    other = trainer_of({"algo": {"use_target_net": True}}, None)
    train(other, 9, 9)
    for trainer in (recorded, plain):
        train(trainer, 0, 1, 2, 3, 4)
        take_over(copy.deepcopy(payload_of(other, Progress(best_metric="reward"))), "", trainer)
        train(trainer, 5, 6, 7, 8, 9)
        algo = dataclasses.replace(trainer.algo, ppo_clip_ratio=0.05, value_loss_coeff=3.0, exploration_loss_coeff=0.1)
        trainer.adopt(algo, OptimConfig(learning_rate=3e-3, adam_beta1=0.5, max_grad_norm=0.1), trainer.learner, 0)
        train(trainer, 0, 1, 2, 3, 4)
        frozen = next(iter(trainer.model.tower.parameters()))
        frozen.requires_grad_(False)
        before = frozen.clone()
        train(trainer, 0, 1, 2, 3, 4)
        assert torch.equal(frozen, before)
    assert (recorder.recorded, recorder.memories) == (4, 3)
    assert_close(state_of(recorded), state_of(plain))


def test_a_recording_that_fails_leaves_updates_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    recorded, plain, recorder = both({})
    for trainer in (recorded, plain):
        forward = trainer.model.tower.unroll

        def reads(*args: Any, forward: Any = forward) -> Any:
            stages = forward(*args)
            assert float(stages.features.detach().sum()) < 1e9
            return stages

        trainer.model.tower.unroll = reads  # type: ignore[assignment, method-assign]
        train(trainer, *range(8))
    assert (recorder.warmed, recorder.recorded) == (WARM_UPS, 0)
    (text,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "not permitted when stream is capturing" in text
    assert_close(state_of(recorded), state_of(plain))


def test_checkpoints_of_recorded_updates_are_plain() -> None:
    recorded, _, _ = both({})
    train(recorded, *range(6))
    recorded.coefficients._rate = 0.25
    train(recorded, 6)

    groups = recorded.updater.state()["optimizer"]["param_groups"]

    assert [group["lr"] for group in groups] == [0.25]
    assert all(not isinstance(value, Tensor) for group in groups for value in group.values())
    assert isinstance(recorded._recorded, RecordedUpdates)
