"""Asks a run for the state of its processes (SIGUSR1), and waits until one, or all, work.

A process that was replaced counts as back when it acts itself: the others train on meanwhile.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass

from tests.support.processes import eventually
from tests.support.trainer import START_S, TrainerRun, within

HEADING = "what each process is waiting for (SIGUSR1):"
LOCKED = re.compile("uses a ring that is locked|its ring is locked by a dead process")
LOCKED_S = 30.0  # from a death that leaves a ring locked until all work again, on an idle machine
_END = "reports wait for it"
_EVERY_S = 0.3  # a little more than main's beat, at which it answers
_LINE = re.compile(
    r"^  (?P<name>sf-\S+): (?P<state>\w+), (?P<doing>waits|busy for [\d.]+ s), heard of [^,]+"
    r"(, pid (?P<pid>\d+))?, (?P<messages>\d+) messages wait for it(, (?P<env_steps>\d+) env steps)?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class ProcessState:
    """What a run reports of one of its processes.

    pid: 0 while there is none. messages: that wait for it. env_steps: of an actor, those of its predecessors included;
    of others None.
    """

    state: str
    waits: bool
    pid: int
    messages: int
    env_steps: int | None

    @property
    def works(self) -> bool:
        """Whether it runs; an actor or its predecessors must have taken steps."""
        return self.state == "running" and self.pid != 0 and self.env_steps != 0

    def continued_since(self, before: ProcessState) -> bool:
        """Whether it works and is the process of ``before``; an actor must have taken steps of its own since."""
        taken = self.env_steps is None or before.env_steps is None or self.env_steps > before.env_steps
        return self.works and self.pid == before.pid and taken


def ask(run: TrainerRun) -> dict[str, ProcessState]:
    """Have the run report the state of each of its processes."""
    count = run.stderr.count(HEADING)
    run.signal_main(signal.SIGUSR1)

    def answered() -> bool:
        return _END in (run.stderr.split(HEADING, count + 1)[count + 1 :] or [""])[0]

    run.wait_until(answered)
    answer = run.stderr.split(HEADING, count + 1)[count + 1]
    states = {}
    for found in _LINE.finditer(answer.partition(_END)[0]):
        state, waits, env_steps = found["state"], found["doing"] == "waits", found["env_steps"]
        steps = None if env_steps is None else int(env_steps)
        states[found["name"]] = ProcessState(state, waits, int(found["pid"] or 0), int(found["messages"]), steps)
    assert states, run.report("no process is described")
    return states


def wait_until_all_work(run: TrainerRun) -> None:
    """Wait until env steps were trained and saved, every process runs, and every actor has taken steps.

    The first checkpoint is there once one actor has filled a dataset, while another may still be starting. A serial run
    has no other processes.
    """
    run.wait_until_training()
    all_work = eventually(lambda: all(one.works for one in ask(run).values()), START_S, _EVERY_S)
    assert all_work, run.report("not all processes work")


def assert_back(run: TrainerRun, replaced: str, since: float, limit_s: float) -> None:
    """A worker that died or was stopped was replaced, and its replacement works in time.

    ``replaced``: matches the message on stderr, its name as the first group. ``since``: when it died, in monotonic
    seconds. ``limit_s``: how long it may take from then on an idle machine. One that left a ring locked has the time of
    that fault.
    """
    run.wait_until(replaced)
    said = re.search(replaced, run.stderr)
    assert said is not None
    name, before = said[1], ask(run)[said[1]]

    def works() -> bool:  # two answers in a row are of one process of that name, which works
        nonlocal before
        earlier, before = before, ask(run)[name]
        return before.continued_since(earlier)

    assert eventually(works, START_S, _EVERY_S), run.report(f"{name} does not work")
    took = time.monotonic() - since
    # Only now: that others are stuck at a ring is noticed after 10 s. What is said of the worker itself does not count,
    # since one that was stopped in a wait looks as if it was stuck, too.
    others = run.stderr.replace(said[0], "", 1)
    bound = within(LOCKED_S if LOCKED.search(others) else limit_s)
    assert took <= bound, run.report(f"{said[1]} worked after {took:.0f} s, and not within {bound:g}")


def wait_until_it_waits(run: TrainerRun, name: str) -> None:
    """Wait until an actor blocks at its ring, which is empty: it has asked for all actions that it can ask for."""

    def blocks() -> bool:
        before, now = ask(run)[name], ask(run)[name]
        return now.waits and not now.messages and before.env_steps == now.env_steps

    assert eventually(blocks, START_S), run.report(f"{name} does not wait")
