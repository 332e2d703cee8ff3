"""What several learners that train one policy together add up, each a rank with actors of its own.

NOTE [Ranks]: every rank takes the steps that one learner would take with the data of all. So whatever decides about
weights is computed from sums over the ranks: the mean and spread of advantages, gradients and their number of steps,
statistics of normalizers, divergences, the results of updates. All ranks compute the same numbers from the same sums,
and so make the same decisions, in the same order; a decision made from numbers of one rank would leave the others
waiting in a sum that this one never joins. Each minibatch has its size from the flags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from torch import Tensor

# Adds up tensors of all ranks; it may write to its argument. None where there is one rank: there is nothing to add.
Sum = Callable[[Tensor], Tensor]


class Ranks:
    """One rank alone. rank: its number, of ``world``."""

    rank = 0
    world = 1
    sums_are_late = False  # they take place on a GPU, and no host waits for them: see NOTE [Sums on a GPU]

    def sum_of(self, what: str) -> Sum | None:
        """The sum over all ranks, which call it in the same order; ``what``: names it in errors. None if alone."""
        return None

    def meet(self, word: str, give_up: Callable[[], bool]) -> list[str]:
        """Wait for all ranks between two datasets; returns the ``word`` of each, in order. Raises RankLost.

        give_up: asked at least every BLOCK_S; raises RankLost, which names the ranks that have not come.
        """
        return [word]

    def call(self) -> None:
        """Have the others come to the next meeting early, as this rank wants to end."""

    @property
    def is_called(self) -> bool:
        """Whether a rank has called, as seen a second ago or so."""
        return False

    def confirm(self) -> None:
        """Raise RankLost if a sum was cut off. Call it once the device has computed what is to be used."""

    def settle(self) -> None:
        """Wait until no sum is under way. Raises RankLost."""

    def broadcast(self, content: bytes) -> bytes:
        """The ``content`` of rank 0. Raises RankLost."""
        return content

    def tell_failure(self, cause: str) -> None:
        """Have the other ranks say why this one has ended."""


ALONE = Ranks()


class SeveralRanks(Ranks, ABC):
    """A rank among others. See NOTE [Ranks]."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def sum_of(self, what: str) -> Sum | None:
        """See Ranks."""
        return partial(self._sum, what)

    @abstractmethod
    def _sum(self, what: str, tensor: Tensor) -> Tensor:
        """The sum of ``tensor`` over all ranks: the same bits on each of them."""
