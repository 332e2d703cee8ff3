"""Room: the loss of one minibatch. In: model, batch, coefficients. Out: a scalar with gradients, and statistics.

The equations are in sfactory/algo; here they are put together. With V-trace, targets are computed anew for
every minibatch from the present values and policy. With GAE they are computed once per dataset, from the
values recorded when acting, with V(obs[T]) by the present weights.
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

STATISTICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "value_mean", "valid_fraction")


class Targets(NamedTuple):
    """returns: [T, R] - what values should be. advantages: [T, R] - what the policy is weighted with."""

    returns: Tensor
    advantages: Tensor

    def columns(self, start: int, stop: int) -> Targets:
        """Rows [start, stop)."""
        return Targets(self.returns[:, start:stop], self.advantages[:, start:stop])


class Loss(NamedTuple):
    """total: 0-dim with gradients. statistics: [len(STATISTICS)], detached."""

    total: Tensor
    statistics: Tensor


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
            bootstrap = self._model.value({key: obs[-1] for key, obs in batch.obs.items()})
        result = gae(
            discounts=batch.discounts,
            rewards=batch.rewards,
            values=batch.behavior_value,
            bootstrap_value=bootstrap,
            valid=batch.valid,
            lambda_=config.gae_lambda,
        )
        return Targets(result.returns, result.advantages)

    def __call__(self, batch: Batch, targets: Targets | None) -> Loss:
        """Loss of a minibatch. ``targets``: its columns of ``gae_targets``, or None with V-trace."""
        config, valid = self._config, batch.valid
        steps = valid.shape[0]
        ahead = steps + (1 if targets is None else 0)  # V-trace wants V(obs[T]), too
        obs = {key: tensor[:ahead].flatten(0, 1) for key, tensor in batch.obs.items()}
        params, all_values = self._model(obs)
        distribution = self._model.distribution(params[: valid.numel()])
        actions = {key: tensor.flatten(0, 1) for key, tensor in batch.actions.items()}
        log_prob = distribution.log_prob(actions).view_as(valid)
        entropy = distribution.entropy().view_as(valid)
        all_values = all_values.view(ahead, -1)
        values = all_values[:steps]
        if targets is None:
            targets = self._vtrace_targets(batch, log_prob, all_values)

        advantages = normalize(targets.advantages, valid) if config.normalize_advantages else targets.advantages
        policy_loss = self._policy_loss(batch, log_prob, advantages)
        value_loss = losses.value_loss(
            values=values,
            targets=targets.returns,
            behavior_values=batch.behavior_value,
            valid=valid,
            clip_value=config.ppo_clip_value,
        )
        bonus = losses.entropy_bonus(entropy=entropy, valid=valid)
        total = policy_loss + config.value_loss_coeff * value_loss
        if config.exploration_loss == "entropy":
            total = total - config.exploration_loss_coeff * bonus
        return Loss(total, self._statistics(batch, policy_loss, value_loss, bonus, log_prob, values))

    def _vtrace_targets(self, batch: Batch, log_prob: Tensor, values: Tensor) -> Targets:
        config = self._config
        log_rhos = torch.where(batch.valid, log_prob.detach() - batch.behavior_log_prob, -torch.inf)
        values = values.detach()
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
