"""Stalls and idle policies are warned of once, and SIGUSR1 logs what each process is waiting for."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from sfactory.clock import now
from sfactory.messages import ActRequest
from sfactory.process.signals import Interrupts
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise import monitors
from sfactory.supervise.monitors import IdlePolicyWarning, StallWarnings, StatusDump
from tests.support.parts import VECTOR, small_layout
from tests.support.rings import lock_for_ever


def test_each_stall_is_warned_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    board, at = StatusBoard(["sf-actor-0", "sf-actor-1", "sf-actor-2", "sf-actor-3"]), now()
    monkeypatch.setattr(monitors, "STALL_S", 30.0)
    monkeypatch.setattr("sfactory.clock.now", lambda: at)
    warnings = StallWarnings(board, board.names, lambda: "all for sf-policy-0-0")
    board.row("sf-actor-0").set("state", State.RESETTING)
    for name, seconds in zip(board.names, (31.0, 32.0, 5.0, 0.0), strict=True):
        board.row(name).set("busy_since", at - seconds if seconds else 0.0)

    assert warnings.look() == ["sf-actor-0", "sf-actor-1"]
    assert warnings.look() == []
    assert "sf-actor-0 has been busy with the first reset of one environment for 31 s" in caplog.text
    assert caplog.text.count("what each process is waiting for:\nall for sf-policy-0-0") == 1

    board.row("sf-actor-0").set("busy_since", at - 40.0)
    assert warnings.look() == ["sf-actor-0"]


def test_time_in_which_all_processes_were_stopped_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr("sfactory.clock.now", lambda: at)
    board = StatusBoard(["sf-actor-0"])
    warnings = StallWarnings(board, board.names, str)
    board.row("sf-actor-0").set("busy_since", at + 0.5)

    warned = []
    for seconds in (1.0, 3600.0, *[1.0] * 40):
        at += seconds
        warned += [at for _ in warnings.look()]

    assert warned == [pytest.approx(4630.0, abs=2.0)]


def test_a_stall_is_blamed_on_an_environment_only_where_there_is_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = StatusBoard(["sf-actor-0", "sf-actor-1", "sf-policy-0-0", "sf-policy-0-1"])
    for pid, name in enumerate(board.names, start=1):
        board.row(name).set("pid", pid)
        board.row(name).set("busy_since", now() - 31.0)
    monkeypatch.setattr(monitors, "is_stopped", lambda pid: pid in (2, 4))

    StallWarnings(board, board.names, str).look()

    said = [record.getMessage().partition("; ")[2] for record in caplog.records[:4]]
    stopped = "it is stopped (by SIGSTOP or a debugger)"
    assert said == ["is its environment stuck?", stopped, "is its device stuck?", stopped]


@pytest.mark.parametrize(
    ("is_done", "learns", "seconds", "warnings"),
    [(True, False, 1.0, 1), (True, True, 1.0, 0), (False, False, 1.0, 0), (True, False, 3600.0, 0)],
)
def test_a_policy_that_is_idle_while_another_is_done_is_warned_of_once(
    is_done: bool,
    learns: bool,
    seconds: float,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not for the hours in which the run is stopped."""
    moment, steps, done = 0.0, {0: 100, 1: 0}, {0: is_done, 1: False}
    monkeypatch.setattr("sfactory.clock.now", lambda: moment)
    monkeypatch.setattr(monitors, "PATIENCE_S", 30.0)
    warning = IdlePolicyWarning((0, 1), steps.__getitem__, done.__getitem__)

    for _ in range(10 if seconds > 1.0 else 100):
        moment += seconds
        steps[1] += learns
        warning.look()

    assert caplog.text.count("the run waits for policy 1, ") == warnings


@pytest.fixture
def shared() -> SharedObjects:
    return SharedObjects(VECTOR, small_layout(), weight_bytes=8)


def test_each_sigusr1_is_answered_once_and_stops_nothing(
    shared: SharedObjects, caplog: pytest.LogCaptureFixture
) -> None:
    status_dump, before = StatusDump(shared), signal.getsignal(signal.SIGUSR1)
    with Interrupts() as interrupts, caplog.at_level(logging.INFO):
        status_dump.look(interrupts)
        assert caplog.records == []
        for answers in (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
            status_dump.look(interrupts)
            status_dump.look(interrupts)
            assert len(caplog.records) == answers

        assert (interrupts.count, interrupts.signum) == (0, None)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_every_process_is_described_even_if_a_ring_is_locked(shared: SharedObjects) -> None:
    shared.table.begin(0)
    for split in range(2):
        shared.to_policies[0].put(ActRequest(0, split, split, 0, 0, 0))
    lock_for_ever(shared.to_policies[0])

    lines = {line.split()[0].rstrip(":"): line for line in StatusDump(shared).text().splitlines()}

    assert set(shared.layout.process_names) <= set(lines)
    assert "2 messages wait for it" in lines["sf-policy-0-0"]
    assert "0 messages wait for it" in lines["sf-learner-0"]
    assert "1 filling" in lines["sf-actor-0"]
    assert "0 reports wait for it" in lines["sf-main"]
