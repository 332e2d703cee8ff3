"""Room: what one training pass sees. In: a full staging area. Out: tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig
from sfactory.learner.staging import Staging


@dataclass(frozen=True)
class Batch:
    """R rows of T steps, time-major, on one device.

    obs: {key: [T+1, R, ...]}; actions: {key: [T, R, ...]}
    behavior_log_prob, behavior_value: [T, R] float32, as recorded when acting
    rewards: [T, R] float32, scaled and clipped
    discounts: [T, R] float32 - gamma, or 0 where the step terminated
    valid: [T, R] bool - the step may teach: it was taken, and its policy is not too old
    lag: [T, R] int32 - learner updates since the weights that took the step
    is_first: [T+1, R] bool - obs is the first of an episode: memory is zeroed before it
    rnn_states: [K+1, R, S] float32 - memory as recorded before each of K chunks and after the last step; S may be 0

    In a batch of single steps (``steps``) T is 1, R counts steps, and obs and is_first have no row after the last.
    """

    obs: dict[str, Tensor]
    actions: dict[str, Tensor]
    behavior_log_prob: Tensor
    behavior_value: Tensor
    rewards: Tensor
    discounts: Tensor
    valid: Tensor
    lag: Tensor
    is_first: Tensor
    rnn_states: Tensor

    @staticmethod
    def of(staging: Staging, algo: AlgoConfig, train_step: int, max_lag: int, device: torch.device) -> Batch:
        """Move a full staging area to ``device``; ``train_step`` is the learner's present version."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        scalars = {name: move(tensor) for name, tensor in staging.scalars.items()}
        lag = train_step - scalars["policy_version"]
        rewards = (scalars["reward"] * algo.reward_scale).clamp(-algo.reward_clip, algo.reward_clip)
        return Batch(
            obs={key: move(tensor) for key, tensor in staging.obs.items()},
            actions={key: move(tensor) for key, tensor in staging.actions.items()},
            behavior_log_prob=scalars["log_prob"],
            behavior_value=scalars["value"],
            rewards=rewards,
            discounts=torch.where(scalars["terminated"], 0.0, algo.gamma),
            valid=scalars["valid"] & (lag < max_lag),
            lag=lag,
            is_first=move(staging.is_first),
            rnn_states=move(staging.rnn_states),
        )

    @property
    def rows(self) -> int:
        """R."""
        return self.valid.shape[1]

    @property
    def recurrence(self) -> int:
        """Steps of a chunk: T / K."""
        return self.valid.shape[0] // (self.rnn_states.shape[0] - 1)

    def columns(self, which: slice | Tensor) -> Batch:
        """The rows ``which`` ([M] int64, or a slice, which gives views) as a batch of their own."""
        if isinstance(which, slice) and which == slice(0, self.rows):
            return self
        return self._each(lambda tensor: tensor[:, which])

    def steps(self) -> Batch:
        """All T x R steps as rows of one step each, without memory and without what comes after them."""
        steps = self.valid.shape[0]
        flat = self._each(lambda tensor: tensor[:steps].flatten(0, 1).unsqueeze(0))
        return replace(flat, rnn_states=self.rnn_states.new_empty(2, flat.rows, 0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(
            obs={key: change(tensor) for key, tensor in self.obs.items()},
            actions={key: change(tensor) for key, tensor in self.actions.items()},
            behavior_log_prob=change(self.behavior_log_prob),
            behavior_value=change(self.behavior_value),
            rewards=change(self.rewards),
            discounts=change(self.discounts),
            valid=change(self.valid),
            lag=change(self.lag),
            is_first=change(self.is_first),
            rnn_states=change(self.rnn_states),
        )
