"""Room: acting on one row of a slot. In: the row's observations, states. Out: the rest of the row, states.

For actors that own a copy of each policy; policy workers gather rows of many slots instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfactory.inference.acting import ActingPolicy
from sfactory.inference.rows import ObsRows
from sfactory.shared.trajectories import Slot


class SlotActing:
    """Policies on the CPU that act in slots, and record states there where a learner will need them."""

    def __init__(self, policies: Sequence[ActingPolicy], recurrence: int) -> None:
        """``recurrence``: steps between two states that are recorded."""
        self.policies = policies
        self._remembers = policies[0].state_size > 0
        self._recurrence = recurrence
        self._rows = ObsRows()

    def act(self, slot: Slot, t: int, state: Tensor, present: Sequence[int] = (0,)) -> Tensor:
        """Act on row ``t`` of ``slot``, and write what belongs there beside it.

        state: [N, S] - after row t - 1. present: the policies that act in the row. Returns the state after row t, which
        is the one before where nobody acts.
        """
        if self._remembers:
            state = self._remembered(slot, t, state)
        obs = self._rows.row(slot, t)
        for policy in present:
            state = self._act(policy, slot, t, obs, state)
        if self._remembers and t + 1 == len(slot.value):
            slot.rnn_states[-1] = state.numpy()
        return state

    def _act(self, policy: int, slot: Slot, t: int, obs: dict[str, Tensor], state: Tensor) -> Tensor:
        """The rows of one policy; returns the state with theirs replaced."""
        rows, acting = slot.rows_of(policy, t), self.policies[policy]
        if isinstance(rows, slice):
            acted = acting.act(obs, state)
            state = acted.state
        else:
            index = torch.from_numpy(rows)
            acted = acting.act({key: tensor[index] for key, tensor in obs.items()}, state[index])
            if self._remembers:
                state = state.index_copy(0, index, acted.state)
        for key, block in slot.actions.items():
            block[t, rows] = acted.actions[key].numpy()
        slot.log_prob[t, rows] = acted.log_prob.numpy()
        slot.value[t, rows] = acted.value.numpy()
        slot.policy_version[t, rows] = acting.version
        return state

    def _remembered(self, slot: Slot, t: int, state: Tensor) -> Tensor:
        """``state`` with rows that start an episode zeroed; recorded where a chunk begins."""
        first = slot.is_first[t]
        if first.any():
            state = state.masked_fill(torch.from_numpy(first).unsqueeze(-1), 0.0)
        if t % self._recurrence == 0:
            slot.rnn_states[t // self._recurrence] = state.numpy()
        return state
