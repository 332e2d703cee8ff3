"""A rollout through a core equals its steps one by one, and nothing crosses a reset."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.encoders import Initialization
from sfactory.model.rnn import RecurrentCore, RnnType, from_chunks, make_core, to_chunks
from sfactory.model.rnn_kernels import LayerWeights, gru_layer, lstm_layer

FEATURES = 5
SIZE = 8
TYPES: tuple[RnnType, ...] = ("gru", "lstm")


def recurrent(rnn_type: RnnType, layers: int = 1, initialization: Initialization = "torch_default") -> RecurrentCore:
    config = ModelConfig(
        use_rnn=True,
        rnn_type=rnn_type,
        rnn_size=SIZE,
        rnn_num_layers=layers,
        policy_initialization=initialization,
    )
    core = make_core(FEATURES, config)
    assert isinstance(core, RecurrentCore)
    return core


def step_by_step(core: RecurrentCore, x: Tensor, state: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for features, first in zip(x, is_first, strict=True):
        y, state = core.step(features, state.masked_fill(first.unsqueeze(-1), 0.0))
        outputs.append(y)
    return torch.stack(outputs), state


def resets(kind: str, steps: int, rows: int) -> Tensor:
    is_first = torch.zeros(steps, rows, dtype=torch.bool)
    if kind == "everywhere":
        is_first[:] = True
    elif kind == "at the start":
        is_first[0] = True
    elif kind == "scattered":
        is_first = torch.rand(steps, rows) < 0.2
    return is_first


def outputs_and_gradients(core: RecurrentCore, x: Tensor, state: Tensor, is_first: Tensor, whole: bool) -> list[Tensor]:
    """Outputs, last state, and gradients of x, state and all parameters under a fixed random loss."""
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    y, last = core.sequence(x, state, is_first) if whole else step_by_step(core, x, state, is_first)
    generator = torch.Generator().manual_seed(7)
    loss = (y * torch.randn(y.shape, generator=generator)).sum()
    loss = loss + (last * torch.randn(last.shape, generator=generator)).sum()
    gradients = torch.autograd.grad(loss, [x, state, *core.parameters()])
    return [y.detach(), last.detach(), *gradients]


@pytest.mark.parametrize("rnn_type", TYPES)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", ["none", "at the start", "everywhere", "scattered"])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 6), (12, 1), (12, 6)])
def test_sequence_equals_steps_one_by_one_in_values_and_gradients(
    rnn_type: RnnType, layers: int, kind: str, steps: int, rows: int
) -> None:
    torch.manual_seed(steps + rows + layers)
    core = recurrent(rnn_type, layers)
    x, state = torch.randn(steps, rows, FEATURES), torch.randn(rows, core.state_size)
    is_first = resets(kind, steps, rows)

    whole = outputs_and_gradients(core, x, state, is_first, whole=True)
    stepwise = outputs_and_gradients(core, x, state, is_first, whole=False)

    for ours, expected in zip(whole, stepwise, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rnn_type", TYPES)
def test_sequence_without_resets_equals_torch(rnn_type: RnnType) -> None:
    torch.manual_seed(0)
    layers = 2
    core = recurrent(rnn_type, layers)
    theirs = (nn.GRU if rnn_type == "gru" else nn.LSTM)(FEATURES, SIZE, num_layers=layers)
    with torch.no_grad():
        for mine, other in zip(core.parameters(), theirs.parameters(), strict=True):
            other.copy_(mine)
    x = torch.randn(9, 4, FEATURES)

    y, _ = core.sequence(x, torch.zeros(4, core.state_size), resets("none", 9, 4))

    torch.testing.assert_close(y, theirs(x)[0], rtol=1e-5, atol=1e-6)


def layer_arguments(rnn_type: RnnType) -> list[Tensor]:
    gates = {"gru": 3, "lstm": 4}[rnn_type]
    shapes = [(4, 3, 2), *[(3, 3)] * (gates - 2), (gates * 3, 2), (gates * 3, 3), (gates * 3,), (gates * 3,)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("rnn_type", TYPES)
def test_gradients_equal_finite_differences(rnn_type: RnnType) -> None:
    torch.manual_seed(1)
    keep = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).view(1, 3, 1).repeat(4, 1, 1)

    def gru(x: Tensor, state: Tensor, *weights: Tensor) -> Tensor:
        return gru_layer(x, state, keep, LayerWeights(*weights))

    def lstm(x: Tensor, state: Tensor, cell: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_layer(x, state, cell, keep, LayerWeights(*weights))

    assert torch.autograd.gradcheck(gru if rnn_type == "gru" else lstm, layer_arguments(rnn_type))


@pytest.mark.parametrize("rnn_type", TYPES)
@pytest.mark.parametrize("reset", [0, 3])
def test_nothing_crosses_a_reset(rnn_type: RnnType, reset: int) -> None:
    torch.manual_seed(3)
    core = recurrent(rnn_type, layers=2)
    x = torch.randn(6, 2, FEATURES, requires_grad=True)
    state = torch.randn(2, core.state_size, requires_grad=True)
    is_first = torch.zeros(6, 2, dtype=torch.bool)
    is_first[reset, 0] = True

    y, last = core.sequence(x, state, is_first)
    of_x, of_state = torch.autograd.grad(y[reset:].sum() + last.sum(), [x, state])

    assert of_state[0].abs().max() == 0.0
    assert of_state[1].abs().max() > 0.0
    assert of_x[:reset, 0].abs().sum() == 0.0
    assert bool((of_x[reset:, 0].abs().sum(-1) > 0.0).all())


@pytest.mark.parametrize("rnn_type", TYPES)
def test_garbage_in_a_state_that_is_reset_reaches_neither_outputs_nor_gradients(rnn_type: RnnType) -> None:
    torch.manual_seed(4)
    core = recurrent(rnn_type)
    x, clean = torch.randn(3, 2, FEATURES), torch.randn(2, core.state_size)
    garbage = clean.clone()
    garbage[1] = math.nan
    is_first = torch.zeros(3, 2, dtype=torch.bool)
    is_first[0, 1] = True

    of_garbage = outputs_and_gradients(core, x, garbage, is_first, whole=True)
    of_clean = outputs_and_gradients(core, x, clean, is_first, whole=True)

    for ours, expected in zip(of_garbage, of_clean, strict=True):
        assert torch.equal(ours, expected)


def test_orthogonal_gates_keep_lengths_and_the_forget_gate_starts_open() -> None:
    torch.manual_seed(8)

    layer = recurrent("lstm", 1, "orthogonal").layers[0]

    assert isinstance(layer.hidden, Tensor)
    assert isinstance(layer.input_bias, Tensor)
    for gate in layer.hidden.detach().split(SIZE):
        torch.testing.assert_close(gate @ gate.t(), torch.eye(SIZE), rtol=0.0, atol=1e-5)
    assert layer.input_bias.detach().view(4, SIZE)[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("rnn_type", TYPES)
def test_state_stays_in_the_dtype_of_the_weights_under_autocast(rnn_type: RnnType) -> None:
    torch.manual_seed(9)
    core = recurrent(rnn_type)
    x, state, is_first = torch.randn(4, 3, FEATURES), torch.zeros(3, core.state_size), resets("none", 4, 3)

    with torch.autocast("cpu", torch.bfloat16):
        y, last = core.sequence(x, state, is_first)

    assert (y.dtype, last.dtype) == (torch.float32, torch.float32)
    assert torch.equal(y, core.sequence(x, state, is_first)[0])


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_chunks_hold_consecutive_steps_and_come_back_in_order(length: int) -> None:
    steps, rows = 6, 4
    x = torch.arange(steps * rows * 2).view(steps, rows, 2)

    chunks = to_chunks(x, length)

    assert chunks.shape == (length, steps // length * rows, 2)
    for column in range(chunks.shape[1]):
        k, row = divmod(column, rows)
        assert torch.equal(chunks[:, column], x[k * length : (k + 1) * length, row])
    assert torch.equal(from_chunks(chunks, rows), x)


def test_chunks_from_stored_states_give_the_features_of_the_whole_rollout() -> None:
    torch.manual_seed(10)
    core, steps, rows, length = recurrent("lstm", 2), 12, 3, 4
    x, state, is_first = torch.randn(steps, rows, FEATURES), torch.zeros(3, core.state_size), resets("scattered", 12, 3)
    y, last = core.sequence(x, state, is_first)
    stored = torch.stack(
        [core.sequence(x[:start], state, is_first[:start])[1] if start else state for start in (0, 4, 8)]
    )

    chunked, states = core.sequence(to_chunks(x, length), stored.flatten(0, 1), to_chunks(is_first, length))

    torch.testing.assert_close(from_chunks(chunked, rows), y, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(states[-rows:], last, rtol=1e-5, atol=1e-6)


def test_chunks_that_would_lose_steps_or_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="6 steps cannot be cut into chunks of 4"):
        to_chunks(torch.zeros(6, 2), 4)
    with pytest.raises(ValueError, match="9 chunk columns"):
        from_chunks(torch.zeros(2, 9), 4)
