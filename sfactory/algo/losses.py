"""The terms of the loss, one number for each cell of a minibatch, and normalized advantages.

All tensors are [T, B], or flattened alike: ``valid`` bool, all others float; ``log_ratios`` are those of ``log_ratio``.
The mean or sum over valid cells is minimized or reported. Invalid cells are exactly 0, whatever their inputs are (NaN
included), and send no gradient. Advantages, targets and recorded numbers are constants here: no gradient reaches them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# exp() of more overflows into inf, and inf times the zero gradient of a clipped branch is NaN.
_MAX_LOG_RATIO = 20.0
# A nearly certain policy is far from uniform however it is measured: beyond this, more certainty costs no more.
_MAX_SYMMETRIC_KL = 30.0
# Far below any useful advantage, far above float32 rounding noise: a constant advantage is not blown up into noise.
_NORMALIZE_EPS = 1e-6


def log_ratio(log_prob: Tensor, behavior_log_prob: Tensor, valid: Tensor) -> Tensor:
    """Log of the probability ratio pi / mu: 0 at invalid cells and bounded to [-20, 20]."""
    # The mask comes first: masking only at the end would still send NaN back through exp().
    difference = torch.where(valid, log_prob - behavior_log_prob.detach(), 0.0)
    return difference.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def impact_log_prob(*, target_log_prob: Tensor, behavior_log_prob: Tensor, worker_clip: float) -> Tensor:
    """Log of the denominator of IMPACT's ratio, max(pi', mu / worker_clip), with the target policy pi'.

    With it ``log_ratio`` is that of min(mu / pi', worker_clip) pi / mu. Source: Luo et al. 2020, "IMPACT", section 3.1.
    """
    return torch.maximum(target_log_prob, behavior_log_prob - math.log(worker_clip))


def clip_range(clip_ratio: float, low: float = 0.0) -> tuple[float, float]:
    """What PPO clips the ratio to: [low, 1 + e] with e = clip_ratio. low 0: 1 / (1 + e), symmetric in log space."""
    return low or 1.0 / (1.0 + clip_ratio), 1.0 + clip_ratio


def ppo_clip_loss(*, log_ratios: Tensor, advantages: Tensor, valid: Tensor, clip: tuple[float, float]) -> Tensor:
    """Clipped surrogate -min(R A, clip(R) A), with the ratio R clipped to ``clip``, see ``clip_range``.

    Source: Schulman et al. 2017, "PPO", eq. 7, where the range is [1 - e, 1 + e].
    """
    ratio = log_ratios.exp()
    clipped = ratio.clamp(*clip)
    advantages = torch.where(valid, advantages.detach(), 0.0)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def pg_loss(*, log_prob: Tensor, advantages: Tensor, valid: Tensor) -> Tensor:
    """Policy gradient -log pi(a) A, Espeholt et al. 2018, section 4.2; A must already carry its importance weight."""
    return -torch.where(valid, log_prob, 0.0) * torch.where(valid, advantages.detach(), 0.0)


def value_loss(
    *, values: Tensor, targets: Tensor, behavior_values: Tensor, valid: Tensor, clip_value: float | None
) -> Tensor:
    """max((V - t)^2, (V_old + clip(V - V_old, -c, c) - t)^2); without a clip, (V - t)^2.

    clip_value: c; None or 0 is off. Moving V further than c from the recorded value cannot lower the loss.
    """
    targets, behavior_values = targets.detach(), behavior_values.detach()
    squared = torch.where(valid, values - targets, 0.0).square()
    if clip_value:
        near = behavior_values + (values - behavior_values).clamp(-clip_value, clip_value)
        squared = torch.maximum(squared, torch.where(valid, near - targets, 0.0).square())
    return squared


def symmetric_kl_to_uniform(*, symmetric_kl: Tensor, valid: Tensor) -> Tensor:
    """Symmetric divergence of the policy from the uniform one, bounded by 30: to be minimized.

    symmetric_kl: (KL(pi || u) + KL(u || pi)) / 2, of ``ActionDistribution.symmetric_kl_to_uniform``. Unlike entropy, it
    punishes a single neglected choice more and more. Beyond the bound a cell gives no gradient.
    """
    return torch.where(valid, symmetric_kl, 0.0).clamp(max=_MAX_SYMMETRIC_KL)


def kl_penalty(*, log_ratios: Tensor) -> Tensor:
    """Estimate of KL(pi || mu) from the actions taken by mu, to be minimized: R log R - (R - 1).

    With R = pi(a) / mu(a) and a ~ mu: E[R log R] = KL(pi || mu) and E[R - 1] = 0, so the value is right in expectation.
    So is the gradient R log R grad log pi(a), since E_pi[grad log pi] = 0. Near mu both have a small variance: without
    the term R - 1 the gradient would also contain R grad log pi, noise of mean 0 that does not vanish at pi = mu.
    Where log R is held at +-20 there is no gradient.
    """
    # R log R - (R - 1) without R itself: its rounding would swamp the small divergences near R = 1.
    excess = log_ratios.expm1()
    return excess * log_ratios + (log_ratios - excess)


@torch.no_grad()
def approx_kl(*, log_ratios: Tensor) -> Tensor:
    """Estimate (R - 1) - log R of KL(mu || pi): k3 of Schulman 2020, "Approximating KL divergence"; for reporting."""
    return log_ratios.expm1() - log_ratios


@torch.no_grad()
def outside_clip(*, log_ratios: Tensor, clip: tuple[float, float]) -> Tensor:
    """1 where the ratio lies outside ``clip``, see ``clip_range``, 0 elsewhere; for reporting."""
    ratio, (low, high) = log_ratios.exp(), clip
    return ((ratio < low) | (ratio > high)).to(log_ratios.dtype)


@torch.no_grad()
def normalize(advantages: Tensor, valid: Tensor, add_up: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the valid cells, 0 elsewhere; a single valid one is 0.

    add_up: the sum over ranks, which the mean and the deviation are then taken over.
    """
    if add_up is None:
        count = valid.sum().clamp(min=1)
        mean = torch.where(valid, advantages, 0.0).sum() / count
        std = (torch.where(valid, (advantages - mean).square(), 0.0).sum() / count).sqrt()
    else:
        wide = torch.where(valid, advantages, 0.0).double()
        count, total, squares = add_up(torch.stack((valid.sum().double(), wide.sum(), wide.square().sum()))).unbind()
        mean = total / count.clamp(min=1)
        std = (squares / count.clamp(min=1) - mean.square()).clamp(min=0.0).sqrt()
    return torch.where(valid, (advantages - mean) / (std + _NORMALIZE_EPS), 0.0)
