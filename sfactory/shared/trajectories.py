"""Room: the memory of all trajectories. In: env spec and layout. Out: time-major views of single slots.

NOTE [Slot shape]: a slot is one rollout of one whole split: obs and is_first [T+1, N, ...], the rest
[T, N, ...]. One step of a split is therefore one contiguous block, which policy workers gather and
learners copy with single memcpys. Row life (truncation rows, invalid rows) is told in docs/architecture.md.

Room: what the policy remembers of every env, between its steps. In: states after a step. Out: those before the next.

NOTE [State phases]: every split has two states, and a step reads the one of its phase and writes the other, so that a
request may be answered twice: the second answer reads what the first one read. The phase is the actor's: it flips with
every step of the split and travels with the request. Who reads a state zeroes the rows whose observation is the first
of an episode; doing so twice changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.layout import Layout
from sfactory.shared.memory import SharedArrays, planned_bytes
from sfactory.spec import EnvSpec, TensorSpec

Array = npt.NDArray[Any]
RowsOf = slice | npt.NDArray[np.int64]  # of a slot: ALL_ROWS, or which
ALL_ROWS = slice(None)
_FALSE = b"\0"  # in the bytes of a mask
NOBODY = -1  # as a policy_id: no policy acts in this row


def trajectory_fields(spec: EnvSpec, layout: Layout) -> dict[str, TensorSpec]:
    """Name -> [S, T+1 or T, N, ...] of every field; obs and actions are prefixed "obs:" and "action:"."""
    slots, steps, rows = layout.num_slots, layout.rollout, layout.rows

    def over(times: int, tensor: TensorSpec) -> TensorSpec:
        return TensorSpec((slots, times, rows, *tensor.shape), tensor.dtype)

    fields = {f"obs:{key}": over(steps + 1, tensor) for key, tensor in spec.obs}
    fields |= {f"action:{head.key}": over(steps, head.tensor) for head in spec.actions}
    scalars = {
        "log_prob": "float32",
        "value": "float32",
        "reward": "float32",
        "terminated": "bool",
        "truncated": "bool",
        "valid": "bool",
        "policy_version": "int32",
    }
    fields |= {name: over(steps, TensorSpec((), dtype)) for name, dtype in scalars.items()}
    if has_policy_ids(spec, layout):
        fields["policy_id"] = over(steps, TensorSpec((), "int16"))
    fields["is_first"] = over(steps + 1, TensorSpec((), "bool"))
    if spec.num_agents > 1:
        fields["counts_env_step"] = over(steps, TensorSpec((), "bool"))
        if layout.num_policies > 1:
            fields["counts_for_policy"] = over(steps, TensorSpec((), "bool"))
    fields["rnn_states"] = over(steps // layout.recurrence + 1, TensorSpec((layout.state_size,), "float32"))
    return fields


def has_policy_ids(spec: EnvSpec, layout: Layout) -> bool:
    """Whether slots say who acts in each row: not where there is one policy, and one agent, which always acts."""
    return layout.num_policies > 1 or spec.num_agents > 1


class Slot:
    """Views of one slot, time-major.

    obs: {key: [T+1, N, ...]} observation at each step, in the env's dtype
    actions: {key: [T, N, ...]} action taken at each step (int64 index or float32 vector)
    log_prob, value: [T, N] float32 - behaviour log-probability (summed over heads) and value
    reward: [T, N] float32 - raw env reward
    terminated, truncated, valid: [T, N] bool - a step that did both counts as terminated alone
    is_first: [T+1, N] bool - obs is the first of an episode
    rnn_states: [K+1, N, S] float32 - memory before each of the K = T / recurrence chunks, and after the last step
    policy_version: [T, N] int32 - learner updates behind the weights that chose the action
    policy_id: [T, N] int16 - which policy chooses the action, or NOBODY; None without policy ids
    counts_env_step: [T, N] bool - of the valid rows of one env's step, true for one, the first of a policy that learns;
        None where each is one
    counts_for_policy: the same of the valid rows of one env's step that are of one policy; None with one policy, too
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
        self.policy_id = self._optional(arrays, "policy_id")
        self.counts_env_step = self._optional(arrays, "counts_env_step")
        self.counts_for_policy = self._optional(arrays, "counts_for_policy")

    def _optional(self, arrays: SharedArrays, name: str) -> Array | None:
        return arrays[name][self.index] if name in arrays else None

    def policies(self) -> list[int]:
        """The policies that act in any of its rows, in order."""
        if self.policy_id is None:
            return [0]
        # NOBODY is counted first.
        return [int(policy) for policy in np.flatnonzero(np.bincount(self.policy_id.ravel() + 1)[1:])]

    def columns_of(self, policy: int) -> RowsOf:
        """The rows that concern ``policy``: not those in which others act and it never does. A slice if these are all.

        A row in which nobody acts counts as everybody's, so that a round of collection is as long as ever.
        """
        if self.policy_id is None:
            return ALL_ROWS
        acts = self.policy_id == policy
        own = acts.any(axis=0) | (acts | (self.policy_id == NOBODY)).all(axis=0)
        return ALL_ROWS if own.all() else np.flatnonzero(own)

    def rows_of(self, policy: int, t: int) -> RowsOf:
        """The rows in which ``policy`` acts in step ``t``; a slice if these are all."""
        if self.policy_id is None:
            return ALL_ROWS
        own = self.policy_id[t] == policy
        return ALL_ROWS if all_true(own) else np.flatnonzero(own)


def all_true(mask: npt.NDArray[np.bool_]) -> bool:
    """Whether all of ``mask`` is true. For the few numbers of a row this is three times as fast as its all()."""
    return _FALSE not in mask.tobytes()


class TrajectoryBuffer:
    """All slots of a run in one shared block."""

    def __init__(self, spec: EnvSpec, layout: Layout) -> None:
        self.spec, self.layout = spec, layout
        self._arrays = SharedArrays("trajectories", trajectory_fields(spec, layout))

    @staticmethod
    def bytes_needed(spec: EnvSpec, layout: Layout) -> int:
        """Bytes that a buffer of these sizes takes."""
        return planned_bytes(trajectory_fields(spec, layout))

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self._arrays.nbytes

    def slot(self, index: int) -> Slot:
        """Views of slot ``index``."""
        return Slot(self._arrays, self.spec, index)

    def slots(self) -> list[Slot]:
        """Views of all slots, by index."""
        return [self.slot(index) for index in range(self.layout.num_slots)]


class RnnStates:
    """[2, actor x splits + split, N, S] float32 in shared memory. Used with central inference."""

    def __init__(self, layout: Layout) -> None:
        self._splits = layout.splits
        self._shared = SharedArrays("rnn-states", {"states": _states(layout)})

    @staticmethod
    def bytes_needed(layout: Layout) -> int:
        """Bytes that the states of a layout take."""
        return _states(layout).nbytes

    def of(self, phase: int, actor: int, split: int) -> npt.NDArray[Any]:
        """[N, S] of a split: before the step of ``phase``."""
        state: npt.NDArray[Any] = self._shared["states"][phase, actor * self._splits + split]
        return state


def _states(layout: Layout) -> TensorSpec:
    return TensorSpec((2, layout.num_splits, layout.rows, layout.state_size), "float32")
