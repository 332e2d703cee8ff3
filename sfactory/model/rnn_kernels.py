"""GRU and LSTM layers over a whole rollout, with resets and hand-written gradients.

Only what depends on the previous step runs step by step. Projections of the inputs, local derivatives and gradients of
the weights are a few operations over all of [T, B] at once, which autograd would do step by step. No step reads a
device's memory, so a CUDA graph can record everything. Weights have the layout of torch.nn.GRU and torch.nn.LSTM.

Sources: Cho et al. 2014 for the GRU, in the variant of cuDNN (the reset gate acts after the product);
Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000 for the LSTM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sfactory.model.layers import tanh_


class LayerWeights(NamedTuple):
    """One layer's parameters, with G = 3 gates (reset, update, new) or 4 (input, forget, cell, output).

    input: [G * H, F]. hidden: [G * H, H]. input_bias, hidden_bias: [G * H].
    """

    input: Tensor
    hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


def gru_layer(x: Tensor, state: Tensor, keep: Tensor, weights: LayerWeights, held: Tensor | None = None) -> Tensor:
    """Hidden states [T, B, H] after each step; the last is the layer's new state.

    x: [T, B, F] float - inputs. state: [B, H] float - before the first step; finite.
    keep: [T, B, 1] float - 1, or 0 where the state is forgotten before the step.
    held: [T, B, 1] bool - the step keeps the state, whatever its input; None: none does.
    """
    y: Tensor = _GRULayer.apply(x, state, keep, held, *weights)
    return y


def lstm_layer(
    x: Tensor, state: Tensor, cell: Tensor, keep: Tensor, weights: LayerWeights, held: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Hidden states [T, B, H] after each step, and the cell state [B, H] after the last.

    cell: [B, H] float - before the first step; finite. Other arguments: as for ``gru_layer``.
    """
    y, last_cell = _LSTMLayer.apply(x, state, cell, keep, held, *weights)
    return y, last_cell


