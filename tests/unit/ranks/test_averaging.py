"""Ranks that update their weights apart take over the mean of them, and save nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sfactory.errors import DivergedError, LearnerFailed
from sfactory.learner.learner_process import LearnerWorker
from sfactory.model.averaging import Averaging
from sfactory.model.flat_state import FlatState
from sfactory.model.normalizer import EPS, RunningNormalizer
from sfactory.ranks import agreement
from sfactory.ranks.ranks import ALONE, Ranks
from sfactory.shared.slots import SlotState
from tests.support.lone_learner import LoneLearner, send
from tests.support.parts import model_of
from tests.support.processes import eventually
from tests.support.ranks import Parted, ThreadRanks, as_threads

DATASETS = 4
FLAGS: dict[str, Any] = {"normalize_input": True, "normalize_returns": True, "save_every_sec": 1e-9}
# Ranks wait for a mean where collection waits for the learner.
WAITING: dict[str, Any] = {"async_rl": False, "num_batches_per_epoch": 1}
Weights = dict[str, Tensor]


def made(rank: int, ranks: Ranks = ALONE, checkpoints: Path | None = None, **flags: Any) -> LoneLearner:
    """The learner of a rank, which has its own data; the first one saves."""
    lone = LoneLearner(None if rank else checkpoints, ranks=ranks, **{**FLAGS, **WAITING, **flags})
    generator = torch.Generator().manual_seed(20 + rank)
    lone.area.obs["obs"].normal_(mean=rank, generator=generator)
    lone.area.scalars["reward"].normal_(generator=generator)
    return lone


def weights_of(lone: LoneLearner) -> Weights:
    """And statistics."""
    state = lone.learning.trainer.model.state_dict()
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def learned_alone(rank: int, first: Weights, datasets: int) -> LoneLearner:
    lone = made(rank)
    lone.learning.trainer.model.load_state_dict(first)
    for _ in range(datasets):
        lone.learn()
    return lone


def learn_apart(lone: LoneLearner, datasets: int = DATASETS) -> None:
    for _ in range(datasets):
        assert lone.learning.may_open(True)
        lone.learn()


def equal(some: Weights, other: Weights, within: float = 0.0) -> bool:
    return all(torch.allclose(some[name], other[name], rtol=0.0, atol=within) for name in other)


def values_of(weights: Weights) -> Tensor:
    """Weights and bias of the value head in the unit of rewards."""
    scale, shift = (weights[f"value_head.returns.{name}"] for name in ("scale", "shift"))
    layer, bias = (weights[f"value_head.linear.{name}"] for name in ("weight", "bias"))
    return torch.cat([(layer / scale).flatten(), (bias - shift) / scale])


def mean_of(*each: Weights) -> Weights:
    """Without what is derived from statistics of observations."""
    derived = re.compile(r"obs_normalizer\..*\.(scale|shift)")
    names = [name for name in each[0] if not derived.fullmatch(name)]
    return {name: torch.stack([weights[name] for weights in each]).mean(0) for name in names}


class Apart(NamedTuple):
    """A rank after a round: its learner; its weights at first, before the meeting and after it; steps before it."""

    lone: LoneLearner
    first: Weights
    before: Weights
    after: Weights
    steps: float


def one_round(ranks: ThreadRanks, checkpoints: Path, **flags: Any) -> Apart:
    lone = made(ranks.rank, ranks, checkpoints, sync_every=DATASETS, **flags)
    first = weights_of(lone)
    learn_apart(lone)
    before, steps = weights_of(lone), lone.row.get("env_steps")
    assert lone.learning.may_open(True)
    return Apart(lone, first, before, weights_of(lone), steps)


def test_ranks_have_the_mean_of_what_each_would_learn_alone(tmp_path: Path) -> None:
    zero, one = as_threads(2, lambda ranks: one_round(ranks, tmp_path))

    assert equal(zero.first, one.first)
    alone = [learned_alone(rank, zero.first, DATASETS) for rank in range(2)]
    for rank, lone in zip((zero, one), alone, strict=True):
        assert equal(rank.before, weights_of(lone))
        assert equal(rank.after, mean_of(zero.before, one.before), 1e-6)
    assert equal(zero.after, one.after)
    assert not equal(zero.before, one.before, 1e-3)
    # Steps count once all have met; the version is that of all, and the checkpoint has the mean.
    steps = sum(lone.learning.progress.env_steps for lone in alone)
    assert steps > 0 == zero.steps
    assert [rank.lone.learning.progress.env_steps for rank in (zero, one)] == [steps, steps]
    assert zero.lone.learning.publisher.version == zero.lone.learning.trainer.train_step == DATASETS
    saved = zero.lone.saved()
    assert saved is not None
    assert equal(saved["model"], zero.after)
    assert saved["env_steps"] == steps


def test_where_collection_waits_slots_come_free_once_the_mean_is_published() -> None:
    def collect(ranks: ThreadRanks) -> tuple[Weights, int, list[SlotState]]:
        lone = made(ranks.rank, ranks, sync_every=2)
        worker, table, meet = LearnerWorker(lone.setup, lone.learning, lone.row), lone.shared.table, ranks.meet
        states: list[SlotState] = []

        def watched(word: str, give_up: Callable[[], bool]) -> list[str]:
            states.append(table.state(0))
            return meet(word, give_up)

        ranks.meet = watched  # type: ignore[method-assign]
        for number in range(2):
            send(lone, 0, first=100 * ranks.rank + number)
            assert worker.assemble(1.0)
            assert lone.learning.may_open(True)
            worker.learn()
            assert table.state(0) is SlotState.FREE
        return weights_of(lone), lone.learning.publisher.publications, states

    zero, one = as_threads(2, collect)

    assert equal(zero[0], one[0])
    for _, publications, states in (zero, one):
        assert publications == 1 + 2 + 1  # at first, after each dataset, and the mean
        assert states == [SlotState.READY] * 2


def test_ranks_go_on_during_a_meeting_and_keep_what_they_have_learned_meanwhile(tmp_path: Path) -> None:
    def meanwhile(ranks: ThreadRanks) -> Apart:
        lone = made(ranks.rank, ranks, tmp_path, sync_every=DATASETS, async_rl=True)
        agreement = lone.learning.agreement
        assert agreement is not None
        lone.learning.progress.earlier_seconds = 1.0
        assert lone.learning.may_open(True)  # the first meeting begins, at which there is nothing to exchange yet
        lone.learn()
        assert eventually(lambda: not lone.learning.may_open(False) and agreement.train_seconds == 1.0, 30.0, 0.0)
        learn_apart(lone, DATASETS - 1)
        assert lone.learning.may_open(True)
        first = weights_of(lone)
        lone.learn()
        before, steps = weights_of(lone), lone.row.get("env_steps")
        assert eventually(lambda: not lone.learning.may_open(False) and lone.learning.progress.env_steps > 0, 30.0, 0.0)
        return Apart(lone, first, before, weights_of(lone), steps)

    zero, one = as_threads(2, meanwhile)

    mean = mean_of(zero.first, one.first)
    for rank in (zero, one):
        learned = [name for name in mean if not name.startswith(("value_head", "obs_normalizer"))]
        since = {name: rank.before[name] - rank.first[name] for name in learned}
        assert not equal(since, {name: torch.zeros_like(since[name]) for name in learned}, 1e-4)
        statistics = {name: mean[name] for name in mean if ".returns." in name or name.startswith("obs_normalizer")}
        assert equal(rank.after, {name: mean[name] + since[name] for name in learned} | statistics, 1e-6)
        changed = values_of(rank.before) - values_of(rank.first)
        assert changed.abs().max() > 1e-5
        assert torch.allclose(values_of(rank.after), values_of(mean) + changed, rtol=0.0, atol=1e-6)
        assert rank.steps == 0 < rank.lone.learning.progress.env_steps
        assert rank.lone.learning.publisher.version == rank.lone.learning.trainer.train_step == DATASETS + 1
    saved = zero.lone.saved()
    assert saved is not None
    assert saved["train_step"] == DATASETS
    assert equal(saved["model"], mean, 1e-6)


def test_observations_are_normalized_by_their_statistics_where_a_variance_fell_by_more_than_the_mean() -> None:
    def average(ranks: ThreadRanks) -> RunningNormalizer:
        model = model_of(normalize_input=True)
        assert model.obs_normalizer is not None
        normalizer = model.obs_normalizer.by_key["obs"]
        averaging = Averaging(model, FlatState(model), [], 0.0, ranks)
        for var, and_then in ((100.0, averaging.give), (10.0, averaging.exchange)):
            normalizer.var.fill_(1.0 if ranks.rank else var)
            normalizer.mean.fill_(3.0)
            normalizer.derive()
            and_then()
        averaging.join()
        assert normalizer.scale.flatten()[0] == pytest.approx(50.5**-0.5, rel=1e-4)
        averaging.go_on()
        return normalizer

    one, other = as_threads(2, average)

    for normalizer in (one, other):  # 50.5 - 90 would be below 0
        assert normalizer.var.flatten()[0] == 50.5
        scale = (50.5 + EPS) ** -0.5
        assert normalizer.scale.flatten()[0] == pytest.approx(scale)
        assert normalizer.shift.flatten()[0] == pytest.approx(-3.0 * scale)


@pytest.mark.parametrize("normalize_returns", [False, True])
def test_momentum_is_that_of_the_formula(normalize_returns: bool) -> None:
    world, rounds, factor = 3, 4, 0.8
    changes = torch.rand(rounds, world, 2, generator=torch.Generator().manual_seed(1)) - 0.5

    def average(ranks: ThreadRanks) -> tuple[list[Tensor], list[float]]:
        model, beside = model_of(normalize_returns=normalize_returns, normalize_input=True), nn.Linear(2, 2)
        assert model.obs_normalizer is not None
        followed: dict[str, Tensor] = {
            "learned": model.policy_head.linear.bias,
            "value": model.value_head.linear.bias,
            "statistic": model.obs_normalizer.by_key["obs"].mean,
            "beside": beside.bias,
        }
        for weights in (*model.parameters(), *beside.parameters()):
            weights.data.zero_()
        averaging = Averaging(model, FlatState(model), [FlatState(beside)], factor, ranks)
        for number in range(rounds):
            for tensor in followed.values():
                tensor.data += changes[number, ranks.rank, 0].to(tensor.dtype)
            averaging.give()
            averaging.exchange()
            averaging.join()
        return [tensor.detach().flatten()[:1].float() for tensor in followed.values()], [averaging.checksum()]

    several = as_threads(world, average)

    with_momentum = without = momentum = 0.0
    for mean in changes[:, :, 0].mean(1).tolist():
        momentum = factor * momentum + mean
        with_momentum += mean + factor * momentum
        without += mean
    value = without if normalize_returns else with_momentum
    for followed, checksums in several:
        assert torch.cat(followed).tolist() == pytest.approx([with_momentum, value, without, with_momentum], abs=1e-5)
        assert checksums == several[0][1]


def test_a_mean_that_is_left_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_CHECK_EVERY", 1)

    def two_rounds(ranks: ThreadRanks) -> Apart:
        apart = one_round(ranks, tmp_path)
        learn_apart(apart.lone, DATASETS - 1)
        assert apart.lone.learning.may_open(True)
        apart.lone.learn()
        assert apart.lone.learning.may_open(True)
        return apart

    as_threads(2, two_rounds)
    with pytest.raises(LearnerFailed, match="checksums"):
        as_threads(2, two_rounds, {"weights"})


def test_a_resumed_run_goes_on_with_its_momentum_and_what_follows_a_meeting_is_not_saved(tmp_path: Path) -> None:
    def momenta(lone: LoneLearner) -> list[Tensor]:
        assert lone.learning.trainer.averaging is not None
        return lone.learning.trainer.averaging.state()

    def end(ranks: ThreadRanks) -> Apart:
        apart = one_round(ranks, tmp_path, sync_momentum=0.5)
        apart.lone.learn()
        assert not equal(weights_of(apart.lone), apart.after, 1e-4)
        apart.lone.learning.finish(save=True)  # as after the loss of the other rank
        return apart

    ended, _ = as_threads(2, end)
    assert equal(weights_of(ended.lone), ended.after)
    assert ended.lone.learning.trainer.train_step == ended.lone.row.get("updates") == DATASETS  # that of the mean
    assert any(momentum.abs().max() > 1e-4 for momentum in momenta(ended.lone))

    def resume(ranks: ThreadRanks) -> LoneLearner:
        lone = made(ranks.rank, ranks, tmp_path, sync_every=DATASETS, sync_momentum=0.5)
        assert lone.learning.may_open(True)  # nothing was learned since: the momentum alone moves no weight
        return lone

    for lone in as_threads(3, resume):
        assert equal(weights_of(lone), ended.after)
        for mine, saved in zip(momenta(lone), momenta(ended.lone), strict=True):
            assert torch.equal(mine, saved)
    alone = made(0, checkpoints=tmp_path, sync_every=DATASETS)
    assert equal(weights_of(alone), ended.after)


def test_weights_that_are_not_finite_end_their_rank_and_reach_no_other(tmp_path: Path) -> None:
    def learn(ranks: ThreadRanks) -> None:
        lone = made(ranks.rank, ranks, tmp_path, sync_every=DATASETS)
        learn_apart(lone)
        if ranks.rank:
            next(lone.learning.trainer.model.parameters()).data.view(-1)[0] = torch.nan
            lone.learning.may_open(True)
        with pytest.raises(Parted):
            lone.learning.may_open(True)
        assert all(torch.isfinite(tensor).all() for tensor in weights_of(lone).values())

    with pytest.raises(DivergedError):
        as_threads(2, learn)
