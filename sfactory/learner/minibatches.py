"""Room: one dataset as minibatches. In: a batch, its targets, a generator. Out: minibatches, epoch after epoch.

Rows (whole rollouts) stay whole where steps belong together: with V-trace, whose targets are made per minibatch
from steps in a row, and with memory. Otherwise shuffling draws single steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from sfactory.learner.batch import Batch
from sfactory.learner.objective import Targets


class Minibatch(NamedTuple):
    """A part of a dataset. targets: None with V-trace."""

    batch: Batch
    targets: Targets | None


class Minibatches:
    """The parts of one dataset: ``count`` of equal size, in order or drawn anew for each epoch from ``generator``."""

    def __init__(self, batch: Batch, targets: Targets | None, count: int, generator: torch.Generator | None) -> None:
        """``generator``: on the CPU; None keeps the order."""
        by_steps = generator is not None and targets is not None and batch.rnn_states.shape[2] == 0
        self._batch = batch.steps() if by_steps else batch
        self._targets = targets.steps() if by_steps and targets is not None else targets
        self._count, self._generator = count, generator

    def epoch(self) -> Iterator[Minibatch]:
        """Every row once."""
        rows = self._batch.rows
        width = rows // self._count
        order = None if self._generator is None else torch.randperm(rows, generator=self._generator)
        for number in range(self._count):
            part = slice(number * width, (number + 1) * width)
            which = part if order is None else order[part].to(self._batch.valid.device)
            targets = None if self._targets is None else self._targets.columns(which)
            yield Minibatch(self._batch.columns(which), targets)
