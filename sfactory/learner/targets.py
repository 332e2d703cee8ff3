"""Targets of values and advantages, and the target network of IMPACT.

The equations are in sfactory/algo. GAE's targets are computed once for a dataset, V-trace's for every minibatch, from
present values and the policy that is corrected for: the present one, or the target network's. All are in the unit of
rewards, without gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfactory.algo.vtrace import vtrace
from sfactory.config.schema import AlgoConfig
from sfactory.learner.batch import Batch, columns_of
from sfactory.model.actor_critic import ActorCritic


class Targets(NamedTuple):
    """advantages: [T, R] float - 0 at invalid rows. returns: [T, R] float - targets of the value function."""

    advantages: Tensor
    returns: Tensor

    def columns(self, which: slice | Tensor) -> Targets:
        """The rows ``which``, as Batch.columns."""
        return Targets(columns_of(self.advantages, which), columns_of(self.returns, which))

    def steps(self) -> Targets:
        """All steps as rows of one step each, as Batch.steps."""
        return Targets(self.advantages.reshape(1, -1), self.returns.reshape(1, -1))


def vtrace_targets(config: AlgoConfig, batch: Batch, log_prob: Tensor, values: Tensor) -> Targets:
    """Targets of a minibatch of rollouts.

    log_prob: [T, R] - of the recorded actions, by the policy that is corrected for. values: [T+1, R] - present ones.
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
        held=batch.waiting,
    )
    return Targets(result.pg_advantages if config.weights_advantages else result.advantages, result.vs)


class TargetNetwork:
    """``model``, a copy of ``source`` that moves towards it after every ``interval`` updates that were taken.

    Parameters become (1 - tau) old + tau new. Buffers, such as statistics of normalizers, are copied: a mixture of
    statistics would fit neither model.
    Source: Luo et al. 2020, "IMPACT: Importance weighted asynchronous architectures with clipped target networks".
    """

    def __init__(self, source: ActorCritic, interval: int, tau: float) -> None:
        self._source, self._interval, self._tau = source, interval, tau
        self.model = copy.deepcopy(source).requires_grad_(False)
        device = source.value_head.linear.weight.device
        # Counted on the device, see NOTE [No waiting for the device].
        self._since = torch.zeros((), dtype=torch.int64, device=device)
        self.moves = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def counters(self) -> tuple[Tensor, Tensor]:
        """What changes beside the model."""
        return self._since, self.moves

    def copy(self) -> None:
        """Become the same as the source; the next move is due ``interval`` updates from now."""
        self.model.load_state_dict(self._source.state_dict())
        self._since.zero_()

    @torch.no_grad()
    def after_update(self, taken: Tensor) -> None:
        """After each update of the source: move if it is due. ``taken``: 0-dim bool, see ``Applied``."""
        self._since += taken
        due = taken & (self._since >= self._interval)
        self._since *= ~due
        self.moves += due
        for mine, theirs in zip(self.model.buffers(), self._source.buffers(), strict=True):
            mine.copy_(torch.where(due, theirs, mine))
        for mine, theirs in zip(self.model.parameters(), self._source.parameters(), strict=True):
            mine.lerp_(theirs, due.to(mine.dtype) * self._tau)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"model": self.model.state_dict(), "since": self._since, "moves": self.moves}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; raises as Module.load_state_dict if it is of another model."""
        self.model.load_state_dict(state["model"])
        self._since.copy_(state["since"])
        self.moves.copy_(state["moves"])
