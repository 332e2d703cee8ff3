"""A dataset is opened, passed over and closed; replayed steps teach, and data that cannot teach changes nothing."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.minibatches import Minibatch, epoch_of
from sfactory.learner.trainer import Trainer
from tests.support.equality import assert_same, changed, copied
from tests.support.parts import as_acted, model_of, random_batch, tiny_model, trainer_for

VTRACE = AlgoConfig()
EITHER_ALGO = pytest.mark.parametrize("algo", [VTRACE, AlgoConfig(with_vtrace=False)], ids=["vtrace", "gae"])
STANDING_STILL = 1e-30
NAN = math.nan


def trainer_of(batches: int = 1, epochs: int = 1, rate: float = 0.01, algo: AlgoConfig = VTRACE, **f: Any) -> Trainer:
    """A trainer that stops no passes early unless ``f``, fields of LearnerConfig, say so."""
    learner = LearnerConfig(**{"early_stop_loss_change": 0.0, **f}, num_batches_per_epoch=batches, num_epochs=epochs)
    return trainer_for(tiny_model(), algo, OptimConfig(learning_rate=rate), learner, seed=3)


def batch_of(seed: int = 1, bad: tuple[int, ...] = (), masked: slice | None = None) -> Batch:
    """5 steps of 6 rows. bad: rows with a reward of NaN. masked: rows in which no step was taken."""
    batch = random_batch(tiny_model(), rows=6, seed=seed)
    batch.rewards[1, list(bad)] = NAN
    if masked is not None:
        batch.taken[:, masked] = batch.valid[:, masked] = False
    return batch


def state_of(trainer: Trainer) -> dict[str, Any]:
    return copy.deepcopy({"model": dict(trainer.model.state_dict()), **trainer.updater.state()})


def test_a_minibatch_without_a_valid_step_changes_nothing_at_all() -> None:
    trainer = trainer_of()
    trainer.train(batch_of())  # Adam has momentum now, which would move weights by itself
    before = trainer.train_step, state_of(trainer)

    trainer.train(batch_of(masked=slice(None)))

    assert_same((trainer.train_step, state_of(trainer)), before)
    assert trainer.stats.skipped == 0


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_skips_the_step_and_is_counted(bad: float) -> None:
    trainer, batch = trainer_of(), batch_of()
    trainer.train(batch)
    trainer.stats.clear()
    before = state_of(trainer)

    batch.rewards[1, 0] = bad
    trainer.train(batch)

    assert_same(state_of(trainer), before)
    assert (trainer.train_step, trainer.stats.skipped, trainer.stats.means.updates) == (2, 1, 0)


def test_only_steps_that_were_learned_from_count_as_trained(caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_of(batches=2)

    batches = batch_of(), batch_of(masked=slice(0, 1)), batch_of(bad=(5,)), batch_of(bad=(0, 5))

    assert [trainer.train(batch) for batch in batches] == [30, 25, 15, 0]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.split(" skipped")[0] for text in warnings] == ["update 6", "update 7", "update 8"]
    assert all("not finite" in text for text in warnings)


@EITHER_ALGO
@pytest.mark.parametrize(
    ("change", "rate", "epochs"),
    [
        (1e9, 0.01, 2),  # the second epoch is the first that can be compared
        (0.0, 0.01, 7),
        (0.0, STANDING_STILL, 7),  # exactly equal losses are no reason either
        (1e-6, STANDING_STILL, 2),
        (1e-6, 0.01, 7),
    ],
)
def test_epochs_end_once_the_policy_loss_changes_less_than_was_asked_for(
    algo: AlgoConfig, change: float, rate: float, epochs: int
) -> None:
    trainer = trainer_of(2, 7, rate, algo, early_stop_loss_change=change)

    for dataset in (1, 2):
        assert trainer.train(batch_of()) == 30
        # Each dataset begins with no loss to compare with.
        assert trainer.train_step == dataset * 2 * epochs


WARMED_UP: dict[str, dict[str, Any]] = {
    "frozen": {"freeze": ("encoder", "policy"), "freeze_until": 100},
    "a rate of 0": {"lr_schedule": "0:0,99:0,100:0.01", "separate_value_optimizer": True},
}


def warming_up(optim: dict[str, Any], algo: AlgoConfig, learner: LearnerConfig) -> Trainer:
    """A trainer whose critic alone learns until env step 100."""
    model = model_of(actor_critic_share_weights=False)
    trainer = trainer_for(model, algo, OptimConfig(**{"learning_rate": 0.01, **optim}), learner)
    trainer.freezer.at(0)
    return trainer


@EITHER_ALGO
@pytest.mark.parametrize("optim", WARMED_UP.values(), ids=WARMED_UP)
def test_a_policy_that_cannot_change_ends_no_passes_of_the_critic(algo: AlgoConfig, optim: dict[str, Any]) -> None:
    learner = LearnerConfig(early_stop_loss_change=10.0, num_epochs=4)
    trainer = warming_up(optim, algo, learner)
    before = copied(trainer.model)

    trainer.train(batch_of())

    assert trainer.train_step == 4
    assert {name.partition(".")[0] for name in changed(trainer.model, before)} <= {"critic_tower", "value_head"}
    trainer.freezer.at(100)
    trainer.coefficients.at(100)
    trainer.train(batch_of())
    assert trainer.train_step == 6


@pytest.mark.parametrize(
    ("optim", "kl_target"),
    [
        ({**WARMED_UP["frozen"], "lr_schedule": "kl_adaptive_minibatch"}, 0.0),
        ({**WARMED_UP["frozen"], "lr_schedule": "kl_adaptive_epoch"}, 0.0),
        *((optim, 0.01) for optim in WARMED_UP.values()),
    ],
)
def test_nothing_adapts_to_the_divergence_of_a_policy_that_cannot_change(
    optim: dict[str, Any], kl_target: float
) -> None:
    algo = dataclasses.replace(VTRACE, kl_loss_coeff=1.0, kl_target=kl_target)
    trainer = warming_up({**optim, "lr_adaptive_max": 10.0}, algo, LearnerConfig())
    batch, before = as_acted(trainer.model, batch_of()), trainer.coefficients.state()

    trainer.train(batch)

    assert trainer.coefficients.state() == before
    trainer.freezer.at(100)
    trainer.coefficients.at(100)
    before = trainer.coefficients.state()
    trainer.train(batch)
    assert trainer.coefficients.state() != before


def test_early_stop_compares_mean_losses_of_the_same_dataset() -> None:
    # Losses of single minibatches differ by far, and as they are shuffled so do first and last ones of two epochs.
    algo = AlgoConfig(with_vtrace=False, normalize_advantages=False)
    trainer = trainer_of(3, 4, STANDING_STILL, algo, early_stop_loss_change=1e-4, shuffle_minibatches=True)
    first, second = (trainer.open(batch_of(seed)) for seed in (1, 2))

    assert [trainer.learn(dataset) for dataset in (first, second, first, second)] == [True, True, False, False]


def batch_with_divergence(trainer: Trainer, difference: float) -> Batch:
    """A batch in which every log-probability was lower by ``difference`` when it was acted."""
    batch = as_acted(trainer.model, batch_of())
    batch.behavior_log_prob.sub_(difference)
    return batch


@pytest.mark.parametrize(("limit", "passes"), [(0.0, 5), (0.0215, 5), (0.0213, 1), (0.01, 1)])
def test_passes_end_once_the_policy_has_diverged_too_far_from_the_one_that_acted(limit: float, passes: int) -> None:
    trainer = trainer_of(2, 5, STANDING_STILL, early_stop_kl=limit)

    trainer.train(batch_with_divergence(trainer, 0.2))  # e^0.2 - 1 - 0.2 is 0.021403

    assert trainer.statistics()["kl"] == pytest.approx(0.021403, abs=1e-5)
    assert trainer.train_step == 2 * passes


def test_divergence_of_replayed_steps_does_not_end_passes() -> None:
    trainer = trainer_of(1, 3, STANDING_STILL, early_stop_kl=0.01)
    batch = batch_with_divergence(trainer, 0.0)
    batch.replayed[:, 3:] = True
    batch.behavior_log_prob[:, 3:] -= 1.0

    trainer.train(batch)

    assert trainer.train_step == 3
    assert trainer.statistics()["replay_kl"] == pytest.approx(math.e - 2.0, rel=1e-3)


def test_stopped_pass_is_the_last_and_counts_its_steps() -> None:
    trainer = trainer_of(batches=2, epochs=100_000)
    first, second, answers = trainer.open(batch_of()), trainer.open(batch_of()), iter([False, True])

    assert not trainer.learn(first, lambda: next(answers))
    assert not trainer.learn(second, lambda: True)
    assert [trainer.close(dataset) for dataset in (first, second)] == [15, 0]
    assert trainer.train_step == 1


def test_ten_bad_updates_in_a_row_end_the_run_with_finite_weights() -> None:
    trainer, bad = trainer_of(), batch_of(bad=(0,))
    for batch in [bad] * 9 + [batch_of()]:
        trainer.train(batch)
    before = state_of(trainer)
    for _ in range(9):
        trainer.train(bad)

    with pytest.raises(DivergedError, match=r"10 updates in a row .*\(update 20\); lower --learning_rate"):
        trainer.train(bad)

    assert_same(state_of(trainer), before)
    assert trainer.stats.skipped == 19


def test_datasets_opened_at_the_same_step_are_shuffled_differently() -> None:
    trainer = trainer_of(6, rate=STANDING_STILL, shuffle_minibatches=True)
    batch = dataclasses.replace(batch_of(), rewards=torch.arange(6.0).expand(5, 6).clone())
    orders = []

    for dataset in (trainer.open(batch), trainer.open(batch)):
        trainer.learn(dataset)
        epoch = epoch_of(Minibatch(dataset.batch, dataset.targets), 6, dataset.generator)
        orders.append([float(part.minibatch().batch.rewards[0, 0]) for part in epoch])

    assert orders[0] != orders[1]


def test_updates_on_a_dataset_do_not_make_its_own_steps_too_old() -> None:
    algo = AlgoConfig(kl_loss_coeff=1.0, kl_target=1e6)
    trainer = trainer_of(batches=2, epochs=4, algo=algo, max_policy_lag=3)

    assert trainer.train(batch_of()) == 30

    assert trainer.train_step == 2 * 4
    assert trainer.coefficients.kl == 0.5  # the divergence was measured at the end


def test_passes_after_the_weights_were_replaced_leave_out_what_was_sampled_before() -> None:
    trainer, batch = trainer_of(), batch_of()
    batch.policy_version[:, 4:] = 2
    first, second = trainer.open(batch), trainer.open(batch)
    trainer.learn(first)

    trainer.mask_sampled()

    assert trainer.train_step == 2
    for dataset in (first, second, trainer.open(batch)):
        trainer.stats.clear()
        trainer.learn(dataset)
        assert trainer.statistics()["valid_fraction"] == pytest.approx(2 / 6)
    # Each step counts once, though not all of them were there in each pass.
    assert trainer.close(first) == 30
    assert trainer.close(second) == 10


@EITHER_ALGO
def test_normalizers_count_a_dataset_once(algo: AlgoConfig) -> None:
    model = model_of(normalize_input=True, normalize_returns=True)
    trainer = trainer_for(model, algo, OptimConfig(learning_rate=STANDING_STILL))
    first, second = (trainer.open(batch_of(seed)) for seed in (1, 2))
    normalizer, head = model.obs_normalizer, model.value_head.returns
    assert normalizer is not None
    assert head is not None

    def counted() -> tuple[int, int]:
        return int(normalizer.by_key["obs"].count), int(head.count)

    # Before anything is learned observations are taken in at once, later only when a dataset is closed.
    assert counted() == (60, 0 if algo.with_vtrace else 60)
    for dataset in (first, second, first, second):
        trainer.learn(dataset)
    trainer.close(first)
    trainer.close(second)
    assert counted() == (60, 60)

    third = trainer.open(batch_of(3))
    trainer.learn(third)
    trainer.learn(third)
    assert counted() == (60, 90)
    trainer.close(third)
    assert counted() == (90, 90)


def test_dataset_statistics_are_of_its_own_updates() -> None:
    trainer = trainer_of(2, rate=STANDING_STILL)
    whole, thin = trainer.open(batch_of()), trainer.open(batch_of(masked=slice(0, 6, 2)))
    for dataset in (whole, thin, whole, thin):
        trainer.learn(dataset)

    found = [dataset.means.value()["valid_fraction"] for dataset in (thin, whole)]
    assert found == pytest.approx([0.5, 1.0])
    assert trainer.statistics()["valid_fraction"] == pytest.approx(0.75)
    assert trainer.open(batch_of()).means.updates == 0


def test_scheduled_exploration_coefficient_reaches_the_loss() -> None:
    norms = []
    for env_steps, coefficient in ((0, 100.0), (500, 50.0), (1000, 0.0)):
        trainer = trainer_of(algo=AlgoConfig(exploration_loss_coeff_schedule="0:100,1000:0"))
        trainer.coefficients.at(env_steps)
        trainer.train(batch_of())
        assert trainer.statistics()["exploration_coeff"] == coefficient
        norms.append(trainer.statistics()["grad_norm"])

    assert norms[0] > 1.5 * norms[1] > 3.0 * norms[2]


PLAIN = AlgoConfig(gamma=0.9, normalize_advantages=False)
FRESH_ROWS, ROWS = 4, 6


def with_replay(batch: Batch, **changes: Tensor) -> Batch:
    """``batch`` with its last rows replayed. changes: fields of theirs."""
    replayed = torch.zeros_like(batch.valid)
    replayed[:, FRESH_ROWS:] = True
    fields: dict[str, Any] = {
        name: torch.where(replayed, tensor, getattr(batch, name)) for name, tensor in changes.items()
    }
    return dataclasses.replace(batch, replayed=replayed, **fields)


def only_replayed(batch: Batch) -> Batch:
    return dataclasses.replace(batch, replayed=torch.ones_like(batch.valid))


def mixed(seed: int = 1) -> Batch:
    return with_replay(random_batch(tiny_model(), rows=ROWS, seed=seed))


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

    assert (learned, trainer.train_step, trainer.stats.means.updates, trainer.stats.skipped) == (0, 1, 1, 0)
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
        return float(trainer.coefficients.rates.policy) / rate, trainer.coefficients.kl

    batch = as_acted(tiny_model(), random_batch(tiny_model(), rows=ROWS))
    far = batch.behavior_log_prob - 1.0

    # Fresh steps have not diverged, replayed ones have by far; and the other way round.
    assert adapted(with_replay(batch, behavior_log_prob=far)) == pytest.approx((1.5, 0.5))
    diverged = dataclasses.replace(batch, behavior_log_prob=far)
    assert adapted(with_replay(diverged, behavior_log_prob=batch.behavior_log_prob)) == pytest.approx((1 / 1.5, 1.5))
    # With nothing fresh there is nothing to go by.
    assert adapted(only_replayed(diverged)) == (1.0, 1.0)
