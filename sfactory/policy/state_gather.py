"""Room: the memory of several splits as one batch. In: places. Out: states before the step; states after it, kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfactory.layout import Layout
from sfactory.policy.place import Place
from sfactory.shared.rnn_states import RnnStates


class StateGather:
    """States to and from RnnStates (NOTE [State phases]), recorded in slots where the learner will need them."""

    def __init__(self, states: RnnStates, layout: Layout, device: torch.device) -> None:
        self._states, self._device = states, device
        self._recurrence, self._rollout = layout.recurrence, layout.rollout
        rows = layout.num_splits * layout.rows
        self._staging = torch.zeros((rows, layout.state_size), pin_memory=device.type != "cpu")
        self._view = self._staging.numpy()
        self._no_states = torch.zeros((rows, 0), device=device)
        self._remembers = layout.state_size > 0

    def before(self, places: Sequence[Place]) -> Tensor:
        """[B, S] on the device: the state before each row, zeros where it starts an episode."""
        if not self._remembers:
            return self._no_states[: sum(place.width for place in places)]
        end = 0
        for request, slot, rows, width in places:
            start, end, t = end, end + width, request.t
            states = self._view[start:end]
            states[:] = self._states.of(request.phase, request.actor, request.split)[rows]
            states[slot.is_first[t, rows]] = 0.0
            if t % self._recurrence == 0:
                slot.rnn_states[t // self._recurrence, rows] = states
        return self._staging[:end].to(self._device, non_blocking=True)

    def after(self, places: Sequence[Place], state: Tensor) -> None:
        """Keep ``state`` [B, S] on the host, the one after each row."""
        if not self._remembers:
            return
        after, end = state.numpy(), 0
        for request, slot, rows, width in places:
            start, end = end, end + width
            self._states.of(1 - request.phase, request.actor, request.split)[rows] = after[start:end]
            if request.t + 1 == self._rollout:
                slot.rnn_states[-1, rows] = after[start:end]
