"""Cuts a dataset into minibatches, epoch after epoch.

Rows (whole rollouts) stay whole where steps belong together: with V-trace, which computes targets per minibatch from
consecutive steps, and with an RNN. Otherwise shuffling draws single steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.algo.returns import Targets
from sfactory.learner.batch import Batch
from sfactory.learner.train_stats import Learned, Means


class Minibatch(NamedTuple):
    """A part of a dataset. targets: None with V-trace."""

    batch: Batch
    targets: Targets | None

    def tensors(self) -> list[Tensor]:
        """All tensors, in the same order for all minibatches with the same fields."""
        return [*self.batch.tensors(), *(self.targets or ())]

    def map(self, change: Callable[[Tensor], Tensor]) -> Minibatch:
        """The minibatch with every tensor changed."""
        return Minibatch(self.batch.map(change), None if self.targets is None else Targets(*map(change, self.targets)))

    def cut(self, steps: int) -> tuple[Minibatch, list[slice]]:
        """The minibatch, and the columns of its parts of ``steps`` steps each; 0: one part.

        Parts are whole rows. If ``steps`` is not a multiple of a row, the minibatch becomes one of single steps, which
        needs targets and no RNN.
        """
        length, rows = self.batch.valid.shape
        if not steps or steps >= length * rows:
            return self, [slice(0, rows)]
        if steps % length:
            assert self.targets is not None, "V-trace needs whole rows; rules.py refuses such a microbatch_size"
            return Minibatch(self.batch.steps(), self.targets.steps()).cut(steps)
        width = steps // length
        return self, [slice(start, min(start + width, rows)) for start in range(0, rows, width)]


def epoch_of(
    batch: Batch, targets: Targets | None, count: int, generator: torch.Generator | None
) -> Iterator[Minibatch]:
    """Every row of a dataset once, in ``count`` minibatches of equal size; without a ``generator`` in order."""
    if generator is not None and targets is not None and batch.rnn_states.shape[2] == 0:
        batch, targets = batch.steps(), targets.steps()
    width = batch.rows // count
    # Moved once: a copy from unpinned memory waits for all work of the device.
    order = None if generator is None else torch.randperm(batch.rows, generator=generator).to(batch.valid.device)
    for number in range(count):
        part = slice(number * width, (number + 1) * width)
        which = part if order is None else order[part]
        yield Minibatch(batch.columns(which), None if targets is None else targets.columns(which))


@dataclass
class Dataset:
    """A dataset between ``Trainer.open`` and ``Trainer.close``. Several may be open at once.

    batch: as it was opened; each pass masks the steps that are too old by then. targets: of GAE, None with V-trace.
    observed: the normalizer's statistics contain its observations.
    generator: shuffles its passes; None before the first pass, and without shuffling. passes: begun so far.
    learned: steps, each counted once. last_loss: mean policy loss of the last pass; NaN without one.
    means: of the statistics of its updates.
    """

    batch: Batch
    targets: Targets | None
    observed: bool
    generator: torch.Generator | None = None
    passes: int = 0
    learned: Learned = field(default_factory=Learned)
    last_loss: float = math.nan
    means: Means = field(default_factory=Means)
