"""Room: the memory of several splits as one batch. In: requests. Out: states before the step; states after it, kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfactory.layout import Layout
from sfactory.messages import ActRequest
from sfactory.shared.rnn_states import RnnStates
from sfactory.shared.trajectories import Slot


class StateGather:
    """States to and from RnnStates (NOTE [State phases]), recorded in slots where the learner will need them."""

    def __init__(self, states: RnnStates, slots: Sequence[Slot], layout: Layout, device: torch.device) -> None:
        self._states, self._slots, self._device = states, slots, device
        self._rows, self._recurrence, self._rollout = layout.rows, layout.recurrence, layout.rollout
        rows = layout.num_splits * layout.rows
        self._staging = torch.zeros((rows, layout.state_size), pin_memory=device.type != "cpu")
        self._view = self._staging.numpy()
        self._no_states = torch.zeros((rows, 0), device=device)
        self._remembers = layout.state_size > 0

    def before(self, requests: Sequence[ActRequest]) -> Tensor:
        """[B, S] on the device: the state before each requested row, zeros where it starts an episode."""
        end = len(requests) * self._rows
        if not self._remembers:
            return self._no_states[:end]
        for position, request in enumerate(requests):
            slot, t = self._slots[request.slot], request.t
            rows = self._view[position * self._rows : (position + 1) * self._rows]
            rows[:] = self._states.of(request.phase, request.actor, request.split)
            rows[slot.is_first[t]] = 0.0
            if t % self._recurrence == 0:
                slot.rnn_states[t // self._recurrence] = rows
        return self._staging[:end].to(self._device, non_blocking=True)

    def after(self, requests: Sequence[ActRequest], state: Tensor) -> None:
        """Keep ``state`` [B, S], the one after each requested row."""
        if not self._remembers:
            return
        after = state.cpu().numpy()
        for position, request in enumerate(requests):
            rows = after[position * self._rows : (position + 1) * self._rows]
            self._states.of(1 - request.phase, request.actor, request.split)[:] = rows
            if request.t + 1 == self._rollout:
                self._slots[request.slot].rnn_states[-1] = rows
