"""Averages the weights of ranks that have updated them apart.

NOTE [Local updates]: with ``--sync_every`` above 1 a learner trains as one alone does, on weights of its own: nothing
waits for another rank between two meetings (see Agreement). At a meeting all take over the mean of their weights and of
the statistics beside them, the sum of their steps, and the newest version. Limits, schedules and checkpoints go by
these alone. So all ranks decide by the same numbers, and what is saved is a mean.

Where collection waits for the learner all ranks wait for the mean, and collect the next dataset with it. Otherwise none
waits: each goes on learning while weights are exchanged in another thread, takes over the mean when it has come, and
adds to it what it has learned meanwhile. So a slow network makes means rarer and later, and no rank slower. To
statistics nothing is added: a variance that has since fallen by more than the mean would be below 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.ranks.ranks import Ranks


class Averaging:
    """The weights of all ranks after their last averaging, and an outer momentum.

    train_step: that of these weights, set by the caller. ``give``, ``exchange`` and ``join`` follow one another.

    d = mean of (weights - a);  m <- f m + d;  a <- a + d + f m;  weights <- a.
    Source: Douillard et al. 2023, "DiLoCo: Distributed low-communication training of language models", algorithm 1 with
    an outer rate of 1, so that the mean is what f = 0 gives. Statistics have none: f is 0 for them.
    """

    def __init__(
        self, model: ActorCritic, flat: FlatState, beside: Sequence[FlatState], momentum: float, ranks: Ranks
    ) -> None:
        """flat: of the model. beside: of weights that are trained with it. momentum: f of learned weights."""
        names = {name for name, _ in model.named_parameters()}
        of_values = {name for name in names if name.startswith("value_head.")}
        # A head of values that is rescaled as returns are normalized (see ValueHead.observe) would be so once more.
        rescaled = set() if model.value_head.returns is None else of_values
        beside_floats = [floats for each in beside for floats in each.floats]
        self._factors = flat.filled(names - rescaled, momentum)
        self._factors += [torch.full_like(floats, momentum) for floats in beside_floats]
        # What ``go_on`` adds to; the head keeps its change in the unit of rewards, whatever returns are normalized by.
        self._learned = flat.filled(names - of_values, 1.0) + [torch.ones_like(floats) for floats in beside_floats]
        self._head = model.value_head
        self._weights = [*flat.floats, *beside_floats]
        self._agreed = [floats.clone() for floats in self._weights]  # a
        self._momenta = [torch.zeros_like(floats) for floats in self._weights]
        self._normalizers = [] if model.obs_normalizer is None else [*model.obs_normalizer.by_key.values()]
        self._given: list[Tensor] = []
        self._since: list[Tensor] = []
        self._given_values: list[Tensor] = []
        self._values_since: list[Tensor] = []
        self._changes = torch.zeros(0)
        self._ranks = ranks
        self.train_step = 0

    def begin(self) -> None:
        """The present weights are those of all ranks."""
        for agreed, mine in zip(self._agreed, self._weights, strict=True):
            agreed.copy_(mine)

    def give(self) -> None:
        """Keep the present weights, for the next mean."""
        self._given = [mine.clone() for mine in self._weights]
        self._given_values = self._head.denormalizing()
        changes = [mine - agreed for mine, agreed in zip(self._weights, self._agreed, strict=True)]
        # One tensor, whose sum is one message; float32 is exact enough for differences.
        self._changes = torch.cat([change.float() for change in changes]).cpu()

    def exchange(self) -> None:
        """Compute the mean over all ranks, which call it together, in any thread. Raises RankLost."""
        if (add_up := self._ranks.sum_of("weights")) is not None:
            self._changes = add_up(self._changes) / self._ranks.world

    def join(self) -> None:
        """Change the weights to the mean. ``go_on`` adds what was learned since ``give``."""
        means = torch.split(self._changes.to(self._weights[0].device), [len(mine) for mine in self._weights])
        weights = zip(self._weights, self._given, self._learned, strict=True)
        self._since = [(mine - given) * learned for mine, given, learned in weights]
        values = zip(self._head.denormalizing(), self._given_values, strict=True)
        self._values_since = [mine - given for mine, given in values]
        for mean, factor, momentum, agreed in zip(means, self._factors, self._momenta, self._agreed, strict=True):
            momentum.mul_(factor).add_(mean)
            agreed.add_(mean).addcmul_(factor, momentum)
        self.undo()

    def go_on(self) -> None:
        """See ``join``."""
        for mine, since in zip(self._weights, self._since, strict=True):
            mine.add_(since)
        self._head.add_denormalizing(*self._values_since)

    def undo(self) -> None:
        """Go back to the weights after the last averaging."""
        for mine, agreed in zip(self._weights, self._agreed, strict=True):
            mine.copy_(agreed)
        # A mean of scales is not that of the mean variance. Of returns scale and shift stay means, as the layer that
        # they belong to is the mean (see ValueHead.observe).
        for normalizer in self._normalizers:
            normalizer.derive()

    def checksum(self) -> int:
        """Of the weights after the last averaging: the same on all ranks."""
        total = 0
        for agreed in self._agreed:
            total = zlib.crc32(agreed.cpu().view(torch.uint8).numpy().data, total)
        return total

    def state(self) -> list[Tensor]:
        """For a checkpoint, which also has the weights: the momentum."""
        return self._momenta

    def load(self, state: Sequence[Tensor]) -> None:
        """Continue with a saved momentum; raises ValueError or RuntimeError if it is of other weights."""
        for momentum, saved in zip(self._momenta, state, strict=True):
            momentum.copy_(saved)
