"""Room: means and normalization over the valid cells of a batch.

In: values and a bool mask of the same shape. Out: numbers that the invalid cells cannot touch,
whatever they hold (NaN included), and that stay finite with no valid cell at all.
"""

from __future__ import annotations

from torch import Tensor, no_grad, where

# Added to the standard deviation: far below any useful advantage, far above float32 rounding noise of
# advantages near 1, so that a constant advantage is not blown up into noise of unit size.
NORMALIZE_EPS = 1e-6


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean of ``x`` over the cells where ``valid``; exactly 0, with zero gradient, where none is.

    x: [T, B] float - any shape, in fact. valid: same shape, bool. Returns a 0-dim tensor of x's dtype.
    """
    return where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


def masked_mean_std(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of ``x`` over the cells where ``valid``.

    x: [T, B] float. valid: [T, B] bool. Returns two 0-dim tensors: (0, 0) with no valid cell, std 0 with one.
    """
    mean = masked_mean(x, valid)
    return mean, masked_mean((x - mean).square(), valid).sqrt()


@no_grad()
def normalize(advantages: Tensor, valid: Tensor, eps: float = NORMALIZE_EPS) -> Tensor:
    """Advantages shifted and scaled to mean 0 and standard deviation 1 over the valid cells; 0 elsewhere.

    advantages: [T, B] float. valid: [T, B] bool. A single valid cell becomes 0. Carries no gradient.
    """
    mean, std = masked_mean_std(advantages, valid)
    return where(valid, (advantages - mean) / (std + eps), 0.0)
