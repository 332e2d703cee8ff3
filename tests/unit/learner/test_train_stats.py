"""Statistics of updates leave out invalid steps, and no time is lost between messages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig
from sfactory.learner.train_stats import (
    COEFFICIENTS,
    GRADIENT,
    INTRINSIC,
    NAMES,
    LossTerms,
    UpdateStats,
    statistics_of,
    sums_of,
)
from sfactory.messages import TRAIN_STATISTICS, TrainStats
from sfactory.shared import timing_stats
from sfactory.shared.timing_stats import Timings
from tests.support.parts import random_batch, tiny_model, trainer_for

SHAPE = (7, 5)
CLIP = (0.8, 1.2)
NUMBERS = LossTerms._fields[:8]


def cells_of(garbage: float = 0.0) -> LossTerms:
    """Random cells, some of them invalid (with ``garbage`` in them) and some replayed."""
    generator = torch.Generator().manual_seed(0)
    valid = torch.rand(SHAPE, generator=generator) > 0.3
    replayed = torch.rand(SHAPE, generator=generator) > 0.6
    numbers = {name: torch.where(valid, torch.randn(SHAPE, generator=generator), garbage) for name in NUMBERS}
    return LossTerms(**numbers, valid=valid, replayed=replayed, reward_clipped=numbers["value"] > 0.0)


def statistics(cells: LossTerms) -> dict[str, float]:
    return dict(zip(NAMES, statistics_of(sums_of(cells, CLIP, torch.zeros(()))).tolist(), strict=True))


def test_every_statistic_of_the_list_is_reported() -> None:
    trainer = trainer_for(tiny_model())
    trainer.train(random_batch(trainer.model))

    assert (
        sorted(trainer.statistics())
        == sorted(TRAIN_STATISTICS)
        == sorted([*NAMES, *GRADIENT, *COEFFICIENTS, *INTRINSIC])
    )
    assert set(TrainStats._fields) - set(TRAIN_STATISTICS) == {"policy", "updates", "lag", "replay_lag"}


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_invalid_cells_are_in_no_statistic(garbage: float) -> None:
    clean = cells_of()

    assert statistics(cells_of(garbage=garbage)) == statistics(clean)
    same_targets = clean._replace(target=torch.full(SHAPE, 3.0))
    assert math.isnan(statistics(same_targets)["explained_variance"])


def row(**numbers: float) -> list[float]:
    """A row of a taken update with 4 valid steps: the named statistics, 1 for all others."""
    return [4.0, 3.0, 3.0, 3.0, 1.0, 0.0, *(numbers.get(name, 1.0) for name in (*NAMES, *GRADIENT))]


def test_means_are_over_the_updates_that_have_the_number() -> None:
    rows = np.array([row(kl=2.0, replay_kl=math.nan), row(kl=4.0, replay_kl=6.0), row(kl=math.nan, replay_kl=math.nan)])
    stats = UpdateStats(max_bad_steps=10)

    stats.add(rows)

    means = stats.means.value()
    assert (stats.means.updates, stats.train_step) == (3, 3)
    assert (means["kl"], means["replay_kl"], means["grad_norm"]) == (3.0, 6.0, 1.0)
    stats.clear()
    assert math.isnan(stats.means.value()["kl"])


def test_the_valid_fraction_counts_minibatches_that_are_masked_as_a_whole() -> None:
    trainer = trainer_for(tiny_model(), learner=LearnerConfig(num_batches_per_epoch=2))
    batch = random_batch(trainer.model)
    batch.valid[:, :2] = False

    trainer.train(batch)

    assert trainer.stats.means.updates == 1
    assert trainer.statistics()["valid_fraction"] == 0.5


def test_share_of_clipped_rewards_is_a_metric_and_a_single_warning(caplog: pytest.LogCaptureFixture) -> None:
    algo, rewards = AlgoConfig(reward_clip=1.0), torch.tensor([[0.5, -2.0, 1.0, 3.0]]).expand(5, 4)
    trainer = trainer_for(tiny_model(), algo)
    clipped = random_batch(trainer.model, rewards=rewards.clamp(-1.0, 1.0), reward_clipped=rewards.abs() > 1.0)

    trainer.train(clipped)
    trainer.train(clipped)

    assert trainer.statistics()["reward_clipped"] == 0.5
    assert [r.message.split(",")[0] for r in caplog.records if "--reward_clip" in r.message] == [
        "--reward_clip clips rewards (50% of the steps)"
    ]


def test_means_are_of_the_stretches_since_the_last_message_that_was_sent() -> None:
    timings = Timings()
    for name, seconds in (("grad", 0.2), ("grad", 0.6), ("publish", 0.002)):
        timings.add(name, seconds)
    assert timings.message(0, updates=8).update_ms == pytest.approx(100.0)

    timings.add("grad", 0.4)  # the message before could not be sent
    message = timings.message(3, updates=2)
    timings.add("load", 0.3)  # between message and clear: of the next means
    timings.clear()

    assert message.policy == 3
    means = message.grad_ms, message.update_ms, message.publish_ms, message.load_ms
    assert means == pytest.approx((400.0, 120.0, 2.0, math.nan), nan_ok=True)
    following = timings.message(3, updates=0)
    means = following.grad_ms, following.update_ms, following.publish_ms, following.load_ms
    assert means == pytest.approx((math.nan, math.nan, math.nan, 300.0), nan_ok=True)


def test_failed_stretch_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.5, 20.0])
    monkeypatch.setattr(timing_stats, "now", lambda: next(moments))
    timings = Timings()

    with timings.stretch("grad"):
        pass
    with pytest.raises(RuntimeError), timings.stretch("grad"):
        raise RuntimeError

    assert timings.message(0, 1).grad_ms == 2500.0
