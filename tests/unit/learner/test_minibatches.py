"""A dataset is cut into minibatches, and a minibatch into parts that have the step of the whole, up to rounding."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.loss import LossFunction
from sfactory.learner.minibatches import Minibatch, epoch_of
from sfactory.learner.targets import Targets
from sfactory.learner.trainer import Trainer
from tests.support.equality import changed, copied
from tests.support.parts import (
    loss_and_gradients,
    loss_of,
    model_of,
    moved_target,
    random_batch,
    record,
    tiny_config,
    tiny_model,
    trainer_for,
)

STEPS = 4


def carry(marks: Tensor, tensor: Tensor) -> Tensor:
    """``marks`` [T+1, R] in the shape and dtype of a field of Batch."""
    at_rows = marks[: len(tensor)].reshape(-1, marks.shape[1], *[1] * (tensor.ndim - 2)).expand(tensor.shape)
    return at_rows % 7 != 0 if tensor.dtype is torch.bool else at_rows.to(tensor.dtype)


def marked(rows: int, memory: int = 0, chunks: int = 1) -> tuple[Batch, Targets]:
    """A batch in which step t of row r carries the mark 100 r + t in every field, and targets of mark + 0.5."""
    marks = 100.0 * torch.arange(rows) + torch.arange(STEPS + 1).unsqueeze(1)
    batch = random_batch(tiny_model(), steps=STEPS, rows=rows, rnn_states=torch.zeros(chunks + 1, rows, memory))
    targets = Targets(advantages=marks[:STEPS] + 0.25, returns=marks[:STEPS] + 0.5)
    return batch.map(lambda tensor: carry(marks, tensor)), targets


def marks_of(minibatch: Minibatch) -> Tensor:
    """[T, R] marks; fails unless every field and target of a step is of the same step."""
    marks = minibatch.batch.rewards
    ahead = torch.cat((marks, marks[-1:] + 1))

    def checked(tensor: Tensor) -> Tensor:
        assert torch.equal(tensor, carry(ahead, tensor))
        return tensor

    minibatch.batch.map(checked)
    if minibatch.targets is not None:
        assert torch.equal(minibatch.targets.returns, marks + 0.5)
        assert torch.equal(minibatch.targets.advantages, marks + 0.25)
    return marks


def generator_of(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("memory", "with_targets"), [(0, False), (3, False), (3, True)])
def test_rows_stay_whole_with_vtrace_and_with_memory(memory: int, with_targets: bool) -> None:
    batch, targets = marked(rows=6, memory=memory, chunks=2)

    drawn = []
    for part in epoch_of(Minibatch(batch, targets if with_targets else None), count=3, generator=generator_of()):
        marks = marks_of(part.minibatch())
        assert marks.shape == (STEPS, 2)
        assert torch.equal(marks - marks[0], torch.arange(float(STEPS)).unsqueeze(1).expand(STEPS, 2))
        drawn += marks[0].tolist()
    assert sorted(drawn) == [0, 100, 200, 300, 400, 500]
    assert drawn != sorted(drawn)


def test_single_steps_are_drawn_with_gae_and_without_memory() -> None:
    whole = Minibatch(*marked(rows=6))

    parts = [marks_of(part.minibatch()) for part in epoch_of(whole, count=3, generator=generator_of())]

    assert [part.shape for part in parts] == [(1, 8)] * 3
    # Steps of a row are torn apart: no minibatch holds whole rows alone.
    assert all(len({mark // 100 for mark in part[0].tolist()}) > 2 for part in parts)


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 5),
    count=st.integers(1, 5),
    memory=st.integers(0, 2),
    with_targets=st.booleans(),
    seed=st.none() | st.integers(0, 2**31),
)
def test_every_step_comes_exactly_once_in_every_epoch(
    width: int, count: int, memory: int, with_targets: bool, seed: int | None
) -> None:
    batch, targets = marked(rows=width * count, memory=memory)
    generator = None if seed is None else generator_of(seed)

    for _ in range(2):
        epoch = list(epoch_of(Minibatch(batch, targets if with_targets else None), count, generator))
        parts = [marks_of(part.minibatch()) for part in epoch]
        for part, marks in zip(epoch, parts, strict=True):
            part.write_to(memory_of_part := part.memory())
            assert torch.equal(marks_of(memory_of_part), marks)
            assert part.shapes() == tuple((tuple(each.shape), each.dtype) for each in memory_of_part.tensors())

        assert len(parts) == count
        assert {part.numel() for part in parts} == {STEPS * width}
        drawn = torch.cat([part.flatten() for part in parts])
        assert torch.equal(drawn.sort().values, batch.rewards.flatten().sort().values)
        if seed is None:
            assert torch.equal(torch.cat(parts, dim=1), batch.rewards)


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_a_trainer_shuffles_by_its_seed_its_policy_and_its_train_step(with_vtrace: bool) -> None:
    batch = random_batch(tiny_model(), rows=8)

    def after(train_step: int = 0, shuffle: bool = True, seed: int = 5, policy: int = 0) -> dict[str, Tensor]:
        algo, optim = AlgoConfig(with_vtrace=with_vtrace), OptimConfig(learning_rate=0.01)
        learner = LearnerConfig(num_batches_per_epoch=2, num_epochs=2, shuffle_minibatches=shuffle)
        trainer = trainer_for(model, algo, optim, learner, seed=seed, policy=policy)
        model.load_state_dict(start)
        trainer.train_step = train_step
        trainer.train(batch)
        return copied(model)

    model = tiny_model()
    start = copied(model)
    same = after()
    after()
    assert changed(model, same) == set()
    for other in (after(seed=6), after(policy=1), after(train_step=4), after(shuffle=False)):
        assert any(not torch.equal(other[name], same[name]) for name in same)


ROLLOUT = 6  # steps of each of 6 rows
GAE: dict[str, Any] = {"with_vtrace": False}
MEMORY: dict[str, Any] = {"use_rnn": True}
# Fields of the model, and of the objective.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "appo": ({}, {"kl_loss_coeff": 0.7}),
    "impala": ({}, {"policy_loss": "pg"}),
    "ppo": ({}, {**GAE, "exploration_loss": "symmetric_kl", "exploration_loss_coeff": 0.3}),
    "a2c": ({}, {**GAE, "policy_loss": "pg", "ppo_clip_value": 0.0}),
    "lstm_ppo": ({**MEMORY, "rnn_type": "lstm"}, GAE),
    "separate_towers": ({**MEMORY, "actor_critic_share_weights": False}, {}),
    "gru_impact": (MEMORY, {"use_target_net": True}),
    "sum": ({}, {"loss_reduction": "sum"}),
    "gae_sum": ({}, {"loss_reduction": "sum", "kl_loss_coeff": 0.5, **GAE}),
    "gru_sum": (MEMORY, {"loss_reduction": "sum", **GAE}),
    "plain_advantages": (MEMORY, {"normalize_advantages": False, "vtrace_lambda": 0.8, "vtrace_rho": None}),
}
EXACT = 1e-12
DTYPE = torch.float64


def objective_of(**fields: Any) -> AlgoConfig:
    return AlgoConfig(**{"gamma": 0.9, "ppo_clip_value": 0.3, "exploration_loss_coeff": 0.1, **fields})


def thin_batch(fields: dict[str, Any]) -> Batch:
    """Rollouts of another policy with ends, invalid steps spread unevenly (a part may have none), and replayed rows."""
    actor = model_of(seed=5, **fields)
    batch = record(actor, tiny_config(**fields), recurrence=3 if fields.get("use_rnn") else ROLLOUT)
    taken = batch.taken.clone()
    taken[:, 0] = False
    taken[2:, 1] = False
    replayed = torch.zeros_like(taken)
    replayed[:, 3:5] = True
    noise = 0.5 * torch.randn(batch.behavior_log_prob.shape, generator=torch.Generator().manual_seed(3))
    log_prob = torch.where(taken, (batch.behavior_log_prob + noise).clamp(max=-0.01), torch.nan)
    batch = dataclasses.replace(batch, taken=taken, valid=taken, replayed=replayed, behavior_log_prob=log_prob)
    return batch.map(lambda tensor: tensor.to(DTYPE) if tensor.is_floating_point() else tensor)


def greatest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Between all numbers of two gradients, as a share of the greatest of them."""
    one, other = (torch.cat([gradient.flatten() for gradient in gradients]) for gradients in (ours, theirs))
    return float((one - other).abs().max() / other.abs().max())


