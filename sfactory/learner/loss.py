"""Room: the loss of one minibatch. In: model, minibatch, coefficients. Out: losses with gradients, and what they saw.

The equations are in sfactory/algo, targets in sfactory/learner/targets.py; here they are put together. A minibatch may
be taken in parts, whose gradients add up to those of the whole: everything that one step needs of the others (targets,
importance weights, the normalization of advantages, the number of valid steps) is made of the whole minibatch first.
Targets and recorded values are in the unit of rewards; the value loss alone compares normalized ones, if returns are
normalized.

Room: the auxiliary loss of a learner. In: its flags; minibatches and what the network made of them. Out: a loss.

Its weights belong to the learner alone: the same optimiser trains them and checkpoints hold them, but they are not
published, and neither actors nor enjoy know them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo import losses
from sfactory.algo.losses import normalize
from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.learner.minibatches import Minibatch
from sfactory.learner.targets import TargetNetwork, Targets, gae_targets, vtrace_targets
from sfactory.learner.train_stats import LossTerms
from sfactory.model.actor_critic import ActorCritic, Unrolled
from sfactory.model.cpc import Auxiliary, CpcAction, Trace
from sfactory.model.distributions import ActionDistribution
from sfactory.seeds import Branch, seed_at


def make_auxiliary(model: ActorCritic, config: AlgoConfig) -> Auxiliary | None:
    """The auxiliary loss that the flags ask for, on torch's default device, if any. Another one gets its line here.

    Make it after ``model``, whose first weights are then what they are without it.
    """
    if not config.use_cpc:
        return None
    return CpcAction(
        model.heads,
        embedding_size=model.tower.encoder.out_size,
        memory_size=model.tower.core.out_size,
        forward_steps=config.cpc_forward_steps,
        time_subsample=config.cpc_time_subsample,
        forward_subsample=config.cpc_forward_subsample,
    )


class AuxiliaryTask:
    """An auxiliary loss with its place in the seed tree. ``module``: what is trained and saved."""

    def __init__(self, module: Auxiliary, seed: int, policy: int) -> None:
        self.module = module
        self._seed, self._policy = seed, policy
        self._generator = torch.Generator(next(module.parameters()).device)

    def begin(self, train_step: int) -> None:
        """Begin the dataset that is learned from at ``train_step``; it draws the same if a run is resumed there."""
        self._generator.manual_seed(seed_at(self._seed, Branch.AUXILIARY, self._policy, train_step))

    def loss(self, batch: Batch, unrolled: Unrolled) -> Tensor:
        """The loss of a minibatch of whole rollouts, 0-dim, before its coefficient. Each call draws anew."""
        steps = batch.valid.shape[0]
        trace = Trace(
            embeddings=unrolled.embeddings[:steps],
            memory=unrolled.memory[:steps],
            actions=batch.actions,
            is_first=batch.is_first[:steps],
            valid=batch.valid,
        )
        return self.module.loss(trace, self._generator)


class Weights(NamedTuple):
    """Coefficients that change as training goes on. exploration: of the exploration loss. kl: of the KL penalty."""

    exploration: float
    kl: float


class Part(NamedTuple):
    """A part of a minibatch, judged.

    loss: 0-dim, with gradients - its share of the minibatch's loss: the shares of all parts add up to that.
    cells: what it was made of. auxiliary: 0-dim - its auxiliary loss, times its valid steps.
    """

    loss: Tensor
    cells: LossTerms
    auxiliary: Tensor


class _ModelOutputs(NamedTuple):
    """What a model says of recorded steps.

    unrolled: as it came. distribution: [T * R] - at every step. log_prob: [T, R] - of what was done.
    values: [T or T+1, R] - as ValueHead gives them.
    """

    unrolled: Unrolled
    distribution: ActionDistribution
    log_prob: Tensor
    values: Tensor


class _Precomputed(NamedTuple):
    """What of a whole minibatch is known before any gradient, as far as it is needed.

    log_prob: [T, R], values: [T+1, R] - by the present weights. target_log_prob: [T, R] - by the target network.
    """

    log_prob: Tensor | None
    values: Tensor | None
    target_log_prob: Tensor | None


class _LossTargets(NamedTuple):
    """What a minibatch is to learn, each [T, R].

    returns: what values should be. advantages: in the unit of rewards. weights: the same as the policy loss takes them.
    reference: log-probabilities that the ratio of the policy loss compares the present ones with.
    """

    returns: Tensor
    advantages: Tensor
    weights: Tensor
    reference: Tensor

    def columns(self, which: slice) -> _LossTargets:
        return _LossTargets(*(tensor[:, which] for tensor in self))


class LossFunction:
    """The loss that ``config`` describes; the next minibatch is judged by what it is by then."""

    def __init__(
        self,
        model: ActorCritic,
        config: AlgoConfig,
        target: TargetNetwork | None = None,
        auxiliary: AuxiliaryTask | None = None,
    ) -> None:
        """``target``: the policy that V-trace and the ratio look at with ``use_target_net``."""
        self._model, self.config = model, config
        self._target, self._auxiliary = target, auxiliary

    def gae_targets(self, batch: Batch) -> Targets | None:
        """Targets of a whole dataset under GAE; None with V-trace, which makes its own per minibatch."""
        return None if self.config.with_vtrace else gae_targets(self._model, self.config, batch)

    @torch.no_grad()
    def divergence(self, minibatch: Minibatch, microbatch_size: int) -> float:
        """KL of the behavior policy and the present one over fresh steps, as ``kl`` of the statistics, by a pass of its
        own, in parts as ``parts`` takes them; NaN without a fresh step. Waits for the device.
        """
        minibatch, columns = minibatch.cut(microbatch_size)
        total = torch.zeros((), device=minibatch.batch.valid.device)
        for which in columns:
            batch = minibatch.batch.columns(which)
            log_ratios = losses.log_ratio(_log_prob(self._model, batch), batch.behavior_log_prob, batch.fresh)
            total = total + losses.approx_kl(log_ratios=log_ratios).sum()
        return float(total / minibatch.batch.fresh.sum())

    def parts(self, minibatch: Minibatch, microbatch_size: int, weights: Weights) -> Iterator[Part]:
        """The loss of a minibatch, in parts of ``microbatch_size`` steps (0: one part).

        Take the gradient of each before asking for the next one: only so do parts save memory.
        """
        minibatch, columns = minibatch.cut(microbatch_size)
        batch = minibatch.batch
        steps = batch.valid.sum()
        # What each cell's share is divided by.
        divisor = steps.clamp(min=1) if self.config.loss_reduction == "mean" else torch.ones_like(steps)
        if len(columns) == 1:
            # Nothing of it may be kept here: the gradient takes less time where what it is done with is free.
            yield self._whole(minibatch, divisor, weights)
            return
        aims = self._aims(minibatch, self._seen(minibatch, columns))
        for which in columns:
            part = batch.columns(which)
            yield self._part(part, aims.columns(which), _judge(self._model, part, ahead=0), divisor, weights)

    def _whole(self, minibatch: Minibatch, divisor: Tensor, weights: Weights) -> Part:
        """A minibatch as its only part."""
        batch = minibatch.batch
        # V-trace wants V(obs[T]), too.
        judged = _judge(self._model, batch, ahead=1 if minibatch.targets is None else 0)
        seen = _Precomputed(judged.log_prob.detach(), judged.values.detach(), self._target_log_prob(batch))
        return self._part(batch, self._aims(minibatch, seen), judged, divisor, weights)

    @torch.no_grad()
    def _seen(self, minibatch: Minibatch, columns: list[slice]) -> _Precomputed:
        """By passes without gradients over one part after the other."""
        parts = [minibatch.batch.columns(which) for which in columns]
        log_prob = values = target_log_prob = None
        if minibatch.targets is None:
            judged = [_judge(self._model, part, ahead=1) for part in parts]
            log_prob = torch.cat([one.log_prob for one in judged], dim=1)
            values = torch.cat([one.values for one in judged], dim=1)
        if self._target is not None:
            target_log_prob = torch.cat([_log_prob(self._target.model, part) for part in parts], dim=1)
        return _Precomputed(log_prob, values, target_log_prob)

    def _target_log_prob(self, batch: Batch) -> Tensor | None:
        return None if self._target is None else _log_prob(self._target.model, batch)

    @torch.no_grad()
    def _aims(self, minibatch: Minibatch, seen: _Precomputed) -> _LossTargets:
        config, batch, targets = self.config, minibatch.batch, minibatch.targets
        reference = batch.behavior_log_prob
        if seen.target_log_prob is not None:
            reference = losses.impact_log_prob(
                target_log_prob=seen.target_log_prob,
                behavior_log_prob=batch.behavior_log_prob,
                worker_clip=config.target_worker_clip,
            )
        if targets is None:
            corrected_for = seen.log_prob if seen.target_log_prob is None else seen.target_log_prob
            assert corrected_for is not None
            assert seen.values is not None
            values = self._model.value_head.denormalize(seen.values)
            targets = vtrace_targets(config, batch, corrected_for, values)
        advantages = targets.advantages
        weights = normalize(advantages, batch.valid) if config.normalize_advantages else advantages
        return _LossTargets(targets.returns, advantages, weights, reference)

    def _part(self, batch: Batch, aims: _LossTargets, judged: _ModelOutputs, divisor: Tensor, weights: Weights) -> Part:
        """Shares of a part, whose valid steps count among ``divisor`` in all."""
        config, valid, head = self.config, batch.valid, self._model.value_head
        values = judged.values[: valid.shape[0]]
        surrogate = losses.log_ratio(judged.log_prob, aims.reference, valid)
        log_ratio = surrogate
        if self._target is not None:
            log_ratio = losses.log_ratio(judged.log_prob, batch.behavior_log_prob, valid)
        policy = self._policy_loss(judged.log_prob, surrogate, aims.weights, valid)
        value = losses.value_loss(
            values=values,
            targets=head.normalize(aims.returns),
            behavior_values=head.normalize(batch.behavior_value),
            valid=valid,
            clip_value=config.ppo_clip_value,
        )
        entropy = losses.entropy_bonus(entropy=judged.distribution.entropy().view_as(valid), valid=valid)
        terms = policy + config.value_loss_coeff * value
        if config.exploration_loss == "entropy":
            terms = terms - weights.exploration * entropy
        elif config.exploration_loss == "symmetric_kl":
            distance = judged.distribution.symmetric_kl_to_uniform().view_as(valid)
            terms = terms + weights.exploration * losses.symmetric_kl_to_uniform(symmetric_kl=distance, valid=valid)
        if weights.kl:
            terms = terms + weights.kl * losses.kl_penalty(log_ratios=log_ratio)
        loss = terms.sum() / divisor
        auxiliary = torch.zeros_like(loss.detach())
        if self._auxiliary is not None:
            # A mean over the part, which counts as much as the part has valid steps.
            auxiliary = self._auxiliary.loss(batch, judged.unrolled) * valid.sum()
            loss = loss + config.aux_loss_coeff * auxiliary / divisor
        cells = LossTerms(
            policy_loss=policy.detach(),
            value_loss=value.detach(),
            entropy=entropy.detach(),
            log_ratio=log_ratio.detach(),
            surrogate=surrogate.detach(),
            value=head.denormalize(values.detach()),
            target=aims.returns,
            advantage=aims.advantages,
            valid=valid,
            replayed=batch.replayed,
        )
        return Part(loss, cells, auxiliary.detach())

    def _policy_loss(self, log_prob: Tensor, log_ratios: Tensor, advantages: Tensor, valid: Tensor) -> Tensor:
        if self.config.policy_loss == "pg":
            return losses.pg_loss(log_prob=log_prob, advantages=advantages, valid=valid)
        clip_ratio = self.config.ppo_clip_ratio
        return losses.ppo_clip_loss(log_ratios=log_ratios, advantages=advantages, valid=valid, clip_ratio=clip_ratio)


def _judge(model: ActorCritic, batch: Batch, ahead: int) -> _ModelOutputs:
    """What ``model`` says of ``batch``, and of ``ahead`` observations after it."""
    steps = batch.valid.shape[0] + ahead
    obs = {key: tensor[:steps] for key, tensor in batch.obs.items()}
    unrolled = model.unroll(obs, batch.rnn_states[:-1], batch.is_first[:steps], batch.recurrence, batch.held)
    distribution = model.distribution(unrolled.dist_params)
    actions = {key: tensor.flatten(0, 1) for key, tensor in batch.actions.items()}
    return _ModelOutputs(unrolled, distribution, distribution.log_prob(actions).view_as(batch.valid), unrolled.values)


@torch.no_grad()
def _log_prob(model: ActorCritic, batch: Batch) -> Tensor:
    return _judge(model, batch, ahead=0).log_prob
