"""Room: what one training pass sees. In: a full staging area. Out: tensors on the learner's device."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    obs: dict[str, Tensor]
    actions: dict[str, Tensor]
    behavior_log_prob: Tensor
    behavior_value: Tensor
    rewards: Tensor
    discounts: Tensor
    valid: Tensor
    lag: Tensor

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
        )

    @property
    def rows(self) -> int:
        """R."""
        return self.valid.shape[1]

    def columns(self, start: int, stop: int) -> Batch:
        """Rows [start, stop) as a batch of their own (views)."""
        if start == 0 and stop == self.rows:
            return self
        return Batch(
            obs={key: tensor[:, start:stop] for key, tensor in self.obs.items()},
            actions={key: tensor[:, start:stop] for key, tensor in self.actions.items()},
            behavior_log_prob=self.behavior_log_prob[:, start:stop],
            behavior_value=self.behavior_value[:, start:stop],
            rewards=self.rewards[:, start:stop],
            discounts=self.discounts[:, start:stop],
            valid=self.valid[:, start:stop],
            lag=self.lag[:, start:stop],
        )
