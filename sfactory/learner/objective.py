"""Room: the loss of one minibatch. In: model, batch, coefficients. Out: a scalar with gradients, and statistics.

The equations are in sfactory/algo; here they are put together. With V-trace, targets are computed anew for
every minibatch from the present values and policy. With GAE they are computed once per dataset, from the
values recorded when acting, with V(obs[T]) by the present weights. Targets and recorded values are in the unit
of rewards; the value loss alone compares normalized ones, if returns are normalized.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo import losses
from sfactory.algo.gae import gae
from sfactory.algo.masking import masked_mean, normalize
from sfactory.algo.vtrace import vtrace
from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.distributions import ActionDistribution

STATISTICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "value_mean", "valid_fraction")


class Targets(NamedTuple):
    """returns: [T, R] - what values should be. advantages: [T, R] - what the policy is weighted with."""

    returns: Tensor
    advantages: Tensor

    def columns(self, which: slice | Tensor) -> Targets:
        """The rows ``which``, as Batch.columns."""
        return Targets(self.returns[:, which], self.advantages[:, which])

    def steps(self) -> Targets:
        """All steps as rows of one step each, as Batch.steps."""
        return Targets(self.returns.reshape(1, -1), self.advantages.reshape(1, -1))


class Loss(NamedTuple):
    """total: 0-dim with gradients. statistics: [len(STATISTICS)], detached. returns: [T, R] - the value targets."""

    total: Tensor
    statistics: Tensor
    returns: Tensor


class Objective:
    """The loss that ``AlgoConfig`` describes."""

    def __init__(self, model: ActorCritic, config: AlgoConfig) -> None:
        self._model, self._config = model, config

    def gae_targets(self, batch: Batch) -> Targets | None:
        """Targets of a whole dataset under GAE; None with V-trace, which makes its own per minibatch."""
        config = self._config
        if config.with_vtrace:
            return None
        with torch.no_grad():
            state = torch.where(batch.is_first[-1].unsqueeze(-1), 0.0, batch.rnn_states[-1])
            bootstrap = self._model({key: obs[-1] for key, obs in batch.obs.items()}, state).value
        result = gae(
            discounts=batch.discounts,
            rewards=batch.rewards,
            values=batch.behavior_value,
            bootstrap_value=bootstrap,
            valid=batch.valid,
            lambda_=config.gae_lambda,
        )
        return Targets(result.returns, result.advantages)

    @torch.no_grad()
    def divergence(self, batch: Batch) -> float:
        """KL of the behavior policy and the present one, as ``kl`` of the statistics, by a pass of its own."""
        log_prob = self._unrolled(batch, ahead=0)[1]
        behavior = batch.behavior_log_prob
        return float(losses.approx_kl(log_prob=log_prob, behavior_log_prob=behavior, valid=batch.valid))

    def _unrolled(self, batch: Batch, ahead: int) -> tuple[ActionDistribution, Tensor, Tensor]:
        """The distribution [T * R] at every step, log-probs [T, R] of what was done, and values [T + ``ahead``, R]."""
        steps = batch.valid.shape[0] + ahead
        obs = {key: tensor[:steps] for key, tensor in batch.obs.items()}
        unrolled = self._model.unroll(obs, batch.rnn_states[:-1], batch.is_first[:steps], batch.recurrence)
        distribution = self._model.distribution(unrolled.dist_params)
        actions = {key: tensor.flatten(0, 1) for key, tensor in batch.actions.items()}
        return distribution, distribution.log_prob(actions).view_as(batch.valid), unrolled.values

    def __call__(self, batch: Batch, targets: Targets | None) -> Loss:
        """Loss of a minibatch. ``targets``: its columns of ``gae_targets``, or None with V-trace."""
        config, valid = self._config, batch.valid
        # V-trace wants V(obs[T]), too.
        distribution, log_prob, all_values = self._unrolled(batch, ahead=1 if targets is None else 0)
        entropy = distribution.entropy().view_as(valid)
        head = self._model.value_head
        values = all_values[: valid.shape[0]]
        if targets is None:
            targets = self._vtrace_targets(batch, log_prob, head.denormalize(all_values.detach()))

        advantages = normalize(targets.advantages, valid) if config.normalize_advantages else targets.advantages
        policy_loss = self._policy_loss(batch, log_prob, advantages)
        value_loss = losses.value_loss(
            values=values,
            targets=head.normalize(targets.returns),
            behavior_values=head.normalize(batch.behavior_value),
            valid=valid,
            clip_value=config.ppo_clip_value,
        )
        bonus = losses.entropy_bonus(entropy=entropy, valid=valid)
        total = policy_loss + config.value_loss_coeff * value_loss
        if config.exploration_loss == "entropy":
            total = total - config.exploration_loss_coeff * bonus
        elif config.exploration_loss == "symmetric_kl":
            distance = distribution.symmetric_kl_to_uniform().view_as(valid)
            penalty = losses.symmetric_kl_to_uniform(symmetric_kl=distance, valid=valid)
            total = total + config.exploration_loss_coeff * penalty
        if config.kl_loss_coeff:
            kl = losses.kl_penalty(log_prob=log_prob, behavior_log_prob=batch.behavior_log_prob, valid=valid)
            total = total + config.kl_loss_coeff * kl
        values = head.denormalize(values.detach())
        statistics = self._statistics(batch, policy_loss, value_loss, bonus, log_prob, values)
        return Loss(total, statistics, targets.returns)

    def _vtrace_targets(self, batch: Batch, log_prob: Tensor, values: Tensor) -> Targets:
        config = self._config
        log_rhos = torch.where(batch.valid, log_prob.detach() - batch.behavior_log_prob, -torch.inf)
        result = vtrace(
            log_rhos=log_rhos,
            discounts=batch.discounts,
            rewards=batch.rewards,
            values=values[:-1],
            bootstrap_value=values[-1],
            rho_clip=config.vtrace_rho,
            c_clip=config.vtrace_c,
            pg_rho_clip=config.vtrace_rho,
            lambda_=1.0,
        )
        # The clipped surrogate has a ratio of its own; weighting its advantages again would count it twice.
        weighted = config.policy_loss == "pg"
        return Targets(result.vs, result.pg_advantages if weighted else result.advantages)

    def _policy_loss(self, batch: Batch, log_prob: Tensor, advantages: Tensor) -> Tensor:
        if self._config.policy_loss == "pg":
            return losses.pg_loss(log_prob=log_prob, advantages=advantages, valid=batch.valid)
        return losses.ppo_clip_loss(
            log_prob=log_prob,
            behavior_log_prob=batch.behavior_log_prob,
            advantages=advantages,
            valid=batch.valid,
            clip_ratio=self._config.ppo_clip_ratio,
        )

    @torch.no_grad()
    def _statistics(
        self, batch: Batch, policy_loss: Tensor, value_loss: Tensor, bonus: Tensor, log_prob: Tensor, values: Tensor
    ) -> Tensor:
        behavior, valid = batch.behavior_log_prob, batch.valid
        clip_ratio = self._config.ppo_clip_ratio
        return torch.stack(
            (
                policy_loss,
                value_loss,
                bonus,
                losses.approx_kl(log_prob=log_prob, behavior_log_prob=behavior, valid=valid),
                losses.clip_fraction(log_prob=log_prob, behavior_log_prob=behavior, valid=valid, clip_ratio=clip_ratio),
                masked_mean(values, valid),
                valid.float().mean(),
            )
        )
