"""Room: how a run stands, by its own account. In: SIGUSR1. Out: what each process is about; when one works again.

A process that was replaced counts as back when it acts itself: others train on meanwhile, whatever has become of it.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass

from tests.support.processes import eventually
from tests.support.trainer import START_S, TrainerRun, within

HEADING = "who waits for whom (SIGUSR1):"
LOCKED = re.compile("uses a ring that is locked|its ring is locked by a dead process")
LOCKED_S = 30.0  # from a death that leaves a ring locked until all goes on, on an idle machine
_END = "reports wait for it"
_LINE = re.compile(
    r"^  (?P<name>sf-\S+): (?P<state>\w+), (?P<doing>waits|busy for [\d.]+ s), heard of [^,]+"
    r"(, pid (?P<pid>\d+))?, (?P<messages>\d+) messages wait for it(, (?P<env_steps>\d+) env steps)?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Standing:
    """What a run tells of one of its processes. messages: that wait for it; pid: 0 while there is none."""

    state: str
    waits: bool
    pid: int
    messages: int
    env_steps: int


def ask(run: TrainerRun) -> dict[str, Standing]:
    """Have the run tell how each of its processes stands."""
    told = run.stderr.count(HEADING)
    run.signal_main(signal.SIGUSR1)

    def answered() -> bool:
        return _END in (run.stderr.split(HEADING, told + 1)[told + 1 :] or [""])[0]

    run.wait_until(answered)
    answer = run.stderr.split(HEADING, told + 1)[told + 1]
    return {
        found["name"]: Standing(
            found["state"],
            found["doing"] == "waits",
            int(found["pid"] or 0),
            int(found["messages"]),
            int(found["env_steps"] or 0),
        )
        for found in _LINE.finditer(answer.partition(_END)[0])
    }


def assert_back(run: TrainerRun, replaced: str, since: float, limit_s: float) -> None:
    """A worker that died, or stood still, was replaced, and another works in its place in time.

    ``replaced``: matches what stderr says of it, its name as the first group. ``since``: when that befell it, in
    monotonic seconds. ``limit_s``: how long it may take from then on an idle machine. One that left a ring locked has
    the time of that fault.
    """
    run.wait_until(replaced)
    said = re.search(replaced, run.stderr)
    assert said is not None
    assert_works(run, said[1], since, LOCKED_S if LOCKED.search(run.stderr) else limit_s)


def assert_works(run: TrainerRun, name: str, since: float, limit_s: float, instead_of: int = 0) -> None:
    """A process of that name works ``limit_s`` after ``since``, on an idle machine; not that of pid ``instead_of``."""

    def works() -> bool:
        standing = ask(run)[name]
        begun = standing.env_steps > 0 or not name.startswith("sf-actor")
        return standing.state == "running" and standing.pid not in (0, instead_of) and begun

    assert eventually(works, START_S, every_s=0.3), run.report(f"{name} does not work")
    took = time.monotonic() - since
    assert took <= within(limit_s), run.report(f"{name} worked after {took:.0f} s, and not within {within(limit_s):g}")


def wait_until_it_waits(run: TrainerRun, name: str) -> None:
    """Wait until an actor blocks at its ring, which is empty: it has asked for all actions that it can ask for."""

    def blocks() -> bool:
        before, now = ask(run)[name], ask(run)[name]
        return now.waits and not now.messages and before.env_steps == now.env_steps and _sleeps(now.pid)

    assert eventually(blocks, START_S), run.report(f"{name} does not wait")


def _sleeps(pid: int) -> bool:
    """Whether the process has used no time of a core for a quarter of a second, and does not now."""
    before = _stat(pid)
    time.sleep(0.25)
    return before == _stat(pid) and before[0] == "S"


def _stat(pid: int) -> tuple[str, str, str]:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return fields[0], fields[11], fields[12]  # its state, and its ticks in user and kernel mode
