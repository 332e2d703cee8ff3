"""Common parts of V-trace and GAE: values one step ahead, and the recursion back through time.

Everything else about targets is computed at once over [T, B]; only ``backward_scan_`` loops in Python, with one fused
operation per step.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_shapes(bootstrap_value: Tensor, **time_major: Tensor) -> None:
    """Raise ValueError, naming the argument, unless all are [T, B] and ``bootstrap_value`` is [B].

    Broadcasting would otherwise turn a wrong shape into wrong targets in silence.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in time_major.items()}
    expected = shapes["values"]
    wrong = [name for name, shape in shapes.items() if shape != expected]
    if len(expected) != 2 or expected[0] < 1 or wrong or tuple(bootstrap_value.shape) != expected[1:]:
        raise ValueError(
            f"targets need [T, B] tensors of one shape with T >= 1, and bootstrap_value [B]; got {shapes}, "
            f"bootstrap_value {tuple(bootstrap_value.shape)}: reshape to time-major before the call"
        )


def without_garbage(values: Tensor, valid: Tensor) -> Tensor:
    """``values``, with NaN and inf of invalid cells replaced by 0; those of valid cells stay visible.

    values: [T, B] float. valid: [T, B] bool. Finite values of invalid cells are kept: a truncation row's
    value is what the row before it bootstraps from (NOTE [Row life]).
    """
    return torch.where(valid, values, torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0))


def values_ahead(values: Tensor, bootstrap_value: Tensor) -> Tensor:
    """The value after each step: [T, B] from values [T, B] and bootstrap_value [B]."""
    return torch.cat((values[1:], bootstrap_value.unsqueeze(0)))


def backward_scan_(x: Tensor, decays: Tensor) -> Tensor:
    """In place, from the end: x[t] += decays[t] * x[t + 1]. Returns ``x``.

    x, decays: [T, B] float. Afterwards x[t] is the sum over u >= t of x[u] times the decays of t..u-1.
    """
    rows, row_decays = x.unbind(0), decays.unbind(0)
    later = rows[-1]
    for row, decay in zip(reversed(rows[:-1]), reversed(row_decays[:-1]), strict=True):
        later = row.addcmul_(decay, later)
    return x
