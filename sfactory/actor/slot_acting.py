"""Room: acting on one row of a slot. In: the row's observations, a state. Out: the rest of the row, a state.

For actors that own a copy of the policy; policy workers gather rows of many slots instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfactory.inference.acting import ActingPolicy
from sfactory.inference.rows import ObsRows
from sfactory.shared.trajectories import Slot


class SlotActing:
    """A policy on the CPU that acts in slots, and records states there where the learner will need them."""

    def __init__(self, policy: ActingPolicy, recurrence: int) -> None:
        """``recurrence``: steps between two states that are recorded."""
        self.policy = policy
        self._recurrence = recurrence
        self._rows = ObsRows()

    def act(self, slot: Slot, t: int, state: Tensor) -> Tensor:
        """Act on row ``t`` of ``slot``, and write what belongs there beside it.

        state: [N, S] - after row t - 1. Returns the one after row t.
        """
        policy = self.policy
        if policy.state_size:
            state = self._remembered(slot, t, state)
        acted = policy.act(self._rows.row(slot, t), state)
        for key, block in slot.actions.items():
            block[t] = acted.actions[key].numpy()
        slot.log_prob[t] = acted.log_prob.numpy()
        slot.value[t] = acted.value.numpy()
        slot.policy_version[t] = policy.version
        if policy.state_size and t + 1 == len(slot.value):
            slot.rnn_states[-1] = acted.state.numpy()
        return acted.state

    def _remembered(self, slot: Slot, t: int, state: Tensor) -> Tensor:
        """``state`` with rows that start an episode zeroed; recorded where a chunk begins."""
        first = slot.is_first[t]
        if first.any():
            state = state.masked_fill(torch.from_numpy(first).unsqueeze(-1), 0.0)
        if t % self._recurrence == 0:
            slot.rnn_states[t // self._recurrence] = state.numpy()
        return state
