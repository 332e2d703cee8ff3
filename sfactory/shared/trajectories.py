"""Stores all trajectories, and the recurrent states between steps, in shared memory.

NOTE [Slot shape]: a slot is one rollout of one whole split: obs and is_first are [T+1, N, ...], all other fields
[T, N, ...]. One step of a split is therefore one contiguous block, which policy workers and learners copy with a single
memcpy. docs/architecture.md describes truncation rows and invalid rows.

NOTE [State phases]: each split has two states; a step reads the state of its phase and writes the other one. A request
can therefore be answered twice: the second answer reads the same state as the first. The actor owns the phase, flips it
with every step of the split and sends it with the request. The reader of a state zeroes the rows that start an episode;
doing this twice changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.layout import Layout
from sfactory.shared.memory import SharedArrays
from sfactory.spec import EnvSpec, TensorSpec

Array = npt.NDArray[Any]
RowsOf = slice | npt.NDArray[np.int64]  # rows of a slot: ALL_ROWS, or row indices
ALL_ROWS = slice(None)
_FALSE = b"\0"  # a False byte of a mask
NOBODY = -1  # a policy_id: no policy acts in this row


def trajectory_fields(spec: EnvSpec, layout: Layout) -> dict[str, TensorSpec]:
    """Spec [S, T+1 or T, N, ...] of each field by name; obs and actions have the prefix "obs:" or "action:"."""
    slots, steps, rows = layout.num_slots, layout.rollout, layout.rows

    def over(times: int, dtype: str, shape: tuple[int, ...] = ()) -> TensorSpec:
        return TensorSpec((slots, times, rows, *shape), dtype)

    fields = {f"obs:{key}": over(steps + 1, tensor.dtype, tensor.shape) for key, tensor in spec.obs}
    fields |= {f"action:{head.key}": over(steps, head.tensor.dtype, head.tensor.shape) for head in spec.actions}
    fields |= {name: over(steps, "float32") for name in ("log_prob", "value", "reward")}
    fields |= {name: over(steps, "bool") for name in ("terminated", "truncated", "valid")}
    fields["policy_version"] = over(steps, "int64")
    if has_policy_ids(spec, layout):
        fields["policy_id"] = over(steps, "int16")
    fields["is_first"] = over(steps + 1, "bool")
    if spec.num_agents > 1:
        fields["counts_env_step"] = over(steps, "bool")
        if layout.num_policies > 1:
            fields["counts_for_policy"] = over(steps, "bool")
    fields["rnn_states"] = over(steps // layout.recurrence + 1, "float32", (layout.state_size,))
    return fields


def has_policy_ids(spec: EnvSpec, layout: Layout) -> bool:
    """True if slots need a policy id per row: with several policies, or with agents that may be inactive."""
    return layout.num_policies > 1 or bool(spec.agents)


class Slot:
    """Views of one slot, time-major.

    obs: {key: [T+1, N, ...]} observation at each step, in the env's dtype
    actions: {key: [T, N, ...]} action taken at each step (int64 index or float32 vector)
    log_prob, value: [T, N] float32 - behaviour log-probability (summed over heads) and value estimate
    reward: [T, N] float32 - raw env reward
    terminated, truncated, valid: [T, N] bool - a step with both flags counts only as terminated
    is_first: [T+1, N] bool - obs is the first of an episode
    rnn_states: [K+1, N, S] float32 - state before each of the K = T / recurrence chunks, and after the last step
    policy_version: [T, N] int64 - number of learner updates in the weights that chose the action
    policy_id: [T, N] int16 - the policy that chooses the action, or NOBODY; None without policy ids
    counts_env_step: [T, N] bool - True for one valid row per env step, the first of a learning policy; None if each
        valid row is one env step
    counts_for_policy: [T, N] bool - True for one valid row per env step and policy; None also with a single policy
    """

    def __init__(self, arrays: SharedArrays, spec: EnvSpec, index: int) -> None:
        self.index = index
        self.obs: dict[str, Array] = {key: arrays[f"obs:{key}"][index] for key, _ in spec.obs}
        self.actions: dict[str, Array] = {head.key: arrays[f"action:{head.key}"][index] for head in spec.actions}
        self.log_prob: Array = arrays["log_prob"][index]
        self.value: Array = arrays["value"][index]
        self.reward: Array = arrays["reward"][index]
        self.terminated: Array = arrays["terminated"][index]
        self.truncated: Array = arrays["truncated"][index]
        self.valid: Array = arrays["valid"][index]
        self.is_first: Array = arrays["is_first"][index]
        self.rnn_states: Array = arrays["rnn_states"][index]
        self.policy_version: Array = arrays["policy_version"][index]
        optional = ("policy_id", "counts_env_step", "counts_for_policy")
        present: list[Array | None] = [arrays[name][index] if name in arrays else None for name in optional]
        self.policy_id, self.counts_env_step, self.counts_for_policy = present

    def policies(self) -> list[int]:
        """The policies that act in any row, in ascending order."""
        if self.policy_id is None:
            return [0]
        # Bin 0 counts NOBODY.
        return [int(policy) for policy in np.flatnonzero(np.bincount(self.policy_id.ravel() + 1)[1:])]

    def columns_of(self, policy: int) -> RowsOf:
        """The rows of ``policy``: all except those in which only other policies act. A slice if these are all rows.

        A row in which no policy ever acts belongs to all policies, so that the number of collected rows stays the same.
        """
        if self.policy_id is None:
            return ALL_ROWS
        acts = self.policy_id == policy
        own = acts.any(axis=0) | (acts | (self.policy_id == NOBODY)).all(axis=0)
        return ALL_ROWS if own.all() else np.flatnonzero(own)

    def rows_of(self, policy: int, t: int) -> RowsOf:
        """The rows in which ``policy`` acts in step ``t``; a slice if these are all rows."""
        if self.policy_id is None:
            return ALL_ROWS
        own = self.policy_id[t] == policy
        return ALL_ROWS if all_true(own) else np.flatnonzero(own)


def all_true(mask: npt.NDArray[np.bool_]) -> bool:
    """True if all of ``mask`` is true; for short masks three times as fast as ``mask.all()``."""
    return _FALSE not in mask.tobytes()


class TrajectoryBuffer:
    """All slots of a run in one shared block."""

    def __init__(self, spec: EnvSpec, layout: Layout) -> None:
        self.spec, self.layout = spec, layout
        self._arrays = SharedArrays("trajectories", trajectory_fields(spec, layout))

    def slot(self, index: int) -> Slot:
        return Slot(self._arrays, self.spec, index)

    def arrays(self, index: int) -> dict[str, Array]:
        """The fields of a slot by name, in the order of ``trajectory_fields``."""
        return {name: self._arrays[name][index] for name in trajectory_fields(self.spec, self.layout)}

    def slots(self) -> list[Slot]:
        return [self.slot(index) for index in range(self.layout.num_slots)]


class RnnStates:
    """Recurrent states, [2, actor x splits + split, N, S] float32 in shared memory, for central inference."""

    def __init__(self, layout: Layout) -> None:
        self._splits = layout.splits
        self._shared = SharedArrays("rnn-states", {"states": self.spec(layout)})

    @staticmethod
    def spec(layout: Layout) -> TensorSpec:
        return TensorSpec((2, layout.num_splits, layout.rows, layout.state_size), "float32")

    def of(self, phase: int, actor: int, split: int) -> Array:
        """[N, S]: the state of a split before the step of ``phase``."""
        state: Array = self._shared["states"][phase, actor * self._splits + split]
        return state
