"""Ranks as threads of one process, which find out where one of them takes another path than the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TypeVar

import torch
from torch import Tensor

from sfactory.errors import RankLost
from sfactory.ranks.ranks import SeveralRanks, Sum

T = TypeVar("T")
_WAIT_S = 30.0
LOST = "rank 1 gives no sign of life"


class Parted(AssertionError):
    """Ranks add up different things, or one has ended while another waits for it: processes would wait for ever."""


class _Meeting:
    """Where threads bring their tensors. ended: a thread has."""

    def __init__(self, world: int) -> None:
        self.world, self.ended = world, False
        self.condition = threading.Condition()
        self._brought: dict[int, tuple[str, Tensor]] = {}
        self._round, self._total = 0, torch.zeros(())
        self.words: dict[int, list[str]] = {rank: [] for rank in range(world)}
        self.content = b""

    def words_of_all(self, rank: int, word: str) -> list[str]:
        """What all ranks say at their next meeting."""
        with self.condition:
            self.words[rank].append(word)
            number = len(self.words[rank])
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.ended or self._have_said(number), _WAIT_S)
            if not self._have_said(number):
                raise Parted(f"rank {rank} waits at meeting {number}, and others have ended")
            return [self.words[each][number - 1] for each in range(self.world)]

    def _have_said(self, number: int) -> bool:
        return all(len(words) >= number for words in self.words.values())

    def total(self, rank: int, what: str, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all ranks, in the order of ranks."""
        with self.condition:
            present = self._round
            self._brought[rank] = (what, tensor.detach())
            if len(self._brought) == self.world:
                brought = [self._brought.pop(each) for each in range(self.world)]
                kinds = {(name, other.shape, other.dtype) for name, other in brought}
                if len(kinds) > 1:
                    raise Parted(f"ranks add up different things: {kinds}")
                self._total = torch.stack([other for _, other in brought]).sum(0)
                self._round += 1
                self.condition.notify_all()
            self.condition.wait_for(lambda: self._round > present or self.ended, _WAIT_S)
            if self._round == present:
                raise Parted(f"rank {rank} waits for {what}, and others have ended")
            return self._total.clone()


class ThreadRanks(SeveralRanks):
    """A rank that is a thread. Sums named in ``left_out`` are its own: a defect to be found."""

    def __init__(self, rank: int, meeting: _Meeting, left_out: Collection[str] = ()) -> None:
        super().__init__(rank, meeting.world)
        self._meeting, self._left_out = meeting, left_out

    def sum_of(self, what: str) -> Sum | None:
        """See Ranks."""
        return None if what in self._left_out else super().sum_of(what)

    def meet(self, word: str, give_up: Callable[[], bool]) -> list[str]:
        """See Ranks."""
        return self._meeting.words_of_all(self.rank, word)

    def broadcast(self, content: bytes) -> bytes:
        """See Ranks."""
        if self.rank == 0:
            self._meeting.content = content
        self.meet("", lambda: False)
        return self._meeting.content

    def _sum(self, what: str, tensor: Tensor) -> Tensor:
        return self._meeting.total(self.rank, what, tensor)


def as_threads(world: int, work: Callable[[ThreadRanks], T], left_out: Collection[str] = ()) -> list[T]:
    """What ``work`` returns on each of ``world`` ranks; raises what one of them raises, Parted last."""
    meeting = _Meeting(world)
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, meeting, left_out))
        except BaseException as failure:
            failures.append(failure)
        with meeting.condition:
            meeting.ended = True
            meeting.condition.notify_all()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _WAIT_S)
    for failure in sorted(failures, key=lambda failure: isinstance(failure, Parted)):
        raise failure
    return [results[rank] for rank in range(world)]


class LateSums(SeveralRanks):
    """Two ranks on GPUs, as far as rank 0 sees it. Sum number ``lost_at`` is cut off: it gives other numbers."""

    sums_are_late = True

    def __init__(self, lost_at: int = 10**9) -> None:
        super().__init__(0, 2)
        self.count, self.lost_at = 0, lost_at

    def meet(self, word: str, give_up: Callable[[], bool]) -> list[str]:
        """See Ranks."""
        return [word, word]

    def broadcast(self, content: bytes) -> bytes:
        """See Ranks."""
        return content

    def confirm(self) -> None:
        """See Ranks."""
        if self.count > self.lost_at:
            raise RankLost(LOST)

    settle = confirm

    def _sum(self, what: str, tensor: Tensor) -> Tensor:
        self.count += 1
        return torch.full_like(tensor, 7.0) if self.count > self.lost_at else 2 * tensor
