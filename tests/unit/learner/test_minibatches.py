"""A dataset is cut into minibatches without rest: whole rows where steps belong together, single steps otherwise."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.minibatches import Minibatch, Minibatches
from sfactory.learner.targets import Targets
from tests.support.equality import changed, copied
from tests.support.parts import fields_of, random_batch, tiny_model, trainer_for

STEPS = 4


def marked(rows: int, memory: int = 0, chunks: int = 1) -> tuple[Batch, Targets]:
    """A batch in which step t of row r carries the mark 100 r + t in every field, and targets of mark + 0.5."""
    marks = 100.0 * torch.arange(rows) + torch.arange(STEPS + 1).unsqueeze(1)
    at_steps = marks[:STEPS]
    names = ("behavior_log_prob", "behavior_value", "rewards", "discounts")
    batch = dataclasses.replace(
        random_batch(tiny_model(), steps=STEPS, rows=rows),
        obs={"obs": marks.unsqueeze(-1).repeat(1, 1, 3)},
        actions={"action": at_steps.long()},
        policy_version=-at_steps.int(),
        lag=at_steps.int(),
        is_first=marks % 3 == 0,
        taken=at_steps % 7 != 0,
        valid=at_steps % 7 != 0,
        replayed=at_steps % 5 == 0,
        rnn_states=(100.0 * torch.arange(rows)).view(1, rows, 1).expand(chunks + 1, rows, memory).clone(),
        **fields_of({name: at_steps.clone() for name in names}),
    )
    return batch, Targets(at_steps + 0.5, at_steps + 0.25)


def marks_of(minibatch: Minibatch) -> Tensor:
    """[T, R] marks; fails unless every field and target of a step is of the same step."""
    batch, marks = minibatch.batch, minibatch.batch.rewards
    for name in ("behavior_log_prob", "behavior_value", "discounts", "lag"):
        assert torch.equal(getattr(batch, name).float(), marks), name
    assert torch.equal(batch.actions["action"].float(), marks)
    assert torch.equal(batch.obs["obs"][: len(marks), :, 2], marks)
    assert torch.equal(batch.valid, marks % 7 != 0)
    assert torch.equal(batch.taken, batch.valid)
    assert torch.equal(batch.replayed, marks % 5 == 0)
    assert torch.equal(batch.policy_version.float(), -marks)
    assert torch.equal(batch.is_first[: len(marks)], marks % 3 == 0)
    if minibatch.targets is not None:
        assert torch.equal(minibatch.targets.returns, marks + 0.5)
        assert torch.equal(minibatch.targets.advantages, marks + 0.25)
    return marks


def generator_of(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("memory", "with_targets"), [(0, False), (3, False), (3, True)])
def test_rows_stay_whole_with_vtrace_and_with_memory(memory: int, with_targets: bool) -> None:
    batch, targets = marked(rows=6, memory=memory, chunks=2)
    minibatches = Minibatches(batch, targets if with_targets else None, count=3, generator=generator_of())

    drawn = []
    for part in minibatches.epoch():
        marks = marks_of(part)
        assert marks.shape == (STEPS, 2)
        assert torch.equal(marks - marks[0], torch.arange(float(STEPS)).unsqueeze(1).expand(STEPS, 2))
        # The observation after the last step, and memory, belong to the same rows.
        assert torch.equal(part.batch.obs["obs"][STEPS, :, 0], marks[0] + STEPS)
        assert torch.equal(part.batch.rnn_states, marks[0].view(1, 2, 1).expand(3, 2, memory))
        drawn += marks[0].tolist()
    assert sorted(drawn) == [0, 100, 200, 300, 400, 500]
    assert drawn != sorted(drawn)


def test_single_steps_are_drawn_with_gae_and_without_memory() -> None:
    parts = [marks_of(part) for part in Minibatches(*marked(rows=6), count=3, generator=generator_of()).epoch()]

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
    minibatches = Minibatches(batch, targets if with_targets else None, count, generator)

    for _ in range(2):
        parts = [marks_of(minibatch) for minibatch in minibatches.epoch()]

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
