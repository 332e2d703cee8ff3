"""A step that must not teach has no part in the loss, and cuts its row in two as if each part had been a rollout."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from tests.support.losses import loss_of
from tests.support.models import model_of, tiny_config
from tests.support.parts import evaluate, fields_of, random_batch
from tests.support.recorded import record

VTRACE = AlgoConfig(gamma=0.9, normalize_advantages=False)
GAE = dataclasses.replace(VTRACE, with_vtrace=False)
PLAIN = dataclasses.replace(VTRACE, policy_loss="pg", vtrace_rho=1.5, vtrace_c=0.8)
MEMORY: list[dict[str, Any]] = [
    {"use_rnn": True},
    {"use_rnn": True, "rnn_type": "lstm", "rnn_num_layers": 2},
    {"use_rnn": True, "actor_critic_share_weights": False},
]


def masked(batch: Batch, valid: Tensor, *garbage: str) -> Batch:
    """``batch`` with these steps valid alone, and NaN in the fields ``garbage`` wherever a step is not."""
    fields = {name: torch.where(valid, getattr(batch, name), torch.nan) for name in garbage}
    return dataclasses.replace(batch, valid=valid, **fields_of(fields))


def loss_and_gradients(model: ActorCritic, batch: Batch, config: AlgoConfig) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    loss = loss_of(model, config, batch)
    torch.autograd.backward(loss.total)
    return loss.total.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def pieces_of(batch: Batch) -> list[Batch]:
    """Each stretch of valid steps of each row as a rollout of its own, followed by the observation after it."""
    pieces = []
    for row in range(batch.rows):
        column = batch.columns(slice(row, row + 1))
        steps = [bool(valid) for valid in batch.valid[:, row]]
        starts = [t for t, valid in enumerate(steps) if valid and (t == 0 or not steps[t - 1])]
        for start in starts:
            end = next((t for t in range(start, len(steps)) if not steps[t]), len(steps))
            pieces.append(_stretch(column, start, end))
    return pieces


def _stretch(column: Batch, start: int, end: int) -> Batch:
    tensors = {field.name: getattr(column, field.name) for field in dataclasses.fields(Batch)}
    cut: dict[str, Any] = {
        name: tensor[start:end] for name, tensor in tensors.items() if isinstance(tensor, Tensor) and name != "is_first"
    }
    cut["obs"] = {key: leaf[start : end + 1] for key, leaf in column.obs.items()}
    cut["actions"] = {key: leaf[start:end] for key, leaf in column.actions.items()}
    cut["is_first"] = column.is_first[start : end + 1]
    cut["rnn_states"] = column.rnn_states
    return Batch(**cut)


def recorded_by(model: ActorCritic, rows: int) -> Batch:
    """A batch whose recorded values are those of the present weights; log-probabilities are off."""
    batch = random_batch(model, steps=6, rows=rows)
    with torch.no_grad():
        value = evaluate(
            model, {"obs": batch.obs["obs"][:-1].flatten(0, 1)}, {"action": batch.actions["action"].flatten()}
        ).value
    return dataclasses.replace(batch, behavior_value=value.view(6, rows))


@settings(max_examples=15, deadline=None)
@given(cells=st.lists(st.booleans(), min_size=18, max_size=18).filter(any))
@pytest.mark.parametrize("config", [VTRACE, GAE, PLAIN], ids=["vtrace", "gae", "pg"])
def test_the_loss_of_a_batch_with_masked_steps_is_that_of_the_stretches_between_them(
    config: AlgoConfig, cells: list[bool]
) -> None:
    model = model_of()
    valid = torch.tensor(cells).view(6, 3)
    batch = masked(recorded_by(model, rows=3), valid, "rewards", "behavior_log_prob")

    loss, gradients = loss_and_gradients(model, batch, config)

    expected, expected_gradients = torch.zeros(()), [torch.zeros_like(p) for p in model.parameters()]
    for piece in pieces_of(batch):
        share = piece.valid.numel() / int(valid.sum())
        of_piece, gradients_of_piece = loss_and_gradients(model, piece, config)
        expected += share * of_piece
        for total, gradient in zip(expected_gradients, gradients_of_piece, strict=True):
            total += share * gradient
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fields", MEMORY, ids=["gru", "lstm", "separate"])
@pytest.mark.parametrize("recurrence", [2, 6])
@pytest.mark.parametrize("normalize_advantages", [True, False])
@pytest.mark.parametrize("config", [VTRACE, GAE], ids=["vtrace", "gae"])
def test_rows_that_are_wholly_masked_have_no_part_in_the_loss_of_a_model_with_memory(
    config: AlgoConfig, normalize_advantages: bool, recurrence: int, fields: dict[str, Any]
) -> None:
    model = model_of(**fields)
    config = dataclasses.replace(config, normalize_advantages=normalize_advantages)
    whole = record(model, tiny_config(**fields), recurrence=recurrence)
    valid = whole.valid.clone()
    valid[:, 4:] = False
    batch = masked(whole, valid, "rewards", "behavior_log_prob", "behavior_value")

    loss, gradients = loss_and_gradients(model, batch, config)
    expected, expected_gradients = loss_and_gradients(model, batch.columns(slice(0, 4)), config)

    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    assert any(bool(gradient.any()) for gradient in gradients)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("config", [VTRACE, GAE], ids=["vtrace", "gae"])
def test_a_masked_step_is_remembered_though_it_does_not_teach(config: AlgoConfig) -> None:
    # Memory after the masked step is what it was when acting: the ratio stays 1 in the steps that follow.
    model = model_of(use_rnn=True)
    batch = record(model, tiny_config(use_rnn=True), terminated=(), truncated=())
    valid = batch.valid.clone()
    valid[2] = False
    batch = masked(batch, valid, "rewards", "behavior_log_prob")

    statistics = loss_of(model, config, batch).statistics

    assert statistics["kl"] < 1e-6
    assert statistics["valid_fraction"] == pytest.approx(5 / 6)
