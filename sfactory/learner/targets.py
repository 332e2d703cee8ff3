"""Room: what values and advantages should be. In: a batch, values, log-probabilities. Out: targets without gradients.

The equations are in sfactory/algo. GAE's targets are made once for a dataset, from the values recorded when acting,
with V(obs[T]) by the present weights. V-trace's are made anew for every minibatch, from present values and from the
policy that is corrected for: the present one, or the target policy of IMPACT. All are in the unit of rewards.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo.gae import gae
from sfactory.algo.vtrace import vtrace
from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic


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


@torch.no_grad()
def gae_targets(model: ActorCritic, config: AlgoConfig, batch: Batch) -> Targets:
    """Targets of a whole dataset of rollouts."""
    state = torch.where(batch.is_first[-1].unsqueeze(-1), 0.0, batch.rnn_states[-1])
    result = gae(
        discounts=batch.discounts,
        rewards=batch.rewards,
        values=batch.behavior_value,
        bootstrap_value=model({key: obs[-1] for key, obs in batch.obs.items()}, state).value,
        valid=batch.valid,
        lambda_=config.gae_lambda,
    )
    return Targets(result.returns, result.advantages)


def vtrace_targets(config: AlgoConfig, batch: Batch, log_prob: Tensor, values: Tensor) -> Targets:
    """Targets of a minibatch of rollouts.

    log_prob: [T, R] - of what was done, by the policy that is corrected for. values: [T+1, R] - present ones.
    """
    result = vtrace(
        log_rhos=torch.where(batch.valid, log_prob - batch.behavior_log_prob, -torch.inf),
        discounts=batch.discounts,
        rewards=batch.rewards,
        values=values[:-1],
        bootstrap_value=values[-1],
        rho_clip=config.vtrace_rho,
        c_clip=config.vtrace_c,
        pg_rho_clip=config.vtrace_pg_rho,
        lambda_=config.vtrace_lambda,
    )
    return Targets(result.vs, result.pg_advantages if _weights_advantages(config) else result.advantages)


def _weights_advantages(config: AlgoConfig) -> bool:
    """Whether advantages carry the importance weight. The surrogate has a ratio of its own, which would count twice."""
    if config.vtrace_adv_weighting == "auto":
        return config.policy_loss == "pg"
    return config.vtrace_adv_weighting == "rho"
