"""Ranks that learn from shards of the data do what one rank does with all of it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.trainer import Trainer
from sfactory.ranks.ranks import ALONE, Ranks
from tests.support.parts import model_of, random_batch, trainer_for
from tests.support.ranks import Parted, as_threads

ROWS, STEPS, DATASETS = 8, 4, 3


class Case(NamedTuple):
    """Fields of the configs of a trainer."""

    model: Mapping[str, Any] = MappingProxyType({})
    algo: Mapping[str, Any] = MappingProxyType({})
    optim: Mapping[str, Any] = MappingProxyType({})
    learner: Mapping[str, Any] = MappingProxyType({})
    no_steps_of: int = -1  # the dataset in which the second half of the rows has no valid step


GAE = {"with_vtrace": False}
NORMALIZED = {"normalize_input": True, "normalize_returns": True}
CASES = {
    "vtrace": Case(),
    "normalized": Case(model=NORMALIZED),
    "memory": Case(model=NORMALIZED | {"use_rnn": True}, learner={"num_batches_per_epoch": 2}),
    "gae": Case(model=NORMALIZED, algo=GAE, learner={"num_epochs": 2, "num_batches_per_epoch": 2}),
    "rate by minibatches": Case(optim={"lr_schedule": "kl_adaptive_minibatch", "lr_schedule_kl_threshold": 0.7}),
    "rate by epochs": Case(
        algo=GAE,
        optim={"lr_schedule": "kl_adaptive_epoch", "lr_schedule_kl_threshold": 0.7},
        learner={"num_epochs": 2},
    ),
    "penalty": Case(algo={"kl_target": 0.7, "kl_loss_coeff": 1.0}),
    "early stop": Case(algo=GAE, learner={"num_epochs": 4, "num_batches_per_epoch": 2, "early_stop_kl": 1.2}),
    "target network": Case(algo={"use_target_net": True, "target_update_interval": 2}),
    "own optimizer of values": Case(
        model={"actor_critic_share_weights": False}, optim={"separate_value_optimizer": True}
    ),
    "microbatches": Case(model=NORMALIZED, learner={"microbatch_size": STEPS}),
    "sum of losses": Case(algo={"loss_reduction": "sum"}),
    "a rank without a step": Case(model=NORMALIZED, no_steps_of=2),
}


class Trained(NamedTuple):
    """weights: and buffers, one after the other. numbers: of the host. statistics: of updates."""

    weights: Tensor
    numbers: tuple[float, ...]
    statistics: dict[str, float]


def dataset(case: Case, number: int) -> Batch:
    """Steps of different rows are valid with different probabilities, so shards have different numbers of them."""
    state_size = model_of(**case.model).state_size
    batch = random_batch(model_of(), steps=STEPS, rows=ROWS, seed=number)
    batch = batch.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    generator = torch.Generator().manual_seed(100 + number)
    valid = torch.rand(STEPS, ROWS, generator=generator) < torch.linspace(0.3, 1.0, ROWS)
    if number == case.no_steps_of:
        valid[:, ROWS // 2 :] = False
    states = torch.zeros(2, ROWS, state_size, dtype=torch.float64)
    scale = torch.linspace(1.0, 9.0, ROWS, dtype=torch.float64)  # so that no shard is like another
    rewards, obs = batch.rewards * scale, {key: leaf * scale.unsqueeze(-1) + 3.0 for key, leaf in batch.obs.items()}
    return dataclasses.replace(batch, rnn_states=states, taken=valid, valid=valid, rewards=rewards, obs=obs)


def shard(batch: Batch, ranks: Ranks, minibatches: int) -> Batch:
    """The rows of a rank: its part of each minibatch."""
    width = ROWS // minibatches
    mine = torch.arange(width).chunk(ranks.world)[ranks.rank]
    return batch.columns(torch.cat([start + mine for start in range(0, ROWS, width)]))


def made(case: Case, ranks: Ranks) -> Trainer:
    return trainer_for(
        model_of(dtype=torch.float64, **case.model),
        AlgoConfig(**case.algo),
        OptimConfig(**case.optim),
        LearnerConfig(batch_size=32, **case.learner),
        ranks=ranks,
    )


def train(case: Case, ranks: Ranks = ALONE) -> Trained:
    with _making:
        trainer, data = made(case, ranks), [dataset(case, number) for number in range(DATASETS)]
    learned = 0
    for batch in data:
        learned += trainer.train(shard(batch, ranks, case.learner.get("num_batches_per_epoch", 1)))
    model, coefficients = trainer.model, trainer.coefficients
    weights = torch.cat([tensor.detach().flatten() for tensor in (*model.parameters(), *model.buffers())])
    numbers = (float(learned), float(trainer.train_step), coefficients.rates.policy, coefficients.kl)
    return Trained(weights, numbers, trainer.statistics())  # type: ignore[arg-type]


_making = threading.Lock()  # torch has one generator for all threads


def difference(some: Trained, other: Trained) -> float:
    return float((some.weights - other.weights).abs().max())


@pytest.mark.parametrize("name", CASES)
def test_ranks_on_shards_equal_one_rank_on_all_rows(name: str) -> None:
    case = CASES[name]
    one = train(case)

    for world in (2, 4):
        several = as_threads(world, lambda ranks: train(case, ranks))
        assert difference(several[0], one) < 1e-12
        for trained in several:
            assert torch.equal(trained.weights, several[0].weights)
            assert trained.numbers == several[0].numbers
            assert trained.statistics == pytest.approx(several[0].statistics, rel=0, abs=0, nan_ok=True)
        assert several[0].numbers == one.numbers
        assert several[0].statistics == pytest.approx(one.statistics, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("left_out", "name"),
    [
        ({"gradients"}, "vtrace"),
        ({"advantages"}, "vtrace"),
        ({"observations"}, "normalized"),
        ({"returns"}, "normalized"),
        ({"returns"}, "gae"),
        ({"divergence"}, "rate by minibatches"),
        ({"divergence"}, "rate by epochs"),
        ({"divergence"}, "penalty"),
    ],
)
def test_a_sum_that_is_left_out_is_found(left_out: Collection[str], name: str) -> None:
    case = CASES[name]
    one, several = train(case), as_threads(2, lambda ranks: train(case, ranks), left_out)

    assert difference(several[0], one) > 1e-7


def test_results_of_one_rank_alone_part_the_ranks() -> None:
    # One of them ends its passes earlier, and the others wait for it in a sum: with processes, for ever.
    with pytest.raises(Parted):
        as_threads(2, lambda ranks: train(CASES["early stop"], ranks), {"results"})
    case = CASES["a rank without a step"]
    assert {trained.numbers[:2] for trained in as_threads(2, lambda ranks: train(case, ranks), {"results"})} != {
        train(case).numbers[:2]
    }
