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

from sfactory.learner.batch import Batch
from sfactory.learner.targets import Targets
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
            assert self.targets is not None, "V-trace needs whole rows; training_rules.py refuses others"
            return Minibatch(self.batch.steps(), self.targets.steps()).cut(steps)
        width = steps // length
        return self, [slice(start, min(start + width, rows)) for start in range(0, rows, width)]


class Selection(NamedTuple):
    """``width`` rows of ``whole`` that make up a minibatch. which: a slice, or [width] int64 on the device."""

    whole: Minibatch
    which: slice | Tensor
    width: int

    def minibatch(self) -> Minibatch:
        """The minibatch, as views of slices and copies of other rows."""
        batch, targets = self.whole
        return Minibatch(batch.columns(self.which), None if targets is None else targets.columns(self.which))

    def memory(self) -> Minibatch:
        """Memory for such a minibatch."""
        return self.whole.map(lambda tensor: tensor.new_empty(self._shape_of(tensor)))

    def shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Shape and dtype of the minibatch's tensors, in their order."""
        return tuple((self._shape_of(tensor), tensor.dtype) for tensor in self.whole.tensors())

    def write_to(self, memory: Minibatch) -> None:
        """Copy the rows to where they are needed, without a copy on the way."""
        pairs = [pair for pair in zip(memory.tensors(), self.whole.tensors(), strict=True) if pair[0].numel()]
        if isinstance(self.which, Tensor):
            for to, of in pairs:
                torch.index_select(of, 1, self.which, out=to)
            return
        for dtype in dict.fromkeys(to.dtype for to, _ in pairs):  # a GPU copies those of one dtype by one kernel
            alike = [(to, of[:, self.which]) for to, of in pairs if to.dtype is dtype]
            torch._foreach_copy_([to for to, _ in alike], [of for _, of in alike])

    def _shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        return (tensor.shape[0], self.width, *tensor.shape[2:])


def epoch_of(whole: Minibatch, count: int, generator: torch.Generator | None) -> Iterator[Selection]:
    """Every row of a dataset once, in ``count`` minibatches of equal size; without a ``generator`` in order."""
    batch, targets = whole
    if generator is not None and targets is not None and batch.rnn_states.shape[2] == 0:
        whole = Minibatch(batch.steps(), targets.steps())
    rows, order, device = whole.batch.rows, None, batch.valid.device
    width = rows // count
    if generator is not None:
        # A copy from memory that is not pinned would wait for all work of the device.
        order = torch.randperm(rows, generator=generator, pin_memory=device.type == "cuda")
        order = order.to(device, non_blocking=True)
    for number in range(count):
        part = slice(number * width, (number + 1) * width)
        yield Selection(whole, part if order is None else order[part], width)


@dataclass
class Dataset:
    """A dataset between ``Trainer.open`` and ``Trainer.close``. Several may be open at once.

    batch: as it was opened. targets: of GAE, None with V-trace. observed: the normalizer's statistics contain its
    observations.
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
