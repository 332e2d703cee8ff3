"""A child writes where in its code it is when main asks; one that cannot answer yet is not harmed by the question."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess

import pytest

from sfactory.process.spawn import Spawner
from sfactory.process.stack_dump import StackDump
from tests.support.processes import catches_signal, eventually

WITHIN_S = 60.0


def sleep_without_answering(stack: StackDump) -> None:
    """As a child does until it is set up."""
    time.sleep(9999)


def sleep_and_answer(stack: StackDump) -> None:
    """As a child does from then on."""
    stack.answer()
    time.sleep(9999)


@pytest.fixture
def spawner() -> Spawner:
    spawner = Spawner()
    spawner.open()
    return spawner


@pytest.fixture
def children() -> Iterator[list[ForkServerProcess]]:
    started: list[ForkServerProcess] = []
    yield started
    for process in started:
        process.kill()
        process.join()


def test_a_child_that_has_no_handler_yet_survives_the_question(
    spawner: Spawner, children: list[ForkServerProcess]
) -> None:
    stack = StackDump()
    children.append(process := spawner.process(sleep_without_answering, stack))
    process.start()

    stack.request(process)

    process.join(0.5)
    assert process.exitcode is None
    assert stack.read() == ""


def test_a_child_tells_where_it_is_each_time_anew(spawner: Spawner, children: list[ForkServerProcess]) -> None:
    stack = StackDump()
    children.append(process := spawner.process(sleep_and_answer, stack))
    process.start()
    assert process.pid is not None
    pid = process.pid
    assert eventually(lambda: catches_signal(pid, signal.SIGUSR2), WITHIN_S)

    for _ in range(2):
        stack.request(process)
        assert eventually(lambda: "in sleep_and_answer" in stack.read(), WITHIN_S)
        assert stack.read().count("in sleep_and_answer") == 1

    assert process.is_alive()


def test_a_child_that_has_ended_is_not_asked(spawner: Spawner, children: list[ForkServerProcess]) -> None:
    stack = StackDump()
    children.append(process := spawner.process(time.sleep, 0))
    process.start()
    process.join(WITHIN_S)

    stack.request(process)

    assert stack.read() == ""