def _project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[T, B, N] of x [T, B, F]: all steps in one product."""
    return torch.addmm(bias, x.flatten(0, 1), weight.t()).view(x.shape[0], x.shape[1], -1)


def _steps(held: Tensor | None, steps: int) -> Sequence[Tensor | None]:
    return [None] * steps if held is None else held.unbind(0)


def _before(first: Tensor, after: Tensor, keep: Tensor) -> Tensor:
    """[T, B, H] - the state before each step, given that before the first and those after each."""
    return torch.cat((first.unsqueeze(0), after[:-1])).mul_(keep)


def _slope(sigmoid: Tensor) -> Tensor:
    """The derivative of the sigmoid, from its value."""
    return torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1.0)


class _GRULayer(torch.autograd.Function):
    """r, z = sigmoid(Wx + Uh); n = tanh(Vx + r * (Qh)); h' = n + z * (h - n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor, keep: Tensor, held: Tensor | None, *weights: Tensor) -> Tensor:
        w_in, w_hid, b_in, b_hid = weights
        size = state.shape[1]
        both = 2 * size
        # In place: projections become gates. Every piece is contiguous, which is faster.
        gates = _project(x, w_in[:both], b_in[:both] + b_hid[:both])  # [T, B, 2H] - reset, update
        new = _project(x, w_in[both:], b_in[both:])
        recalled, y = torch.empty_like(new), torch.empty_like(new)
        to_gates, to_recalled, recalled_bias = w_hid[:both].t(), w_hid[both:].t(), b_hid[both:]
        previous, h = torch.empty_like(state), state
        steps = zip(*(tensor.unbind(0) for tensor in (keep, gates, new, recalled, y)), strict=True)
        for held_t, (keep_t, gates_t, new_t, recalled_t, y_t) in zip(_steps(held, len(x)), steps, strict=True):
            torch.mul(h, keep_t, out=previous)
            gates_t.addmm_(previous, to_gates).sigmoid_()
            if held_t is not None:
                gates_t[:, size:].masked_fill_(held_t, 1.0)  # keeps the state, and gradients pass
            torch.addmm(recalled_bias, previous, to_recalled, out=recalled_t)
            tanh_(new_t.addcmul_(gates_t[:, :size], recalled_t))
            h = torch.lerp(new_t, previous, gates_t[:, size:], out=y_t)
        ctx.save_for_backward(x, state, keep, w_in, w_hid, gates, new, recalled, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, state, keep, w_in, w_hid, gates, new, recalled, y = ctx.saved_tensors
        steps, rows, size = y.shape
        reset, update = gates[..., :size], gates[..., size:]
        previous = _before(state, y, keep)
        # Slopes, per unit of dh', of the four pre-activations: recalled, reset, update, new. In this order
        # the first three are what the hidden weights see, and the last three what the input weights see.
        slopes = y.new_empty(steps, rows, 4, size)
        of_new = torch.mul(1.0 - update, 1.0 - new.square(), out=slopes[:, :, 3])
        torch.mul(of_new, reset, out=slopes[:, :, 0])
        torch.mul(of_new * recalled, _slope(reset), out=slopes[:, :, 1])
        torch.mul(previous - new, _slope(update), out=slopes[:, :, 2])

        hidden = torch.cat((w_hid[2 * size :], w_hid[: 2 * size]))
        d_state = torch.zeros_like(state)
        backwards = [tensor.unbind(0)[::-1] for tensor in (grads[0], keep, update, slopes)]
        for dy, keep_t, update_t, d_gates in zip(*backwards, strict=True):
            d_state = d_state + dy
            d_gates.mul_(d_state.unsqueeze(1))
            d_state = d_state * update_t
            d_state.addmm_(d_gates.view(rows, 4 * size)[:, : 3 * size], hidden).mul_(keep_t)

        flat = slopes.view(steps * rows, 4 * size)
        d_hidden = flat[:, : 3 * size].t() @ previous.flatten(0, 1)
        d_bias = flat.sum(0)
        d_inputs = flat[:, size:]
        return (
            (d_inputs @ w_in).view_as(x) if ctx.needs_input_grad[0] else None,
            d_state,
            None,
            None,
            d_inputs.t() @ x.flatten(0, 1),
            d_hidden.roll(-size, 0),
            d_bias[size:],
            d_bias[: 3 * size].roll(-size),
        )


class _LSTMLayer(torch.autograd.Function):
    """i, f, o = sigmoid(Wx + Uh); g = tanh(Vx + Qh); c' = f * c + i * g; h' = o * tanh(c')."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, state: Tensor, cell: Tensor, keep: Tensor, held: Tensor | None, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        w_in, w_hid, b_in, b_hid = weights
        size = state.shape[1]
        bias = b_in + b_hid
        # As in the GRU, in place on contiguous pieces: the three sigmoid gates lie together.
        gates = _project(x, _without_cell(w_in), _without_cell(bias))  # [T, B, 3H] - input, forget, output
        new = _project(x, _cell_part(w_in), _cell_part(bias))
        cells, squashed, y = (torch.empty_like(new) for _ in range(3))
        to_gates, to_new = _without_cell(w_hid).t(), _cell_part(w_hid).t()
        previous, previous_cell = torch.empty_like(state), torch.empty_like(state)
        h, c = state, cell
        steps = zip(*(tensor.unbind(0) for tensor in (keep, gates, new, cells, squashed, y)), strict=True)
        for held_t, (keep_t, gates_t, new_t, cells_t, squashed_t, y_t) in zip(_steps(held, len(x)), steps, strict=True):
            torch.mul(h, keep_t, out=previous)
            torch.mul(c, keep_t, out=previous_cell)
            gates_t.addmm_(previous, to_gates).sigmoid_()
            if held_t is not None:  # keeps the cell
                gates_t[:, :size].masked_fill_(held_t, 0.0)
                gates_t[:, size : 2 * size].masked_fill_(held_t, 1.0)
            tanh_(new_t.addmm_(previous, to_new))
            c = torch.mul(gates_t[:, size : 2 * size], previous_cell, out=cells_t).addcmul_(gates_t[:, :size], new_t)
            tanh_(squashed_t.copy_(c))
            h = torch.mul(gates_t[:, 2 * size :], squashed_t, out=y_t)
            if held_t is not None:
                torch.where(held_t, previous, h, out=y_t)
        ctx.save_for_backward(x, state, cell, keep, held, w_in, w_hid, gates, new, cells, squashed, y)
        return y, c.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, state, cell, keep, held, w_in, w_hid, gates, new, cells, squashed, y = ctx.saved_tensors
        steps, rows, size = y.shape
        entry, forget, output = gates.split(size, -1)
        # Slopes of the pre-activations in the order of the weights: of the first three per unit of dc', of the
        # output gate per unit of dh'.
        slopes = y.new_empty(steps, rows, 4, size)
        torch.mul(new, _slope(entry), out=slopes[:, :, 0])
        torch.mul(_before(cell, cells, keep), _slope(forget), out=slopes[:, :, 1])
        torch.mul(entry, 1.0 - new.square(), out=slopes[:, :, 2])
        torch.mul(squashed, _slope(output), out=slopes[:, :, 3])
        to_cell = output * (1.0 - squashed.square())
        if held is not None:
            slopes[:, :, 3].masked_fill_(held, 0.0)
            to_cell = to_cell.masked_fill(held, 0.0)

        d_state, d_cell = torch.zeros_like(state), grads[1].clone()
        backwards = [tensor.unbind(0)[::-1] for tensor in (grads[0], keep, forget, to_cell, slopes)]
        helds = reversed(_steps(held, steps))
        for held_t, (dy, keep_t, forget_t, to_cell_t, d_gates) in zip(helds, zip(*backwards, strict=True), strict=True):
            d_state = d_state + dy
            passed = None if held_t is None else d_state.masked_fill(~held_t, 0.0)
            d_cell.addcmul_(d_state, to_cell_t)
            d_gates[:, :3].mul_(d_cell.unsqueeze(1))
            d_gates[:, 3].mul_(d_state)
            d_state = torch.mm(d_gates.view(rows, 4 * size), w_hid)
            if passed is not None:
                d_state += passed
            d_state.mul_(keep_t)
            d_cell.mul_(forget_t).mul_(keep_t)

        flat = slopes.view(steps * rows, 4 * size)
        d_bias = flat.sum(0)
        return (
            (flat @ w_in).view_as(x) if ctx.needs_input_grad[0] else None,
            d_state,
            d_cell,
            None,
            None,
            flat.t() @ x.flatten(0, 1),
            flat.t() @ _before(state, y, keep).flatten(0, 1),
            d_bias,
            d_bias,
        )


def _without_cell(gates: Tensor) -> Tensor:
    """The rows of the input, forget and output gate; a copy."""
    size = gates.shape[0] // 4
    return torch.cat((gates[: 2 * size], gates[3 * size :]))


def _cell_part(gates: Tensor) -> Tensor:
    """The rows of the cell's candidate."""
    size = gates.shape[0] // 4
    return gates[2 * size : 3 * size]
