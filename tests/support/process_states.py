"""Asks a run for the state of its processes (SIGUSR1), and waits until all work."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from tests.support.processes import eventually
from tests.support.trainer import START_S, TrainerRun

HEADING = "what each process is waiting for (SIGUSR1):"
_END = "reports wait for it"
EVERY_S = 0.3  # a little more than main's beat, at which it answers
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
    if run.flags.get("serial_mode"):
        return
    all_work = eventually(lambda: all(one.works for one in ask(run).values()), START_S, EVERY_S)
    assert all_work, run.report("not all processes work")
