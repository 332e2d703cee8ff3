"""The loss of one minibatch: forward pass, ratios, targets, and the terms with their coefficients.

The equations are in sfactory/algo. The gradients of the parts of a minibatch add up to those of the whole: all that one
step needs of the others (targets, normalization of advantages, number of valid steps) is computed for the whole first.
Targets and recorded values are in the unit of rewards; only the value loss compares normalized ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo import losses
from sfactory.algo.gae import gae
from sfactory.config.schema import AlgoConfig
from sfactory.errors import first_line
from sfactory.learner.auxiliary import AuxiliaryTask
from sfactory.learner.batch import Batch
from sfactory.learner.minibatches import Minibatch
from sfactory.learner.targets import TargetNetwork, Targets, vtrace_targets
from sfactory.learner.train_stats import LossTerms
from sfactory.model.actor_critic import ActorCritic, Unrolled
from sfactory.model.distributions import ActionDistribution
from sfactory.ranks.ranks import ALONE, Ranks

_log = logging.getLogger(__name__)

Coefficient = float | Tensor  # a number, or a 0-dim float32 tensor on the device
_Coefficients = tuple[Coefficient, Coefficient | None]  # of the exploration loss, of the KL penalty


class Part(NamedTuple):
    """A part of a minibatch, after its forward pass.

    loss: 0-dim, with gradients - its share of the minibatch's loss. cells: terms of the loss.
    auxiliary: 0-dim - its auxiliary loss, times its valid steps.
    """

    loss: Tensor
    cells: LossTerms
    auxiliary: Tensor


_Whole = Callable[[Minibatch, Tensor, _Coefficients], Part]


class _Outputs(NamedTuple):
    """Outputs of a model for recorded steps.

    unrolled: all, with values [T or T+1, R] as ValueHead gives them. distribution: [T * R] - at every step.
    log_prob: [T, R] - of the recorded actions.
    """

    unrolled: Unrolled
    distribution: ActionDistribution
    log_prob: Tensor


class _Constants(NamedTuple):
    """Constants of the loss, each [T, R], without gradients.

    returns: value targets. advantages: in the unit of rewards. normalized: advantages as the policy loss takes them.
    reference: log-probabilities in the denominator of the policy loss's ratio. drawn: what steps count in the auxiliary
    loss, if that is drawn for a whole minibatch.
    """

    returns: Tensor
    advantages: Tensor
    normalized: Tensor
    reference: Tensor
    drawn: Tensor | None

    def columns(self, which: slice) -> _Constants:
        return _Constants._make(None if tensor is None else tensor[:, which] for tensor in self)


class LossFunction:
    """The loss that ``config`` describes, for one minibatch after the other; ``config`` may be replaced in between."""

    def __init__(
        self,
        model: ActorCritic,
        config: AlgoConfig,
        target: TargetNetwork | None,
        auxiliary: AuxiliaryTask | None,
        torch_compile: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """``target``: with ``use_target_net``; V-trace and the ratio use its policy."""
        self._model, self.config, self._target, self._auxiliary = model, config, target, auxiliary
        self._ranks = ranks
        self._compute_whole = _compiled(self._whole) if torch_compile else self._whole

    @property
    def clip(self) -> tuple[float, float]:
        """The range of the ratio in the policy loss of PPO."""
        return losses.clip_range(self.config.ppo_clip_ratio, self.config.ppo_clip_low)

    @torch.no_grad()
    def gae_targets(self, batch: Batch) -> Targets | None:
        """Targets of a whole dataset under GAE; None with V-trace, which computes them per minibatch."""
        if self.config.with_vtrace:
            return None
        state = torch.where(batch.is_first[-1].unsqueeze(-1), 0.0, batch.rnn_states[-1])
        targets = gae(
            discounts=batch.discounts,
            rewards=batch.rewards,
            values=batch.behavior_value,
            bootstrap_value=self._model({key: obs[-1] for key, obs in batch.obs.items()}, state).value,
            valid=batch.valid,
            lambda_=self.config.gae_lambda,
            held=batch.waiting,
        )
        return Targets(*targets)

    def parts(
        self, minibatch: Minibatch, microbatch_size: int, *, exploration: Coefficient, kl: Coefficient | None
    ) -> Iterator[Part]:
        """The loss of a minibatch, in parts of ``microbatch_size`` steps (0: one part).

        exploration, kl: coefficients; None: without a KL penalty. Take the gradient of each part before asking for the
        next one, to save memory.
        """
        minibatch, columns = minibatch.cut(microbatch_size)
        batch = minibatch.batch
        steps = batch.valid.sum()
        divisor = steps.clamp(min=1) if self.config.loss_reduction == "mean" else torch.ones_like(steps)
        if len(columns) == 1:
            # No local may hold the outputs meanwhile: the backward pass is faster where it can free them.
            yield self._compute_whole(minibatch, divisor, (exploration, kl))
            return
        constants = self._constants_in_parts(minibatch, columns)
        for which in columns:
            part = batch.columns(which)
            yield self._part(part, constants.columns(which), _forward(self._model, part), divisor, (exploration, kl))

    def _whole(self, minibatch: Minibatch, divisor: Tensor, coefficients: _Coefficients) -> Part:
        batch = minibatch.batch
        outputs = _forward(self._model, batch, ahead=1 if minibatch.targets is None else 0)
        target_log_prob = None if self._target is None else _log_prob(self._target.model, batch)
        log_prob, values = outputs.log_prob.detach(), outputs.unrolled.values.detach()
        constants = self._constants(minibatch, log_prob, values, target_log_prob)
        return self._part(batch, constants, outputs, divisor, coefficients)

    @torch.no_grad()
    def _constants_in_parts(self, minibatch: Minibatch, columns: list[slice]) -> _Constants:
        """Of the whole minibatch, by forward passes over one part after the other."""
        parts = [minibatch.batch.columns(which) for which in columns]
        log_prob = values = target_log_prob = None
        if minibatch.targets is None:
            outputs = [_forward(self._model, part, ahead=1) for part in parts]
            log_prob = torch.cat([each.log_prob for each in outputs], dim=1)
            values = torch.cat([each.unrolled.values for each in outputs], dim=1)
        if self._target is not None:
            target_log_prob = torch.cat([_log_prob(self._target.model, part) for part in parts], dim=1)
        return self._constants(minibatch, log_prob, values, target_log_prob)

    @torch.no_grad()
    def _constants(
        self, minibatch: Minibatch, log_prob: Tensor | None, values: Tensor | None, target_log_prob: Tensor | None
    ) -> _Constants:
        """log_prob: [T, R], values: [T+1, R] - by present weights, for V-trace. target_log_prob: with a target."""
        config, batch, targets = self.config, minibatch.batch, minibatch.targets
        # Denominator of the ratio: the behavior policy, or what replaces it in IMPACT (Luo et al. 2020, section 3.1).
        reference = batch.behavior_log_prob
        if target_log_prob is not None:
            reference = losses.impact_log_prob(
                target_log_prob=target_log_prob,
                behavior_log_prob=batch.behavior_log_prob,
                worker_clip=config.target_worker_clip,
            )
        # Targets: of GAE (Schulman et al. 2016), made for the whole dataset, or of V-trace (Espeholt et al. 2018).
        if targets is None:
            corrected_for = log_prob if target_log_prob is None else target_log_prob
            assert corrected_for is not None
            assert values is not None
            targets = vtrace_targets(config, batch, corrected_for, self._model.value_head.denormalize(values))
        if batch.intrinsic_advantages is not None:
            advantages = targets.advantages + config.rnd_coeff * batch.intrinsic_advantages
            targets = targets._replace(advantages=torch.where(batch.valid, advantages, 0.0))
        normalized = targets.advantages
        if config.normalize_advantages:
            normalized = losses.normalize(normalized, batch.valid, self._ranks.sum_of("advantages"))
        drawn = None if self._auxiliary is None else self._auxiliary.draw(batch, config)
        return _Constants(targets.returns, targets.advantages, normalized, reference, drawn)

    def _part(
        self, batch: Batch, constants: _Constants, outputs: _Outputs, divisor: Tensor, coefficients: _Coefficients
    ) -> Part:
        """The loss of ``batch``, a part of a minibatch: the sum over its valid cells, divided by ``divisor``."""
        config, valid, head = self.config, batch.valid, self._model.value_head
        exploration, kl = coefficients
        # Ratios, as logs: of the policy loss, and pi / mu, which is another one with a target network.
        surrogate = losses.log_ratio(outputs.log_prob, constants.reference, valid)
        log_ratio = surrogate
        if self._target is not None:
            log_ratio = losses.log_ratio(outputs.log_prob, batch.behavior_log_prob, valid)
        # Policy loss: policy gradient of IMPALA (section 4.2), or the clipped surrogate of PPO (eq. 7).
        if config.policy_loss == "pg":
            policy = losses.pg_loss(log_prob=outputs.log_prob, advantages=constants.normalized, valid=valid)
        else:
            policy = losses.ppo_clip_loss(
                log_ratios=surrogate, advantages=constants.normalized, valid=valid, clip=self.clip
            )
        # Value loss (PPO, eq. 9, squared error), of normalized values if returns are normalized.
        values = outputs.unrolled.values[: valid.shape[0]]
        value = losses.value_loss(
            values=values,
            targets=head.normalize(constants.returns),
            behavior_values=head.normalize(batch.behavior_value),
            valid=valid,
            clip_value=config.ppo_clip_value,
        )
        terms = policy + config.value_loss_coeff * value
        # Exploration: entropy bonus (PPO, eq. 9), or distance to the uniform policy.
        entropy = torch.where(valid, outputs.distribution.entropy().view_as(valid), 0.0)
        if config.exploration_loss == "entropy":
            terms = terms - exploration * entropy
        elif config.exploration_loss == "symmetric_kl":
            distance = outputs.distribution.symmetric_kl_to_uniform().view_as(valid)
            terms = terms + exploration * losses.symmetric_kl_to_uniform(symmetric_kl=distance, valid=valid)
        # KL penalty (PPO, eq. 8).
        if kl is not None:
            terms = terms + kl * losses.kl_penalty(log_ratios=log_ratio)
        loss = terms.sum() / divisor
        # Auxiliary loss: a mean, which counts as much as there are valid steps.
        auxiliary = torch.zeros_like(loss.detach())
        if self._auxiliary is not None:
            auxiliary = self._auxiliary.loss(batch, outputs.unrolled, config, constants.drawn)
            loss = loss + self._auxiliary.coefficient(config) * auxiliary / divisor
        cells = LossTerms(
            policy_loss=policy.detach(),
            value_loss=value.detach(),
            entropy=entropy.detach(),
            log_ratio=log_ratio.detach(),
            surrogate=surrogate.detach(),
            value=head.denormalize(values.detach()),
            target=constants.returns,
            advantage=constants.advantages,
            valid=valid,
            replayed=batch.replayed,
            reward_clipped=torch.zeros_like(valid) if batch.reward_clipped is None else batch.reward_clipped,
        )
        return Part(loss, cells, auxiliary.detach())

    @torch.no_grad()
    def divergence(self, minibatch: Minibatch, microbatch_size: int) -> Tensor:
        """0-dim: mean KL(mu || pi) of behavior and present policy over fresh steps, NaN without any."""
        minibatch, columns = minibatch.cut(microbatch_size)
        total = torch.zeros((), device=minibatch.batch.valid.device)
        for which in columns:
            batch = minibatch.batch.columns(which)
            log_ratios = losses.log_ratio(_log_prob(self._model, batch), batch.behavior_log_prob, batch.fresh)
            total = total + losses.approx_kl(log_ratios=log_ratios).sum()
        steps = minibatch.batch.fresh.sum()
        if (add_up := self._ranks.sum_of("divergence")) is not None:
            total, steps = add_up(torch.stack((total.double(), steps.double()))).unbind()
        return total / steps


def _compiled(whole: _Whole) -> _Whole:
    """``whole`` by torch.compile; where that fails, the cause is logged once, and it is computed as it is."""
    import torch._functorch.config as autograd
    import torch._inductor.config as inductor  # which takes 2 s
    from torch._dynamo.exc import TorchDynamoException

    compiled: _Whole | None = torch.compile(whole)

    def call(minibatch: Minibatch, divisor: Tensor, coefficients: _Coefficients) -> Part:
        nonlocal compiled
        if compiled is not None:
            try:
                # Without processes of its own, which the trainer would have to end; the backward pass at once, too.
                with inductor.patch(compile_threads=1), autograd.patch(force_non_lazy_backward_lowering=True):
                    # As tensors: a number is a constant of what is compiled, and a schedule would compile repeatedly.
                    exploration, kl = coefficients
                    tensor = partial(torch.as_tensor, dtype=torch.float32, device=divisor.device)
                    return compiled(minibatch, divisor, (tensor(exploration), None if kl is None else tensor(kl)))
            except TorchDynamoException as error:
                _log.warning("--torch_compile: the loss is computed without it, since it failed: %s", first_line(error))
                compiled = None
        return whole(minibatch, divisor, coefficients)

    return call


def _forward(model: ActorCritic, batch: Batch, ahead: int = 0) -> _Outputs:
    """``model`` over ``batch``, and over ``ahead`` observations after it (V-trace needs V(obs[T]))."""
    steps = batch.valid.shape[0] + ahead
    obs = {key: tensor[:steps] for key, tensor in batch.obs.items()}
    unrolled = model.unroll(obs, batch.rnn_states[:-1], batch.is_first[:steps], batch.recurrence, batch.held)
    distribution = model.distribution(unrolled.dist_params)
    actions = {key: tensor.flatten(0, 1) for key, tensor in batch.actions.items()}
    return _Outputs(unrolled, distribution, distribution.log_prob(actions).view_as(batch.valid))


@torch.no_grad()
def _log_prob(model: ActorCritic, batch: Batch) -> Tensor:
    return _forward(model, batch).log_prob
