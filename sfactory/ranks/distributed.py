"""Ranks as processes: sums by torch.distributed, and a store at which ranks meet and show that they are alive.

The store is torchrun's (its agent on the first machine keeps it), so it outlives every rank. Ranks wait for one another
at the store, where a wait can be ended and says who is missing; sums over ranks begin only once all have come, and so
fail only if a rank dies, hangs or is cut off within a dataset. Sums on GPUs: see NOTE [Sums on a GPU].
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from sfactory.clock import BLOCK_S, Deadline, looks, now
from sfactory.errors import RankLost, first_line
from sfactory.ranks.place import START_S, Place
from sfactory.ranks.ranks import SeveralRanks
from sfactory.ranks.store import CALL, AnsweringStore, enter
from sfactory.ranks.sums import SILENT_S, SumWatch
from sfactory.system.background import in_background
from sfactory.system.gpu import use_device


class DistributedRanks(SeveralRanks):
    """A rank that is a process, started by torchrun. Sums are over NCCL on GPUs, over gloo otherwise."""

    def __init__(self, place: Place, device: torch.device, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Wait until all ranks are here; raises RankLost if one does not come, or ``give_up()`` is true."""
        super().__init__(place.rank, place.world)
        self._timeout_s = timeout_s
        self._meetings = 0
        self._signs: dict[int, tuple[bytes, float]] = {}  # the last sign of each rank, and when it was new
        if place.local_world == place.world:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of a machine may lead elsewhere, or nowhere
        # Otherwise torch watches sums, too, and ends this process, which has to save, where one hangs.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        self.sums_are_late = device.type == "cuda"
        self._watch = SumWatch(timeout_s, self._blame, _abort, give_up)
        try:
            start = timedelta(seconds=START_S)
            store, _, _ = next(iter(rendezvous("env://", place.rank, place.world, timeout=start)))
            about = f"{device.type} rank {self.rank} (process {os.getpid()} on {socket.gethostname()})"
            self._answering = AnsweringStore(store, timeout_s)
            self._answering.begin_to_beat(f"beat/{self.rank}")
            self._store, said = self._answering.ask(lambda whole: enter(whole, place.rank, place.world, about, give_up))
            self._answering.store = self._store
        except RuntimeError as error:
            raise RankLost(f"rank {self.rank} of {self.world} has not met all others: {_first_line(error)}") from error
        devices, _, self._who = zip(*(each.partition(" ") for each in said), strict=True)
        if len(set(devices)) > 1:
            raise RankLost(
                f"ranks learn on different devices, which cannot add up: {', '.join(devices)}; give --device"
            )
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        with self._naming("to connect"):
            # The time-out does not bound what it asks a store that is cut off.
            timeout = timedelta(seconds=timeout_s)
            connect = partial(dist.init_process_group, backend, rank=self.rank, world_size=self.world, timeout=timeout)
            self._answering.ask(lambda store: connect(store=store))
            if self.sums_are_late:
                self._connect_gpus(device, give_up)

    def meet(self, word: str, give_up: Callable[[], bool]) -> list[str]:
        """See Ranks."""
        number, self._meetings = self._meetings, self._meetings + 1
        with self._naming("to meet"):
            return self._answering.ask(lambda store: self._words(number, word, give_up))

    def call(self) -> None:
        """See Ranks."""
        with contextlib.suppress(RuntimeError):  # a store that is lost fails the meeting, too
            self._answering.ask(lambda store: store.set(CALL, ""))

    @property
    def is_called(self) -> bool:
        """See Ranks."""
        return self._answering.is_called

    def confirm(self) -> None:
        """See Ranks."""
        self._watch.confirm()

    def settle(self) -> None:
        """See Ranks."""
        self._watch.settle()

    def broadcast(self, content: bytes) -> bytes:
        """See Ranks."""
        with self._naming("to take over the state of rank 0"):
            size = torch.tensor([len(content)])
            dist.broadcast(size, src=0)
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8) if self.rank == 0 else None
            data = torch.empty(int(size), dtype=torch.uint8) if data is None else data
            dist.broadcast(data, src=0)
        return data.numpy().tobytes()

    def tell_failure(self, cause: str) -> None:
        """See Ranks."""
        with contextlib.suppress(RuntimeError):
            self._answering.ask(lambda store: store.set(f"failed/{self.rank}", cause))

    def _words(self, number: int, word: str, give_up: Callable[[], bool]) -> list[str]:
        """The words of all ranks at a meeting, once they have come."""
        keys, began = [f"meeting/{number}/{rank}" for rank in range(self.world)], now()
        self._store.set(keys[self.rank], word)
        while not self._have_come(keys):
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            self._require_life(missing)
            if missing and give_up():
                waited = f"rank {self.rank} was to stop, and waited {now() - began:.0f} s for {self._names(missing)}"
                raise RankLost(f"{waited}, which did not come: it has ended, hangs or is cut off")
        words = [content.decode() for content in self._store.multi_get(keys)]
        if number > 1:  # all have read the words of the meeting before the last
            self._store.delete_key(f"meeting/{number - 2}/{self.rank}")
        return words

    def _sum(self, what: str, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        with self._naming(f"to add up {what}"):
            self._watch.confirm()
            dist.all_reduce(tensor)
            if self.sums_are_late:
                self._watch.follow()
        return tensor

    def _connect_gpus(self, device: torch.device, give_up: Callable[[], bool]) -> None:
        """NCCL connects with the first sum, and bounds no part of that. Raises RuntimeError."""

        def add_up() -> None:
            use_device(device)
            dist.all_reduce(torch.zeros(1, device=device))
            torch.cuda.synchronize(device)

        first, deadline = in_background("connect", add_up), Deadline(self._timeout_s)
        while not wait([first], BLOCK_S).done:
            if deadline.passed or give_up():
                raise RuntimeError(f"NCCL has not connected within {self._timeout_s - deadline.left:.0f} s")
        first.result()
        self._watch.begin(device)

    def _have_come(self, keys: list[str]) -> bool:
        """Whether all ranks have, within BLOCK_S. The store's own wait would log each of its timeouts."""
        block = Deadline(BLOCK_S)
        return any(self._store.check(keys) for _ in looks(lambda: block.passed, 0.02))

    def _silence(self, rank: int) -> float:
        """For how many seconds this rank has seen no new sign of life of another, as far as it has looked."""
        key, moment = f"beat/{rank}", now()
        sign = self._store.get(key) if self._store.check([key]) else b""
        if rank not in self._signs or self._signs[rank][0] != sign:
            self._signs[rank] = sign, moment
        return moment - self._signs[rank][1]

    def _require_life(self, ranks: Iterable[int]) -> None:
        """Raise RankLost if one of ``ranks`` has failed, or been silent for too long."""
        if failures := self._failures():
            raise RankLost(failures)
        if lost := [rank for rank in ranks if self._silence(rank) > self._timeout_s]:
            raise RankLost(
                f"{self._names(lost)} gave no sign of life for {self._timeout_s:g} s (--rank_timeout_sec): dead, "
                "stopped or cut off"
            )

    def _failures(self) -> str:
        failed = [rank for rank in range(self.world) if rank != self.rank and self._store.check([f"failed/{rank}"])]
        return "; ".join(
            f"{self._names([rank])} failed: {self._store.get(f'failed/{rank}').decode()}" for rank in failed
        )

    def _names(self, ranks: Iterable[int]) -> str:
        return ", ".join(self._who[rank] for rank in ranks)

    @contextlib.contextmanager
    def _naming(self, aim: str) -> Iterator[None]:
        """Turn an error of torch inside into RankLost, which says which ranks are silent."""
        try:
            yield
        except RuntimeError as error:
            guilty = self._answer(lambda store: self._guilty())
            raise RankLost(f"{guilty}; rank {self.rank} waited {aim}: {_first_line(error)}") from error

    def _guilty(self) -> str:
        """Which ranks have failed or are silent, as far as the store says."""
        patience = Deadline(SILENT_S + BLOCK_S)
        for _ in looks(lambda: patience.passed, BLOCK_S):
            if blamed := self._blamed(SILENT_S):
                return blamed
        return "a rank was lost, although all give signs of life"

    def _blame(self, silent_s: float) -> str:
        return self._answer(lambda store: self._blamed(silent_s))

    def _blamed(self, silent_s: float) -> str:
        """Names the ranks that have failed, or been silent for so many seconds, as far as the store says."""
        if failures := self._failures():
            return failures
        silent = [rank for rank in range(self.world) if rank != self.rank and self._silence(rank) > silent_s]
        return f"{self._names(silent)} gives no sign of life: dead, stopped or cut off" if silent else ""

    def _answer(self, question: Callable[[Store], str]) -> str:
        try:
            return self._answering.ask(question)
        except RuntimeError:
            return "the store of torchrun does not answer: its first machine is dead, stopped or cut off"


def _abort() -> None:
    """Have the GPU leave all sums."""
    with contextlib.suppress(RuntimeError):
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda")).abort()


def _first_line(error: BaseException) -> str:
    """Without the place in gloo's source, which it begins with, and without its advice to look at other ranks."""
    text, _, _ = re.sub(r"^\[\S+\] ", "", first_line(error)).partition("This is typically caused")
    return text.rstrip(" .")
