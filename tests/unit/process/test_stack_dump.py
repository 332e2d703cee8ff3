"""A child writes its stacks when main asks; one that cannot answer is not harmed by the request."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess

import pytest

from sfactory.process.spawn import Spawner
from sfactory.process.stack_dump import StackDump
from tests.support.processes import catches_signal, eventually

WITHIN_S = 60.0


def end_at_once(_stack: StackDump) -> None: ...


def sleep_without_answering(_stack: StackDump) -> None:
    time.sleep(9999)


def sleep_and_answer(stack: StackDump) -> None:
    stack.answer()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])  # as all children do with signals for main
    time.sleep(9999)


Start = Callable[[Callable[[StackDump], None]], tuple[StackDump, ForkServerProcess]]


@pytest.fixture
def start() -> Iterator[Start]:
    spawner = Spawner()
    spawner.open()
    started: list[ForkServerProcess] = []

    def start_one(target: Callable[[StackDump], None]) -> tuple[StackDump, ForkServerProcess]:
        stack = StackDump()
        started.append(process := spawner.start("child", target, stack))
        return stack, process

    yield start_one
    for process in started:
        process.kill()
        process.join()


@pytest.mark.parametrize(("target", "exit_code"), [(sleep_without_answering, None), (end_at_once, 0)])
def test_a_child_that_cannot_answer_is_not_harmed(
    start: Start, target: Callable[[StackDump], None], exit_code: int | None
) -> None:
    stack, process = start(target)
    process.join(0.0 if exit_code is None else WITHIN_S)

    stack.request(process)

    process.join(0.5)
    assert process.exitcode == exit_code
    assert stack.read() == ""


def test_a_child_answers_each_request_with_its_present_stack(start: Start) -> None:
    stack, process = start(sleep_and_answer)
    pid = process.pid or 0
    assert eventually(lambda: catches_signal(pid, signal.SIGUSR2), WITHIN_S)

    for _ in range(2):
        stack.request(process)
        assert eventually(lambda: "in sleep_and_answer" in stack.read(), WITHIN_S)
        assert stack.read().count("in sleep_and_answer") == 1

    assert process.is_alive()
