"""Cuts a dataset into minibatches, epoch after epoch.

Rows (whole rollouts) stay whole where steps belong together: with V-trace, which computes targets per minibatch from
consecutive steps, and with an RNN. Otherwise shuffling draws single steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from sfactory.algo.returns import Targets
from sfactory.learner.batch import Batch
from sfactory.learner.train_stats import Learned, Means


class Minibatch(NamedTuple):
    """A part of a dataset. targets: None with V-trace."""

    batch: Batch
    targets: Targets | None

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


class Minibatches:
    """The parts of one dataset: ``count`` of equal size, in order or shuffled for each epoch by ``generator``.

    ``batch``: the dataset; a later epoch may have a batch with other masks.
    """

    def __init__(self, batch: Batch, targets: Targets | None, count: int, generator: torch.Generator | None) -> None:
        """``generator``: on the CPU; None keeps the order."""
        by_steps = generator is not None and targets is not None and batch.rnn_states.shape[2] == 0
        self.batch = batch.steps() if by_steps else batch
        self._targets = targets.steps() if by_steps and targets is not None else targets
        self._count, self._generator = count, generator

    def epoch(self) -> Iterator[Minibatch]:
        """Every row once."""
        rows = self.batch.rows
        width = rows // self._count
        # Moved once: a copy from unpinned memory waits for all work of the device.
        device = self.batch.valid.device
        order = None if self._generator is None else torch.randperm(rows, generator=self._generator).to(device)
        for number in range(self._count):
            part = slice(number * width, (number + 1) * width)
            which = part if order is None else order[part]
            targets = None if self._targets is None else self._targets.columns(which)
            yield Minibatch(self.batch.columns(which), targets)


@dataclass
class Dataset:
    """A dataset between ``Trainer.open`` and ``Trainer.close``. Several may be open at once.

    batch: as it was opened; each pass masks the steps that are too old by then. targets: of GAE, None with V-trace.
    observed: the normalizer's statistics contain its observations.
    minibatches: None before the first pass. passes: begun so far. learned: steps, each counted once.
    last_loss: mean policy loss of the last pass; NaN without one. means: of the statistics of its updates.
    """

    batch: Batch
    targets: Targets | None
    observed: bool
    minibatches: Minibatches | None = None
    passes: int = 0
    learned: Learned = field(default_factory=Learned)
    last_loss: float = math.nan
    means: Means = field(default_factory=Means)
