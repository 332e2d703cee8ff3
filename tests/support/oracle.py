"""The objective as the papers write it: direct sums over later steps instead of recursions, in numpy.

Returns must not be normalized.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from tests.support.parts import evaluate

Array = npt.NDArray[np.float64]


class Expected(NamedTuple):
    """loss: of the whole minibatch. returns, advantages: [T, R] - anything at invalid cells. statistics: by name."""

    loss: float
    returns: Array
    advantages: Array
    statistics: dict[str, float]


class _Judged(NamedTuple):
    log_prob: Array
    entropy: Array
    value: Array
    bootstrap: Array


def expected(model: ActorCritic, batch: Batch, config: AlgoConfig, target: ActorCritic | None = None) -> Expected:
    """What the objective should say. ``target``: the target network's policy."""
    present = _judged(model, batch)
    valid, fresh = batch.valid.numpy(), batch.fresh.numpy()
    mu = np.exp(_array(batch.behavior_log_prob))
    pi = np.exp(present.log_prob)
    corrected_for = pi if target is None else np.exp(_judged(target, batch).log_prob)
    if config.with_vtrace:
        weights = corrected_for / mu
        returns, plain = _vtrace(batch, present, weights, config)
        by_weight = {"rho": True, "none": False, "auto": config.policy_loss == "pg"}[config.vtrace_adv_weighting]
        advantages = plain * np.minimum(weights, config.vtrace_pg_rho or math.inf) if by_weight else plain
    else:
        returns, advantages = _gae(batch, present, config)
    ratio = pi / mu if target is None else np.minimum(mu / corrected_for, config.target_worker_clip) * (pi / mu)

    scaled = advantages
    if config.normalize_advantages:
        scaled = (advantages - advantages[valid].mean()) / (advantages[valid].std() + 1e-6)
    low, high = config.ppo_clip_low or 1.0 / (1.0 + config.ppo_clip_ratio), 1.0 + config.ppo_clip_ratio
    if config.policy_loss == "pg":
        policy = -present.log_prob * scaled
    else:
        policy = -np.minimum(ratio * scaled, np.clip(ratio, low, high) * scaled)
    old = _array(batch.behavior_value)
    value = (present.value - returns) ** 2
    if config.ppo_clip_value:
        near = old + np.clip(present.value - old, -config.ppo_clip_value, config.ppo_clip_value)
        value = np.maximum(value, (near - returns) ** 2)
    penalty = pi / mu * np.log(pi / mu) - pi / mu + 1.0
    terms = policy + config.value_loss_coeff * value + config.kl_loss_coeff * penalty
    if config.exploration_loss == "entropy":
        terms = terms - config.exploration_loss_coeff * present.entropy
    elif config.exploration_loss == "symmetric_kl":
        both = np.stack((pi, 1.0 - pi))  # of the two actions
        terms = terms + config.exploration_loss_coeff * 0.5 * ((both - 0.5) * np.log(2.0 * both)).sum(0)
    divergence = pi / mu - 1.0 - np.log(pi / mu)

    def mean(cells: Array, where: npt.NDArray[np.bool_]) -> float:
        return float(cells[where].mean()) if where.any() else math.nan

    spread = returns[fresh].var() if fresh.any() else 0.0
    statistics = {
        "policy_loss": mean(policy, fresh),
        "value_loss": mean(value, fresh),
        "entropy": mean(present.entropy, fresh),
        "kl": mean(divergence, fresh),
        "replay_kl": mean(divergence, valid & ~fresh),
        "clip_fraction": mean(((ratio < low) | (ratio > high)).astype(np.float64), fresh),
        "ratio_mean": mean(ratio, fresh),
        "explained_variance": 1.0 - (returns - present.value)[fresh].var() / spread if spread else math.nan,
        "value_mean": mean(present.value, fresh),
        "advantage_std": float(advantages[fresh].std()) if fresh.any() else math.nan,
        "reward_clipped": 0.0,
        "valid_fraction": float(valid.mean()),
        "replayed_fraction": float((valid & ~fresh).sum() / valid.sum()),
        "aux_loss": 0.0,
    }
    loss = terms[valid].sum() / (valid.sum() if config.loss_reduction == "mean" else 1)
    return Expected(float(loss), returns, advantages, statistics)


def _array(tensor: torch.Tensor) -> Array:
    return tensor.double().numpy()


def _judged(model: ActorCritic, batch: Batch) -> _Judged:
    steps, rows = batch.valid.shape
    obs = batch.obs["obs"]
    with torch.no_grad():
        flat = evaluate(model, {"obs": obs[:-1].flatten(0, 1)}, {"action": batch.actions["action"].flatten()})
        bootstrap = model({"obs": obs[-1]}).value
    log_prob, entropy, value = (_array(each).reshape(steps, rows) for each in flat)
    return _Judged(log_prob, entropy, value, _array(bootstrap))


def _vtrace(batch: Batch, present: _Judged, weights: Array, config: AlgoConfig) -> tuple[Array, Array]:
    """(vs, advantages without importance weights)."""
    rho, c = np.minimum(weights, config.vtrace_rho or math.inf), np.minimum(weights, config.vtrace_c or math.inf)
    values = np.vstack((present.value, present.bootstrap))
    delta = _td_errors(batch, values)
    discounts = _array(batch.discounts)
    vs = present.value + _later(batch, rho * delta, discounts * config.vtrace_lambda * c)
    ahead = np.vstack((vs[1:], present.bootstrap))
    return vs, np.where(batch.valid.numpy(), _array(batch.rewards) + discounts * ahead - present.value, 0.0)


def _gae(batch: Batch, present: _Judged, config: AlgoConfig) -> tuple[Array, Array]:
    recorded = _array(batch.behavior_value)
    delta = _td_errors(batch, np.vstack((recorded, present.bootstrap)))
    advantages = _later(batch, delta, _array(batch.discounts) * config.gae_lambda)
    return recorded + advantages, advantages


def _td_errors(batch: Batch, values: Array) -> Array:
    return _array(batch.rewards) + _array(batch.discounts) * values[1:] - values[:-1]


def _later(batch: Batch, errors: Array, decays: Array) -> Array:
    """For each cell the sum of its own and all later errors of its stretch of valid steps, each times the decays."""
    valid, total = batch.valid.numpy(), np.zeros_like(errors)
    for start, row in np.argwhere(valid):
        weight = 1.0
        for step in range(start, len(errors)):
            if not valid[step, row]:
                break
            total[start, row] += weight * errors[step, row]
            weight *= decays[step, row]
    return total
