"""Signals are counted by how often somebody means them, and not by how often they come."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from sfactory.process.signals import ECHO_S, Interrupted, Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    interrupts = Interrupts()
    with interrupts:
        interrupts.raising = False
        yield interrupts
    interrupts.restore()


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_an_echo_of_a_signal_is_none(interrupts: Interrupts) -> None:
    interrupts.raising_again = True

    send(signal.SIGTERM)
    send(signal.SIGTERM)

    assert (interrupts.count, interrupts.exit_code) == (1, 143)


def test_the_same_signal_after_a_while_is_a_second_one(interrupts: Interrupts) -> None:
    interrupts.raising_again = True
    send(signal.SIGINT)
    time.sleep(ECHO_S)

    with pytest.raises(Interrupted):
        send(signal.SIGINT)

    assert interrupts.count == 2


def test_another_signal_is_a_second_one_at_once(interrupts: Interrupts) -> None:
    send(signal.SIGINT, signal.SIGTERM)

    assert (interrupts.count, interrupts.exit_code) == (2, 130)
