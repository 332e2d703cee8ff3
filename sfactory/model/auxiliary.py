"""Room: what a network can learn beside policy and value. In: what it made of a rollout. Out: one more loss.

An auxiliary loss is a module of its own, with weights that only the learner has: they are trained and saved with the
network's, and whoever acts does without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sfactory.model.distributions import Actions


class Trace(NamedTuple):
    """T steps of R rows, as the present weights see them.

    embeddings: [T, R, E] float of any format - the encoder's features of each observation alone; with gradients.
    memory: [T, R, H] float32 - the core's output, which knows all observations up to this one; with gradients.
    actions: {key: [T, R] int64 or [T, R, size] float32} - what was done at the step, unclipped.
    is_first: [T, R] bool - the observation is the first of an episode.
    valid: [T, R] bool - the step may teach. What stands in other cells is arbitrary, and must change nothing.
    """

    embeddings: Tensor
    memory: Tensor
    actions: Actions
    is_first: Tensor
    valid: Tensor


class Auxiliary(nn.Module, ABC):
    """A loss over what encoder and memory made of a rollout. A second one is a second subclass of this."""

    @abstractmethod
    def loss(self, trace: Trace, generator: torch.Generator) -> Tensor:
        """0-dim, with gradients for embeddings, memory and the module's own weights: a mean, so that its size does
        not depend on how many steps there are; 0 where nothing can be learned.

        ``generator``: on the device of the trace. All that is random is drawn from it, and how much is drawn follows
        from shapes alone. Nothing here may wait for the device, see NOTE [No waiting for the device].
        """
