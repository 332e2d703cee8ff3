"""How a run stands is told on SIGUSR1, once for each, even where a ring is lost."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from sfactory.config.flags import config_of
from sfactory.messages import ActRequest
from sfactory.planning.plan import plan_sizes
from sfactory.process.signals import Interrupts
from sfactory.supervise.monitors import StatusDump
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR
from tests.support.rings import lock_for_ever


@pytest.fixture
def shared() -> SharedObjects:
    plan = plan_sizes(config_of({"env": "any", "device": "cpu", "encoder_mlp_layers": (8,), "num_workers": 2}), VECTOR)
    return SharedObjects(plan.spec, plan.layout, plan.weight_bytes)


def test_each_question_is_answered_once_and_stops_nothing(
    shared: SharedObjects, caplog: pytest.LogCaptureFixture
) -> None:
    status_dump = StatusDump(shared)
    with Interrupts() as interrupts, caplog.at_level(logging.INFO):
        status_dump.look(interrupts)
        assert caplog.records == []
        for answers in (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
            status_dump.look(interrupts)
            status_dump.look(interrupts)
            assert len(caplog.records) == answers

        assert (interrupts.count, interrupts.signum) == (0, None)
    assert caplog.text.count("what each process is waiting for (SIGUSR1)") == 2


def test_every_process_is_told_with_the_messages_that_wait_for_it(shared: SharedObjects) -> None:
    shared.table.begin(0)
    for split in range(2):
        shared.to_policies[0].put(ActRequest(0, split, split, 0, 0, 0))

    text = StatusDump(shared).text()

    lines = {line.split()[0].rstrip(":"): line for line in text.splitlines()}
    assert set(shared.layout.process_names) <= set(lines)
    assert "2 messages wait for it" in lines["sf-policy-0-0"]
    assert "0 messages wait for it" in lines["sf-learner-0"]
    assert "1 filling" in lines["sf-actor-0"]
    assert "0 reports wait for it" in lines["sf-main"]


def test_a_ring_whose_lock_is_lost_is_told_of_without_waiting_for_it(shared: SharedObjects) -> None:
    shared.to_policies[0].put(ActRequest(0, 0, 0, 0, 0, 0))
    lock_for_ever(shared.to_policies[0])

    assert "1 messages wait for it" in StatusDump(shared).text()


def test_whoever_answered_the_signal_before_does_so_afterwards() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Interrupts():
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before
