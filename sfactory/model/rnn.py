"""The network's memory between encoder and heads, and rollouts cut into chunks along time.

The state is one flat float32 vector per row, for any core and number of layers, so that shared memory keeps it as one
array, and zeros are a fresh start.

Chunks limit the steps that gradients flow through. ``to_chunks`` turns [T, B, ...] into K = T / R chunks of R steps
side by side, [R, K * B, ...]: column k * B + b holds steps [k * R, (k + 1) * R) of row b. The states [K, B, S] at the
chunks' starts become [K * B, S] by ``flatten(0, 1)``, in the same order; the last B rows of the states after the chunks
are those after the whole rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from sfactory.model.layers import Initialization
from sfactory.model.rnn_kernels import LayerWeights, gru_layer, lstm_layer

RnnType = Literal["gru", "lstm"]
Inputs = Tensor | dict[str, Tensor]

_GATES: dict[str, int] = {"gru": 3, "lstm": 4}
_STATES: dict[str, int] = {"gru": 1, "lstm": 2}


class Core(Protocol):
    """The memory between encoder and decoder; see RecurrentCore. state_size: S."""

    out_size: int
    state_size: int

    def step(self, x: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        """See RecurrentCore."""

    def sequence(self, x: Any, state: Tensor, is_first: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See RecurrentCore."""


class RecurrentCore(nn.Module):
    """Stacked GRU or LSTM layers with weights as in torch.nn.GRU and nn.LSTM.

    out_size: H = ``rnn_size``. state_size: S = layers * H for a GRU, 2 * layers * H for an LSTM; layer after layer, and
    for each layer of an LSTM the hidden state before the cell state.
    """

    def __init__(
        self, rnn_type: RnnType, in_size: int, out_size: int, num_layers: int, initialization: Initialization
    ) -> None:
        super().__init__()
        self.rnn_type, self.out_size = rnn_type, out_size
        self.state_size = _STATES[rnn_type] * num_layers * out_size
        inputs = (in_size, *(out_size,) * (num_layers - 1))
        self.layers = nn.ModuleList(_Layer(size, out_size, rnn_type, initialization) for size in inputs)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step, for acting: features [B, H] and the state after it.

        x: [B, F] float32. state: [B, S] float32 - zero in the rows that start an episode.
        """
        parts = iter(state.split(self.out_size, dim=1))
        after: list[Tensor] = []
        for weights in self._weights():
            if self.rnn_type == "gru":
                x = torch.gru_cell(x, next(parts), *weights)
                after.append(x)
            else:
                x, cell = torch.lstm_cell(x, (next(parts), next(parts)), *weights)
                after += (x, cell)
        return x, _joined(after)

    def sequence(self, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All steps of a rollout, for learning: features [T, B, H] and the state [B, S] after the last step.

        x: [T, B, F] float. state: [B, S] float - before step 0. is_first: [T, B] bool - the state is zeroed before this
        step (at step 0 it may hold NaN). held: [T, B] bool - a step without action, which keeps the state; None: none.

        Equals ``step`` after ``step``. Gradients reach x, state and weights (no double backward). Computes in the dtype
        of the weights, under autocast, too: a state that is rounded at every step would drift.
        """
        with torch.autocast(x.device.type, enabled=False):
            weights = self._weights()
            x = x.to(weights[0].input.dtype)
            keep = is_first.logical_not().to(x.dtype).unsqueeze(-1)
            parts = iter(torch.where(is_first[0].unsqueeze(-1), 0.0, state).split(self.out_size, dim=1))
            still = None if held is None else held.unsqueeze(-1)
            after: list[Tensor] = []
            for layer in weights:
                if self.rnn_type == "gru":
                    x = gru_layer(x, next(parts), keep, layer, still)
                    after.append(x[-1])
                else:
                    x, last_cell = lstm_layer(x, next(parts), next(parts), keep, layer, still)
                    after += (x[-1], last_cell)
            return x, _joined(after)

    def _weights(self) -> list[LayerWeights]:
        # In the order of torch's cells.
        layers = [layer for layer in self.layers if isinstance(layer, _Layer)]
        return [LayerWeights(layer.input, layer.hidden, layer.input_bias, layer.hidden_bias) for layer in layers]


class _Layer(nn.Module):
    """The parameters of one layer."""

    def __init__(self, in_size: int, size: int, rnn_type: RnnType, initialization: Initialization) -> None:
        super().__init__()
        rows = _GATES[rnn_type] * size
        self.input = nn.Parameter(torch.empty(rows, in_size))
        self.hidden = nn.Parameter(torch.empty(rows, size))
        self.input_bias = nn.Parameter(torch.zeros(rows))
        self.hidden_bias = nn.Parameter(torch.zeros(rows))
        if initialization == "torch_default":
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -(size**-0.5), size**-0.5)
            return
        init = nn.init.orthogonal_ if initialization == "orthogonal" else nn.init.xavier_uniform_
        with torch.no_grad():
            for weight in (self.input, self.hidden):
                for gate in weight.split(size):
                    init(gate)
            if rnn_type == "lstm":
                # Open forget gates pass gradients from the start (Jozefowicz et al. 2015).
                self.input_bias[size : 2 * size] = 1.0


def rollout(
    core: Core, x: Inputs, states: Tensor, is_first: Tensor, recurrence: int, held: Tensor | None = None
) -> Tensor:
    """Features [T or T+1, B, H] of x [T or T+1, B, ...]. Other arguments: see ActorCritic.unroll.

    x is what the core takes: a tensor, or tensors by path.
    """
    rows, steps = is_first.shape[1], states.shape[0] * recurrence
    chunks = (
        _each(x, lambda leaf: to_chunks(leaf[:steps], recurrence)),
        states.flatten(0, 1),
        to_chunks(is_first[:steps], recurrence),
    )
    # A network of the user's own may do without the argument, where no agent is ever inactive.
    y, after = core.sequence(*chunks) if held is None else core.sequence(*chunks, to_chunks(held, recurrence))
    y = from_chunks(y, rows)
    if len(is_first) == steps:
        return y
    with torch.no_grad():  # the value after the rollout is a bootstrap, not learned
        state = torch.where(is_first[-1].unsqueeze(-1), 0.0, after[-rows:]).to(states.dtype)
        last, _ = core.step(_each(x, lambda leaf: leaf[-1]), state)
    return torch.cat((y, last.unsqueeze(0)))


def _each(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    return {path: change(leaf) for path, leaf in x.items()} if isinstance(x, dict) else change(x)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def to_chunks(x: Tensor, length: int) -> Tensor:
    """[R, K * B, ...] of x [T, B, ...] with R = ``length``, a divisor of T; a view if one chunk is the whole."""
    steps, rows = x.shape[:2]
    if steps == length:
        return x
    return x.unflatten(0, (-1, length)).transpose(0, 1).reshape(length, steps // length * rows, *x.shape[2:])


def from_chunks(y: Tensor, rows: int) -> Tensor:
    """[T, B, ...] of y [R, K * B, ...] with B = ``rows``: the inverse of ``to_chunks``."""
    length, columns = y.shape[:2]
    if columns == rows:
        return y
    return y.unflatten(1, (-1, rows)).transpose(0, 1).reshape(length * columns // rows, rows, *y.shape[2:])
