"""Room: rollouts cut along time, so that gradients flow through fewer steps than a rollout has.

In: time-major tensors [T, B, ...]. Out: K = T / R chunks of R steps side by side, [R, K * B, ...], and back.
Column k * B + b holds steps [k * R, (k + 1) * R) of row b. The states [K, B, S] stored at the chunks' starts
become [K * B, S] by ``flatten(0, 1)``, in the same order; the last B rows of the states after the chunks are
those after the whole rollout.
"""

from __future__ import annotations

from torch import Tensor


def to_chunks(x: Tensor, length: int) -> Tensor:
    """[R, K * B, ...] of x [T, B, ...] with R = ``length``; a view where one chunk is the whole.

    Raises ValueError if T is no multiple of R: steps would be lost.
    """
    steps, rows = x.shape[:2]
    if length < 1 or steps % length:
        raise ValueError(
            f"a rollout of {steps} steps cannot be cut into chunks of {length}: choose a divisor of {steps}"
        )
    if steps == length:
        return x
    return x.unflatten(0, (-1, length)).transpose(0, 1).reshape(length, steps // length * rows, *x.shape[2:])


def from_chunks(y: Tensor, rows: int) -> Tensor:
    """[T, B, ...] of y [R, K * B, ...] with B = ``rows``: undoes ``to_chunks``.

    Raises ValueError if the columns are no multiple of B.
    """
    length, columns = y.shape[:2]
    if rows < 1 or columns % rows:
        raise ValueError(f"{columns} chunk columns are not made of rollouts of {rows} rows: pass the rows of the batch")
    if columns == rows:
        return y
    return y.unflatten(1, (-1, rows)).transpose(0, 1).reshape(length * columns // rows, rows, *y.shape[2:])
