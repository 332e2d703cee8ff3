"""Ranks that update their weights apart take over the mean of them, and save nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig
from sfactory.errors import DivergedError
from sfactory.learner.auxiliary import make_auxiliary
from sfactory.model.averaging import Averaging
from sfactory.model.flat_state import FlatState
from sfactory.ranks.ranks import ALONE, Ranks
from tests.support.lone_learner import LoneLearner
from tests.support.parts import model_of, tiny_config
from tests.support.ranks import ThreadRanks, as_threads

DATASETS = 4
FLAGS: dict[str, Any] = {"normalize_input": True, "normalize_returns": True, "save_every_sec": 1e-9}
Weights = dict[str, Tensor]


def made(rank: int, ranks: Ranks = ALONE, checkpoints: Path | None = None, **flags: Any) -> LoneLearner:
    """The learner of a rank, which has its own data; the first one saves."""
    lone = LoneLearner(None if rank else checkpoints, ranks=ranks, **{**FLAGS, **flags})
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
    return all(torch.allclose(some[name], other[name], rtol=0.0, atol=within) for name in some)


def mean_of(*each: Weights) -> Weights:
    return {name: torch.stack([weights[name] for weights in each]).mean(0) for name in each[0]}


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
