"""Room: one dataset as minibatches. In: a batch, its targets, a generator. Out: minibatches, epoch after epoch.

Rows (whole rollouts) stay whole where steps belong together: with V-trace, whose targets are made per minibatch
from steps in a row, and with memory. Otherwise shuffling draws single steps.

Room: one dataset while it is learned from. In: a batch, its targets. Out: what each pass needs of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from sfactory.learner.batch import Batch
from sfactory.learner.targets import Targets
from sfactory.learner.train_stats import Learned, Means


class Minibatch(NamedTuple):
    """A part of a dataset. targets: None with V-trace."""

    batch: Batch
    targets: Targets | None

    def cut(self, steps: int) -> tuple[Minibatch, list[slice]]:
        """The minibatch, and the columns of its parts of ``steps`` steps each; 0: one part.

        Parts are whole rows, unless that many steps are no whole rows: the minibatch then becomes one of single steps,
        which is possible with targets and without memory alone.
        """
        length, rows = self.batch.valid.shape
        if not steps or steps >= length * rows:
            return self, [slice(0, rows)]
        minibatch = self
        if steps % length:
            assert self.targets is not None, "V-trace needs whole rows; rules.py refuses such a microbatch_size"
            minibatch, length, rows = Minibatch(self.batch.steps(), self.targets.steps()), 1, length * rows
        width = steps // length
        return minibatch, [slice(start, min(start + width, rows)) for start in range(0, rows, width)]


class Minibatches:
    """The parts of one dataset: ``count`` of equal size, in order or drawn anew for each epoch from ``generator``."""

    def __init__(self, batch: Batch, targets: Targets | None, count: int, generator: torch.Generator | None) -> None:
        """``generator``: on the CPU; None keeps the order."""
        by_steps = generator is not None and targets is not None and batch.rnn_states.shape[2] == 0
        self._batch = batch.steps() if by_steps else batch
        self._targets = targets.steps() if by_steps and targets is not None else targets
        self._count, self._generator = count, generator

    def age(self, train_step: int, max_policy_lag: int, max_replay_lag: int) -> None:
        """Let the next epochs see the batch as it is at ``train_step``, see Batch.aged."""
        self._batch = self._batch.aged(train_step, max_policy_lag, max_replay_lag)

    def epoch(self) -> Iterator[Minibatch]:
        """Every row once."""
        rows = self._batch.rows
        width = rows // self._count
        # Moved once: a copy from memory that is not pinned waits for all that the device has to do.
        device = self._batch.valid.device
        order = None if self._generator is None else torch.randperm(rows, generator=self._generator).to(device)
        for number in range(self._count):
            part = slice(number * width, (number + 1) * width)
            which = part if order is None else order[part]
            targets = None if self._targets is None else self._targets.columns(which)
            yield Minibatch(self._batch.columns(which), targets)


@dataclass
class Dataset:
    """A dataset between ``Trainer.open`` and ``Trainer.close``. Several may be open at once.

    batch: as it was opened; passes see it as old as it is by then. targets: of GAE, None with V-trace.
    observed: its observations are in the statistics that normalize them already.
    minibatches: None before the first pass, which decides by its train step how they are drawn.
    passes: begun so far. learned: steps learned from, each counted once however many passes there are.
    last_loss: mean policy loss of the last pass; NaN where there was none. means: of what its updates told.
    """

    batch: Batch
    targets: Targets | None
    observed: bool
    minibatches: Minibatches | None = None
    passes: int = 0
    learned: Learned = field(default_factory=Learned)
    last_loss: float = math.nan
    means: Means = field(default_factory=Means)
