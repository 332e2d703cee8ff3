"""The tensors that a training pass sees, made of a full staging area."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig
from sfactory.learner.staging import ENV_STEP, FINAL_VALUE, HELD, REPLAYED, RUN_STEP, Columns


def columns_of(tensor: Tensor, which: slice | Tensor) -> Tensor:
    """Columns of ``tensor`` [T, B, ...]: a slice as a view, [M] int64 as a copy."""
    # Of images, index_select on a CPU takes a sixth of the time of tensor[:, which].
    return tensor[:, which] if isinstance(which, slice) else tensor.index_select(1, which)


@dataclass(frozen=True)
class Batch:
    """R rows of T steps, time-major, on one device.

    obs: {key: [T+1, R, ...]}; actions: {key: [T, R, ...]}
    behavior_log_prob, behavior_value: [T, R] float32, as recorded when acting
    rewards: [T, R] float32, scaled, and clipped if there is a limit; then final values are added, see NOTE
        [Final values]
    discounts: [T, R] float32 - gamma, or 0 where the step terminated
    taken: [T, R] bool - an env took the step; False in padding
    valid: [T, R] bool - the step is learned from: it was taken, and its policy was not too old when the dataset
        was opened
    replayed: [T, R] bool - the step was in a dataset before: it is learned from, but no statistics count it again
    policy_version: [T, R] int64 - of the weights that took the step
    is_first: [T+1, R] bool - obs is the first of an episode: the RNN state is zeroed before it
    rnn_states: [K+1, R, S] float32 - as recorded before each of K chunks and after the last step; S may be 0
    reward_clipped: [T, R] bool - the scaled reward was outside --reward_clip; None: rewards are not clipped
    held: [T, R] bool - the agent was inactive, and its RNN state stays the same; None where agents are always active
    waiting: [T, R] bool - the same where agents act in turn: targets pass over the step; None in other envs
    intrinsic_returns, intrinsic_advantages: [T, R] float32 - of the bonus for new observations; None without
    env_step, run_step: [T, R] bool - the step counts as an env step of the policy, and of the run; None: all do

    In a batch of single steps (``steps``) T is 1, R counts steps, and obs and is_first have no row after the last.
    """

    obs: dict[str, Tensor]
    actions: dict[str, Tensor]
    behavior_log_prob: Tensor
    behavior_value: Tensor
    rewards: Tensor
    discounts: Tensor
    taken: Tensor
    valid: Tensor
    replayed: Tensor
    policy_version: Tensor
    is_first: Tensor
    rnn_states: Tensor
    reward_clipped: Tensor | None = None
    held: Tensor | None = None
    waiting: Tensor | None = None
    env_step: Tensor | None = None
    run_step: Tensor | None = None
    intrinsic_returns: Tensor | None = None
    intrinsic_advantages: Tensor | None = None

    @staticmethod
    def of(columns: Columns, algo: AlgoConfig, learner: LearnerConfig, train_step: int, device: torch.device) -> Batch:
        """Move a full dataset to ``device``, if it is not there yet; ``train_step``: the learner's present version."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        scalars = {name: move(tensor) for name, tensor in columns.scalars.items()}
        taken, version = scalars["valid"], scalars["policy_version"]
        lag = train_step - version
        if algo.with_vtrace and algo.vtrace_drop_last_ts:
            # V-trace bootstraps from the value of the last step.
            taken = torch.cat((taken[:-1], torch.zeros_like(taken[-1:])))
        scaled, limit = scalars["reward"] * algo.reward_scale, algo.reward_clip
        rewards = scaled if limit is None else scaled.clamp(-limit, limit)
        if FINAL_VALUE in scalars:
            rewards = rewards + algo.gamma * scalars[FINAL_VALUE]
        replayed = scalars[REPLAYED] if REPLAYED in scalars else torch.zeros_like(taken)
        young = torch.where(replayed, lag < learner.max_replay_lag, lag < learner.max_policy_lag)
        return Batch(
            obs={key: move(tensor) for key, tensor in columns.obs.items()},
            actions={key: move(tensor) for key, tensor in columns.actions.items()},
            behavior_log_prob=scalars["log_prob"],
            behavior_value=scalars["value"],
            rewards=rewards,
            discounts=torch.where(scalars["terminated"], 0.0, algo.gamma),
            taken=taken,
            valid=taken & young,
            replayed=replayed,
            policy_version=version,
            is_first=move(columns.is_first),
            rnn_states=move(columns.rnn_states),
            reward_clipped=None if limit is None else scaled.abs() > limit,
            held=scalars.get(HELD),
            waiting=scalars.get(HELD) if columns.in_turns else None,
            env_step=scalars.get(ENV_STEP),
            run_step=scalars.get(RUN_STEP),
        )

    def since(self, version: int) -> Batch:
        """The batch with steps of older policy versions masked."""
        return replace(self, valid=self.valid & (self.policy_version >= version))

    @property
    def fresh(self) -> Tensor:
        """[T, R] bool - valid and not replayed: steps that statistics and normalizers count."""
        return self.valid & ~self.replayed

    @property
    def rows(self) -> int:
        """R."""
        return self.valid.shape[1]

    @property
    def recurrence(self) -> int:
        """Steps of a chunk: T / K."""
        return self.valid.shape[0] // (self.rnn_states.shape[0] - 1)

    def columns(self, which: slice | Tensor) -> Batch:
        """The rows ``which`` ([M] int64, or a slice, which gives views) as a batch."""
        if isinstance(which, slice) and which == slice(0, self.rows):
            return self
        return self.map(lambda tensor: columns_of(tensor, which))

    def steps(self) -> Batch:
        """All T x R steps as rows of one step each, without RNN states and observations after them."""
        steps = self.valid.shape[0]
        flat = self.map(lambda tensor: tensor[:steps].flatten(0, 1).unsqueeze(0))
        return replace(flat, rnn_states=self.rnn_states.new_empty(2, flat.rows, 0))

    def tensors(self) -> list[Tensor]:
        """All tensors, in the same order for all batches with the same fields."""
        found: list[Tensor] = []
        for value in vars(self).values():
            found += value.values() if isinstance(value, dict) else () if value is None else (value,)
        return found

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor changed."""

        def changed(value: Tensor | dict[str, Tensor] | None) -> Any:
            if isinstance(value, dict):
                return {key: change(tensor) for key, tensor in value.items()}
            return None if value is None else change(value)

        return Batch(**{name: changed(value) for name, value in vars(self).items()})
