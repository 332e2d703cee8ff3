"""A replayed step teaches as any other; counts, normalizers and statistics of fresh data leave it out."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from tests.support.equality import changed, copied
from tests.support.losses import loss_and_gradients, loss_of
from tests.support.models import model_of
from tests.support.parts import as_acted, fields_of, random_batch, tiny_model, trainer_for

PLAIN = AlgoConfig(gamma=0.9, normalize_advantages=False)
FRESH_ROWS, ROWS = 4, 6
# Statistics that say how much is replayed, or what replayed steps are like.
OF_REPLAY = ("valid_fraction", "replayed_fraction", "replay_kl")


def with_replay(batch: Batch, **changes: Tensor) -> Batch:
    """``batch`` with its last rows replayed. changes: fields of theirs."""
    replayed = torch.zeros_like(batch.valid)
    replayed[:, FRESH_ROWS:] = True
    fields = {name: torch.where(replayed, tensor, getattr(batch, name)) for name, tensor in changes.items()}
    return dataclasses.replace(batch, replayed=replayed, **fields_of(fields))


def only_replayed(batch: Batch) -> Batch:
    return dataclasses.replace(batch, replayed=torch.ones_like(batch.valid))


def mixed(seed: int = 1) -> Batch:
    return with_replay(random_batch(tiny_model(), rows=ROWS, seed=seed))


@pytest.mark.parametrize("policy_loss", ["pg", "ppo_clip"])
def test_a_replayed_step_has_the_same_part_in_loss_and_gradient_as_a_fresh_one(policy_loss: Any) -> None:
    model, batch, config = tiny_model(), mixed(), AlgoConfig(policy_loss=policy_loss)
    fresh = dataclasses.replace(batch, replayed=torch.zeros_like(batch.valid))

    loss, gradients = loss_and_gradients(loss_of(model, config, batch), model)
    expected, expected_gradients = loss_and_gradients(loss_of(model, config, fresh), model)

    assert loss == expected
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected_gradients, strict=True))


def test_statistics_are_those_of_the_fresh_rows_alone() -> None:
    model, batch = tiny_model(), mixed()
    far = batch.behavior_log_prob - 3.0
    wild = with_replay(batch, rewards=torch.full_like(batch.rewards, 1e3), behavior_log_prob=far)

    found = loss_of(model, PLAIN, wild).statistics
    expected = loss_of(model, PLAIN, batch.columns(slice(0, FRESH_ROWS))).statistics

    for name in found.keys() - OF_REPLAY:
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    assert found["replayed_fraction"] == pytest.approx(2 / 6)
    assert (expected["replayed_fraction"], math.isnan(expected["replay_kl"])) == (0.0, True)
    # The divergence of replayed steps is separate: their log-ratio is about 3.
    assert found["replay_kl"] > 5.0 > found["kl"]


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_normalizers_of_observations_and_returns_do_not_see_replayed_steps_again(with_vtrace: bool) -> None:
    algo = dataclasses.replace(PLAIN, with_vtrace=with_vtrace)
    model = model_of(normalize_input=True, normalize_returns=True)
    twin = copy.deepcopy(model)
    learner, optim = LearnerConfig(num_epochs=2, early_stop_loss_change=0.0), OptimConfig(learning_rate=1e-30)
    trainers = [trainer_for(each, algo, optim, learner) for each in (model, twin)]

    for seed in (1, 2):
        batch = mixed(seed)
        far = {"obs": torch.where(batch.replayed[0].view(1, ROWS, 1), 1e4, batch.obs["obs"])}
        trainers[0].train(dataclasses.replace(batch, obs=far))
        trainers[1].train(batch.columns(slice(0, FRESH_ROWS)))

    ours, theirs = (dict(each.named_buffers()) for each in (model, twin))
    assert len(ours) == 10
    for name, buffer in ours.items():
        torch.testing.assert_close(buffer, theirs[name], rtol=1e-4, atol=1e-6, msg=name)
    counts = [int(buffer) for name, buffer in ours.items() if name.endswith("count")]
    assert counts == [2 * 5 * FRESH_ROWS] * 2


def test_a_minibatch_of_replayed_steps_alone_has_an_update_and_no_statistics_of_fresh_ones() -> None:
    trainer = trainer_for(tiny_model(), PLAIN, OptimConfig(learning_rate=0.01))
    before = copied(trainer.model)

    learned = trainer.train(only_replayed(mixed()))

    assert (learned, trainer.train_step, trainer.stats.updates, trainer.stats.skipped) == (0, 1, 1, 0)
    assert changed(trainer.model, before)
    statistics = trainer.statistics()
    assert all(math.isnan(statistics[name]) for name in ("policy_loss", "kl", "explained_variance"))
    assert statistics["replay_kl"] > 0.0
    assert statistics["replayed_fraction"] == 1.0


@pytest.mark.parametrize("schedule", ["kl_adaptive_minibatch", "kl_adaptive_epoch"])
def test_an_adaptive_rate_and_an_adaptive_penalty_look_at_fresh_steps_alone(schedule: str) -> None:
    rate = 1e-12
    optim = OptimConfig(learning_rate=rate, lr_schedule=schedule, lr_adaptive_min=1e-20)
    algo = dataclasses.replace(PLAIN, kl_loss_coeff=1.0, kl_target=0.01)

    def adapted(batch: Batch) -> tuple[float, float]:
        trainer = trainer_for(tiny_model(), algo, optim)
        trainer.train(batch)
        assert trainer.statistics()["kl_coeff"] == trainer.coefficients.kl
        return trainer.coefficients.rates.policy / rate, trainer.coefficients.kl

    batch = as_acted(tiny_model(), random_batch(tiny_model(), rows=ROWS))
    far = batch.behavior_log_prob - 1.0

    # Fresh steps have not diverged, replayed ones have by far; and the other way round.
    assert adapted(with_replay(batch, behavior_log_prob=far)) == pytest.approx((1.5, 0.5))
    diverged = dataclasses.replace(batch, behavior_log_prob=far)
    assert adapted(with_replay(diverged, behavior_log_prob=batch.behavior_log_prob)) == pytest.approx((1 / 1.5, 1.5))
    # With nothing fresh there is nothing to go by.
    assert adapted(only_replayed(diverged)) == (1.0, 1.0)
