"""Ranks enter torchrun's store together, whatever those before them have left there, and find out if it is lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore

import sfactory.ranks.distributed as distributed_module
from sfactory.clock import Deadline
from sfactory.errors import RankLost
from sfactory.ranks.distributed import DistributedRanks
from sfactory.ranks.place import Place
from sfactory.ranks.store import CALL, AnsweringStore, StoreLost, enter


def test_ranks_of_one_start_find_one_another_and_nothing_of_an_earlier_start() -> None:
    server = TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30), wait_for_workers=False)

    def start(rank: int, world: int, number: int) -> tuple[bool, list[str]]:
        client = TCPStore("127.0.0.1", server.port, None, False, timeout=timedelta(seconds=30))
        store, said = enter(client, rank, world, f"{rank} of {number}", lambda: False)
        is_old = store.check(["met"])
        store.set(f"seen/{rank}", "")
        store.wait([f"seen/{each}" for each in range(world)])
        store.set("met", "")
        return is_old, said

    with ThreadPoolExecutor(4) as threads:
        for number, world in enumerate((3, 4, 2)):  # torchrun may go on with other machines
            started = [threads.submit(start, rank, world, number) for rank in reversed(range(world))]
            said = [f"{rank} of {number}" for rank in range(world)]
            assert [each.result(30) for each in started] == [(False, said)] * world
    with pytest.raises(RankLost, match="have not started: 1"):
        enter(server, 0, 2, "", iter([False] * 5 + [True]).__next__)  # although rank 1 was here before


def test_a_store_that_gives_no_answer_is_lost_and_one_that_is_slow_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactory.ranks.store.BLOCK_S", 0.01)
    monkeypatch.setattr("sfactory.ranks.store.BEAT_S", 0.01)
    server = TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30), wait_for_workers=False)
    answering, cable = AnsweringStore(server, 0.2), threading.Event()
    assert answering.ask(lambda store: store.add("count", 1)) == 1
    with pytest.raises(RuntimeError, match="its own"):
        answering.ask(lambda store: _raise("its own"))
    with pytest.raises(StoreLost, match="rank_timeout_sec"):
        answering.ask(lambda store: cable.wait(30))
    with pytest.raises(StoreLost):
        answering.ask(lambda store: cable.wait(30))
    cable.set()

    beating = AnsweringStore(server, 0.2)
    beating.begin_to_beat("beat/0")
    called_before = beating.is_called
    server.set(CALL, "")
    assert not beating.ask(lambda store: threading.Event().wait(0.6))  # it waits for others, while the store answers
    assert (called_before, beating.is_called) == (False, True)
    beating.store = PrefixStore("part", server)
    patience = Deadline(30)
    while not beating.ask(lambda store: store.check(["beat/0"])) and not patience.passed:
        time.sleep(0.01)
    assert server.check(["part/beat/0"])


def test_ranks_that_are_cut_off_while_they_connect_end_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    server = TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30), wait_for_workers=False)
    said, cable = ["cpu rank 0 (process 5 on a)", "cpu rank 1 (process 6 on b)"], threading.Event()
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    monkeypatch.setattr("sfactory.ranks.store.BLOCK_S", 0.01)
    monkeypatch.setattr(AnsweringStore, "begin_to_beat", lambda self, key: None)  # no answer from now on
    monkeypatch.setattr(distributed_module, "rendezvous", lambda *given, **named: iter([(server, 0, 2)]))
    monkeypatch.setattr(distributed_module, "enter", lambda store, *given: (store, said))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *given, **named: cable.wait(30))

    with pytest.raises(RankLost, match=r"the store of torchrun does not answer.*; rank 0 waited to connect"):
        DistributedRanks(Place(0, 2, 0, 1), torch.device("cpu"), 0.2, lambda: False)
    assert not cable.is_set()
    cable.set()


def _raise(text: str) -> None:
    raise RuntimeError(text)