# With GAE and without memory parts may cut rollouts.
@pytest.mark.parametrize(
    ("case", "size"),
    [*itertools.product(CASES, (ROLLOUT, 3 * ROLLOUT)), *itertools.product(("ppo", "a2c", "gae_sum"), (1, 4, 9))],
)
def test_gradients_and_divergences_of_parts_add_up_to_those_of_the_whole(case: str, size: int) -> None:
    fields, flags = CASES[case]
    model, config = model_of(dtype=DTYPE, **fields), objective_of(**flags)
    batch = thin_batch(fields)
    target = moved_target(model, config)

    whole = loss_of(model, config, batch, target=target)
    parts = loss_of(model, config, batch, target=target, microbatch_size=size)
    loss, gradients = loss_and_gradients(whole, model)
    sum_of_losses, sums = loss_and_gradients(parts, model)

    assert (whole.parts, parts.parts) == (1, 36 // size)
    assert {gradient.dtype for gradient in gradients} == {DTYPE}
    assert sum_of_losses == pytest.approx(loss, rel=10 * EXACT)
    assert float(max(gradient.abs().max() for gradient in gradients)) > 1e-3
    assert greatest_difference(sums, gradients) < EXACT
    torch.testing.assert_close(parts.returns.view_as(whole.returns), whole.returns, rtol=0.0, atol=10 * EXACT)
    assert parts.statistics == pytest.approx(whole.statistics, rel=100 * EXACT, abs=10 * EXACT)
    # The divergence is measured over fresh steps, by forward passes of its own.
    function = LossFunction(model, config, None, None)
    minibatch = Minibatch(batch, function.gae_targets(batch))
    for divergence in (function.divergence(minibatch, 0), function.divergence(minibatch, size)):
        assert divergence == pytest.approx(whole.statistics["kl"], rel=EXACT)


class Kept:
    """How many bytes were kept for a gradient at once. A part's are gone once its gradient has been taken."""

    def __init__(self) -> None:
        self.most, self._now, self._taking = 0, 0, False

    def pack(self, tensor: Tensor) -> Tensor:
        self._now = tensor.nbytes + (0 if self._taking else self._now)
        self.most, self._taking = max(self.most, self._now), False
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        self._taking = True
        return tensor


def kept_for_gradients(size: int) -> int:
    """The most bytes at once while a minibatch of 64 rollouts is learned from in parts of so many steps."""
    model, kept = tiny_model(), Kept()
    trainer = trainer_for(model, learner=LearnerConfig(microbatch_size=size))
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        trainer.train(random_batch(model, rows=64))
    return kept.most


def test_parts_need_less_memory_for_gradients() -> None:
    # Weights are kept, too, however small the parts are.
    assert kept_for_gradients(5 * 64 // 16) < kept_for_gradients(0) / 8


def trainer_of(case: str, size: int, optim: OptimConfig | None = None, **learner: Any) -> Trainer:
    fields, flags = CASES[case]
    settings = {"num_batches_per_epoch": 2, "num_epochs": 2, "early_stop_loss_change": 0.0, **learner}
    model = model_of(dtype=DTYPE, **fields)
    optim = optim or OptimConfig(learning_rate=0.01)
    return trainer_for(model, objective_of(**flags), optim, LearnerConfig(microbatch_size=size, **settings), seed=3)


def weights_of(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("case", CASES)
def test_training_in_parts_takes_the_same_steps(case: str) -> None:
    # A minibatch has 3 rows of 6 steps; SGD would hide nothing, Adam's first step hides even less.
    whole, parts = (trainer_of(case, size, shuffle_minibatches=True) for size in (0, ROLLOUT))
    batch = thin_batch(CASES[case][0])
    before = weights_of(whole)

    learned = [trainer.train(copy.deepcopy(batch)) for trainer in (whole, parts)]

    assert learned[0] == learned[1] == int(batch.fresh.sum())
    assert (whole.train_step, whole.stats.means.updates) == (parts.train_step, parts.stats.means.updates) == (4, 4)
    assert float((weights_of(whole) - before).abs().max()) > 1e-3
    assert float((weights_of(parts) - weights_of(whole)).abs().max()) < 1e-9
    assert parts.statistics() == pytest.approx(whole.statistics(), rel=1e-6, abs=1e-9, nan_ok=True)
