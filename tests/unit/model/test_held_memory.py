"""Steps without an action keep the memory, whatever they observe; gradients pass over them."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import ModelConfig
from sfactory.model.rnn import RecurrentCore, make_core

T, B, F, H = 7, 5, 3, 4
RNN = pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
LAYERS = pytest.mark.parametrize("layers", [1, 2])


def make(rnn_type: Literal["gru", "lstm"], layers: int) -> RecurrentCore:
    torch.manual_seed(3)
    config = ModelConfig(use_rnn=True, rnn_type=rnn_type, rnn_size=H, rnn_num_layers=layers)
    core = make_core(F, config).double()
    assert isinstance(core, RecurrentCore)
    return core


def draw(core: RecurrentCore, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs [T, B, F], a state [B, S], is_first and held [T, B]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(T, B, F, generator=generator, dtype=torch.float64)
    state = torch.randn(B, core.state_size, generator=generator, dtype=torch.float64)
    first = torch.rand(T, B, generator=generator) < 0.2
    held = torch.rand(T, B, generator=generator) < 0.4
    return x, state, first, held


def step_by_step(core: RecurrentCore, x: Tensor, state: Tensor, first: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """The plain way: one step after the other, with the state put back where the step is held."""
    outputs = []
    for t in range(len(x)):
        state = torch.where(first[t].unsqueeze(-1), 0.0, state)
        y, after = core.step(x[t], state)
        state = torch.where(held[t].unsqueeze(-1), state, after)
        outputs.append(y)
    return torch.stack(outputs), state


@RNN
@LAYERS
@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_with_held_steps_is_what_its_steps_are(
    rnn_type: Literal["gru", "lstm"], layers: int, seed: int
) -> None:
    core = make(rnn_type, layers)
    x, state, first, held = draw(core, seed)

    y, after = core.sequence(x, state, first, held)
    due, due_after = step_by_step(core, x, state, first, held)

    torch.testing.assert_close(y[~held], due[~held], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(after, due_after, rtol=1e-10, atol=1e-10)


@RNN
@LAYERS
def test_gradients_pass_over_held_steps(rnn_type: Literal["gru", "lstm"], layers: int) -> None:
    core = make(rnn_type, layers)
    x, state, first, held = draw(core, 9)
    wanted = torch.randn(T, B, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = []
    for way in (core.sequence, lambda *given: step_by_step(core, *given)):
        inputs, begin = x.clone().requires_grad_(), state.clone().requires_grad_()
        core.zero_grad()
        y, after = way(inputs, begin, first, held)
        ((y * wanted)[~held].sum() + after.square().sum()).backward()
        assert inputs.grad is not None
        assert begin.grad is not None
        weights = [parameter.grad.clone() for parameter in core.parameters() if parameter.grad is not None]
        gradients.append([inputs.grad, begin.grad, *weights])

    for mine, due in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, due, rtol=1e-9, atol=1e-9)
    assert (gradients[0][0][held] == 0).all(), "what a held step shows has no effect"
