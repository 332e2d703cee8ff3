"""Room: the target network of IMPACT. In: a model that learns. Out: a copy of it that follows from time to time.

Source: Luo et al. 2020, "IMPACT: Importance weighted asynchronous architectures with clipped target networks".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sfactory.model.actor_critic import ActorCritic


class TargetNetwork:
    """A copy of ``source`` that is moved towards it after every ``interval`` updates that were taken.

    Parameters become (1 - tau) old + tau new. Buffers, statistics of normalizers among them, are taken over whole: a
    mixture of statistics would be those of nothing. ``model``: the copy; nothing trains it.
    """

    def __init__(self, source: ActorCritic, interval: int, tau: float) -> None:
        self._source, self._interval, self._tau = source, interval, tau
        self.model = copy.deepcopy(source).requires_grad_(False)
        device = source.value_head.linear.weight.device
        # Counted where updates are made, see NOTE [No waiting for the device].
        self._since = torch.zeros((), dtype=torch.int64, device=device)
        self.moves = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def copy(self) -> None:
        """Become the same as the source; the next move is due ``interval`` updates from now."""
        for mine, theirs in (*self._parameters(), *self._buffers()):
            mine.copy_(theirs)
        self._since.zero_()

    @torch.no_grad()
    def after_update(self, taken: Tensor) -> None:
        """After each update of the source: move, if it is time. Without ``taken`` (0-dim bool) it was none."""
        self._since += taken
        due = taken & (self._since >= self._interval)
        self._since *= ~due
        self.moves += due
        for mine, theirs in self._parameters():
            mine.lerp_(theirs, due.to(mine.dtype) * self._tau)
        for mine, theirs in self._buffers():
            mine.copy_(torch.where(due, theirs, mine))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of it: tensors alone."""
        return {"model": self.model.state_dict(), "since": self._since, "moves": self.moves}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; raises as Module.load_state_dict if it is of another model."""
        self.model.load_state_dict(state["model"])
        self._since.copy_(state["since"])
        self.moves.copy_(state["moves"])

    def _parameters(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.model.parameters(), self._source.parameters(), strict=True)

    def _buffers(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.model.buffers(), self._source.buffers(), strict=True)
