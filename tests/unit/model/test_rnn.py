"""A rollout through the memory equals its steps one by one; nothing crosses a reset, and held steps keep the state."""

from __future__ import annotations

import math
from typing import Literal, cast

import pytest
import torch
from torch import Tensor, nn

from sfactory.model.layers import Initialization
from sfactory.model.min_gru import MinGruCore
from sfactory.model.rnn import RecurrentCore, RnnType, from_chunks, to_chunks
from sfactory.model.rnn_kernels import LayerWeights, gru_layer, lstm_layer

FEATURES, SIZE = 5, 8
EVERY_TYPE = pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
Resets = Literal["none", "start", "everywhere", "scattered"]


def recurrent(
    rnn_type: RnnType | Literal["mingru"], layers: int = 1, initialization: Initialization = "torch_default"
) -> RecurrentCore:
    if rnn_type == "mingru":
        return cast(RecurrentCore, MinGruCore(FEATURES, SIZE, layers, initialization))
    return RecurrentCore(rnn_type, FEATURES, SIZE, layers, initialization)


def step_by_step(
    core: RecurrentCore, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(len(x)):
        state = torch.where(is_first[t].unsqueeze(-1), 0.0, state)
        y, after = core.step(x[t], state)
        state = after if held is None else torch.where(held[t].unsqueeze(-1), state, after)
        outputs.append(y)
    return torch.stack(outputs), state


def resets(kind: Resets, steps: int, rows: int) -> Tensor:
    is_first = torch.zeros(steps, rows, dtype=torch.bool)
    if kind == "everywhere":
        is_first[:] = True
    elif kind == "start":
        is_first[0] = True
    elif kind == "scattered":
        is_first = torch.rand(steps, rows) < 0.2
    return is_first


def outputs_and_gradients(
    core: RecurrentCore, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None = None, whole: bool = True
) -> list[Tensor]:
    """Outputs, last state, and gradients of x, state and all parameters under a fixed random loss."""
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    y, last = core.sequence(x, state, is_first, held) if whole else step_by_step(core, x, state, is_first, held)
    if held is not None:
        y = y.masked_fill(held.unsqueeze(-1), 0.0)  # without meaning
    generator = torch.Generator().manual_seed(7)
    loss = (y * torch.randn(y.shape, generator=generator)).sum()
    loss = loss + (last * torch.randn(last.shape, generator=generator)).sum()
    gradients = torch.autograd.grad(loss, [x, state, *core.parameters()])
    return [y.detach(), last.detach(), *gradients]


@pytest.mark.parametrize("rnn_type", ["gru", "lstm", "mingru"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", ["none", "start", "everywhere", "scattered"])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 6), (12, 1), (12, 6)])
@pytest.mark.parametrize("holds", [False, True])
def test_sequence_equals_its_steps_in_values_and_gradients(
    rnn_type: RnnType | Literal["mingru"], layers: int, kind: Resets, steps: int, rows: int, holds: bool
) -> None:
    torch.manual_seed(steps + rows + layers)
    core = recurrent(rnn_type, layers)
    x, state = torch.randn(steps, rows, FEATURES), torch.randn(rows, core.state_size)
    is_first = resets(kind, steps, rows)
    held = torch.rand(steps, rows) < 0.4 if holds else None

    whole = outputs_and_gradients(core, x, state, is_first, held)
    stepwise = outputs_and_gradients(core, x, state, is_first, held, whole=False)

    for ours, expected in zip(whole, stepwise, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    if held is not None:
        assert not bool(whole[2][held].any()), "observations of held steps have no effect"


@EVERY_TYPE
def test_sequence_without_resets_equals_torch(rnn_type: RnnType) -> None:
    torch.manual_seed(0)
    core = recurrent(rnn_type, layers=2)
    theirs = (nn.GRU if rnn_type == "gru" else nn.LSTM)(FEATURES, SIZE, num_layers=2)
    with torch.no_grad():
        for mine, other in zip(core.parameters(), theirs.parameters(), strict=True):
            other.copy_(mine)
    x = torch.randn(9, 4, FEATURES)

    y, _ = core.sequence(x, torch.zeros(4, core.state_size), resets("none", 9, 4))

    torch.testing.assert_close(y, theirs(x)[0], rtol=1e-5, atol=1e-6)


@EVERY_TYPE
def test_gradients_equal_finite_differences(rnn_type: RnnType) -> None:
    torch.manual_seed(1)
    keep = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).view(1, 3, 1).repeat(4, 1, 1)
    gates = {"gru": 3, "lstm": 4}[rnn_type]
    shapes = [(4, 3, 2), *[(3, 3)] * (gates - 2), (gates * 3, 2), (gates * 3, 3), (gates * 3,), (gates * 3,)]
    arguments = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def gru(x: Tensor, state: Tensor, *weights: Tensor) -> Tensor:
        return gru_layer(x, state, keep, LayerWeights(*weights))

    def lstm(x: Tensor, state: Tensor, cell: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_layer(x, state, cell, keep, LayerWeights(*weights))

    assert torch.autograd.gradcheck(gru if rnn_type == "gru" else lstm, arguments)


@EVERY_TYPE
def test_state_that_is_reset_has_no_effect_even_if_it_holds_nan(rnn_type: RnnType) -> None:
    torch.manual_seed(4)
    core = recurrent(rnn_type)
    x, clean = torch.randn(3, 2, FEATURES), torch.randn(2, core.state_size)
    garbage = clean.clone()
    garbage[1] = math.nan
    is_first = torch.zeros(3, 2, dtype=torch.bool)
    is_first[0, 1] = True

    results = [outputs_and_gradients(core, x, state, is_first) for state in (garbage, clean)]

    assert all(torch.equal(ours, expected) for ours, expected in zip(*results, strict=True))
    gradient_of_state = results[0][3]
    assert gradient_of_state[1].abs().max() == 0.0
    assert gradient_of_state[0].abs().max() > 0.0


def test_orthogonal_gates_preserve_lengths_and_the_forget_gate_starts_open() -> None:
    torch.manual_seed(8)

    layer = recurrent("lstm", 1, "orthogonal").layers[0]

    assert isinstance(layer.hidden, Tensor)
    assert isinstance(layer.input_bias, Tensor)
    for gate in layer.hidden.detach().split(SIZE):
        torch.testing.assert_close(gate @ gate.t(), torch.eye(SIZE), rtol=0.0, atol=1e-5)
    assert layer.input_bias.detach().view(4, SIZE)[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


@EVERY_TYPE
def test_autocast_does_not_change_the_computation(rnn_type: RnnType) -> None:
    torch.manual_seed(9)
    core = recurrent(rnn_type)
    x, state, is_first = torch.randn(4, 3, FEATURES), torch.zeros(3, core.state_size), resets("none", 4, 3)

    with torch.autocast("cpu", torch.bfloat16):
        y, last = core.sequence(x, state, is_first)

    assert (y.dtype, last.dtype) == (torch.float32, torch.float32)
    assert torch.equal(y, core.sequence(x, state, is_first)[0])


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_chunks_hold_consecutive_steps_and_are_joined_in_order(length: int) -> None:
    steps, rows = 6, 4
    x = torch.arange(steps * rows * 2).view(steps, rows, 2)

    chunks = to_chunks(x, length)

    assert chunks.shape == (length, steps // length * rows, 2)
    for column in range(chunks.shape[1]):
        k, row = divmod(column, rows)
        assert torch.equal(chunks[:, column], x[k * length : (k + 1) * length, row])
    assert torch.equal(from_chunks(chunks, rows), x)
