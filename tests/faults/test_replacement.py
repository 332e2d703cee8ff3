"""Workers that die or hang in mid-run are replaced, every step is accounted for, and the run continues."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sfactory.errors import ExitCode
from tests.support.long import LONG, long
from tests.support.process_states import EVERY_S, ask, wait_until_all_work
from tests.support.processes import eventually
from tests.support.trainer import ENDLESS, FAULTY, REAL, START_S, RunTrainer, TrainerRun, within

RESTARTED = "from the checkpoint at"
LOCKS, SLOW = "tests.support.envs:LocksRing", "tests.support.envs:SlowReset"
BACK_S = 10.0  # from a death to a replacement that works, on an idle machine
LOCKED = re.compile("it is locked by")
LOCKED_S = 30.0  # from a death that leaves a ring locked until all work again, on an idle machine


def assert_back(run: TrainerRun, replaced: str, since: float, limit_s: float) -> None:
    """A worker that died or was stopped was replaced, and its replacement works in time.

    It works when it acts itself, since the others train on meanwhile. ``replaced``: matches the message on stderr, its
    name as the first group. ``since``: when it died. ``limit_s``: from then on, on an idle machine. One that left a
    ring locked has the time of that fault.
    """
    run.wait_until(replaced)
    said = re.search(replaced, run.stderr)
    assert said is not None
    name, before = said[1], ask(run)[said[1]]

    def works() -> bool:  # two answers in a row are of one process of that name; an actor has taken steps between them
        nonlocal before
        earlier, before = before, ask(run)[name]
        taken = before.env_steps is None or earlier.env_steps is None or before.env_steps > earlier.env_steps
        return before.works and before.pid == earlier.pid and taken

    assert eventually(works, START_S, EVERY_S), run.report(f"{name} does not work")
    took = time.monotonic() - since
    # Only now: that others are stuck at a ring is noticed after 10 s. A report on the worker itself does not count,
    # since one that was stopped in a wait looks as if it was stuck, too.
    bound = within(LOCKED_S if LOCKED.search(run.stderr.replace(said[0], "", 1)) else limit_s)
    assert took <= bound, run.report(f"{name} worked after {took:.0f} s, and not within {bound:g}")


def wait_until_it_waits(run: TrainerRun, name: str) -> None:
    """Wait until an actor blocks at its ring, which is empty: it has asked for all actions that it can ask for."""

    def blocks() -> bool:
        before, now = ask(run)[name], ask(run)[name]
        return now.waits and not now.messages and before.env_steps == now.env_steps

    assert eventually(blocks, START_S), run.report(f"{name} does not wait")


def assert_accounted_for(run: TrainerRun) -> None:
    """All steps that actors have taken since the processes last started are known, to the last one."""
    row = run.metrics()[-1]
    known = row["perf/received_steps"] + row["perf/held_steps"] + row["perf/discarded_steps"]
    assert row["perf/sampled_env_steps"] == known > 0


def train_on(run: TrainerRun, steps: int = 4000) -> None:
    """Wait until so much more is trained and saved."""
    before = run.saved_env_steps()
    run.wait_until(lambda: run.saved_env_steps() >= before + steps)


def assert_one_death_and_what_it_locked(run: TrainerRun) -> None:
    """The killed worker is replaced, and those that are stuck at a ring that it left locked.

    A process that a message wakes runs at once, so on a busy core a signal often meets a writer before it unlocks.
    """
    replaced, restarted = run.stderr.count("; replaced ("), run.stderr.count(RESTARTED)
    assert replaced + restarted == 1 + len(LOCKED.findall(run.stderr))
    since = run.stderr.rpartition(RESTARTED)[2]
    assert run.metrics()[-1]["perf/worker_restarts"] == since.count("; replaced (")


def wait_for_updates(run: TrainerRun) -> float:
    """Wait until a row has updates; returns those of the last one."""
    run.wait_until(lambda: any(row["perf/updates"] > 0 for row in run.metrics()[-1:]))
    return float(run.metrics()[-1]["perf/updates"])


def all_acted_with(run: TrainerRun, updates: float) -> bool:
    """Whether all weights that acted in what was learned from last, by the last row, had had so many updates."""
    row = run.metrics()[-1]
    lag = row["policy_lag/max"]
    # The first rows after a restart come before anything was learned from.
    return lag is not None and bool(row["perf/updates"] - lag >= updates)


def stop(run: TrainerRun) -> None:
    run.stop(signal.SIGINT)
    assert_accounted_for(run)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        long("sf-actor-1", {}),
        ("sf-actor-1", {"inference": "local"}),
        ("sf-policy-0-0", {}),
        long("sf-actor-1", {"async_rl": False, "num_batches_per_epoch": 2}),
        long("sf-policy-0-0", {"num_batches_to_accumulate": 0, "num_batches_per_epoch": 2}),
    ],
    ids=str,
)
def test_killed_worker_is_replaced(run_trainer: RunTrainer, name: str, flags: dict[str, Any]) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, **flags)
    wait_until_all_work(run)
    updates = wait_for_updates(run)
    pid, killed = run.pid_of(name), time.monotonic()

    run.kill(name)

    assert_back(run, rf"({name}) was killed by SIGKILL.*; replaced \(1 of --max_worker_restarts=20\)", killed, BACK_S)
    assert run.pid_of(name) != pid
    train_on(run)
    # The replacement acts with weights that are not older than those of its predecessor.
    run.wait_until(lambda: all_acted_with(run, updates))
    stop(run)
    assert_one_death_and_what_it_locked(run)


def test_actor_killed_within_its_env_is_replaced(run_trainer: RunTrainer, tmp_path: Path) -> None:
    kwargs = {"signal_at": 200, "signal_name": "SIGKILL", "fuse": str(tmp_path / "fuse")}
    run = run_trainer(env=FAULTY, env_kwargs=kwargs, train_for_env_steps=ENDLESS, inference="local")
    run.wait_until((tmp_path / "fuse").exists)
    died = time.monotonic()

    hint = "; perhaps the machine ran out of memory"
    assert_back(run, rf"(sf-actor-\d) was killed by SIGKILL{hint}; replaced", died, BACK_S)
    train_on(run)
    stop(run)


@pytest.mark.parametrize("how", [long("hang_at"), "gil_hang_at"])
def test_actor_with_a_hanging_env_is_replaced_and_the_place_is_shown(
    run_trainer: RunTrainer, tmp_path: Path, how: str
) -> None:
    kwargs = {how: 200, "fuse": str(tmp_path / "fuse"), "step_seconds": 0.001}
    run = run_trainer(env=FAULTY, env_kwargs=kwargs, train_for_env_steps=ENDLESS, step_timeout_seconds=3)
    run.wait_until((tmp_path / "fuse").exists)
    hung = time.monotonic()

    warning = r"(sf-actor-\d) took longer than --step_timeout_seconds=3 for one step; replaced"
    assert_back(run, warning, hung, 3 + BACK_S)
    assert re.search(r"faulty\.py.* line \d+ in step", run.stderr), run.report("no stack of the step")
    train_on(run)
    stop(run)


@pytest.mark.long
def test_reset_has_a_limit_of_its_own(run_trainer: RunTrainer, tmp_path: Path) -> None:
    kwargs = {"slow_reset": 12, "slow_s": 7.0, "fuse": str(tmp_path / "fuse")}
    limits = {"step_timeout_seconds": 2, "reset_timeout_seconds": 4}
    run = run_trainer(env=SLOW, env_kwargs=kwargs, train_for_env_steps=8_000, **limits)

    run.assert_ended(ExitCode.DONE, 120.0)
    assert "took longer than --reset_timeout_seconds=4 for one environment's reset; replaced" in run.stderr
    assert run.metrics()[-1]["perf/worker_restarts"] == 1


@LONG
def test_actor_that_dies_while_it_waits_for_its_policy_worker_is_replaced(
    run_trainer: RunTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFACTORY_TIMEOUT_SCALE", "1")  # which only a new interpreter reads
    run = run_trainer(REAL, train_for_env_steps=ENDLESS)
    wait_until_all_work(run)
    pid, warning = run.pid_of("sf-actor-0"), r"(sf-actor-0) was killed by SIGKILL.*; replaced"
    stopped = run.pid_of("sf-policy-0-0")

    os.kill(stopped, signal.SIGSTOP)
    wait_until_it_waits(run, "sf-actor-0")
    killed = time.monotonic()
    run.kill("sf-actor-0")
    run.wait_until(warning)
    # If all this has taken 10 s, another works in its place already.
    with contextlib.suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGCONT)

    assert_back(run, warning, killed, BACK_S)
    assert run.pid_of("sf-actor-0") != pid
    train_on(run)
    stop(run)


def test_stopped_policy_worker_is_replaced(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, step_timeout_seconds=3)
    run.wait_until_training()
    stopped = time.monotonic()

    run.kill("sf-policy-0-0", signal.SIGSTOP)

    replaced = r"(sf-policy-0-0) is stopped \(by SIGSTOP or a debugger\), and .*; replaced"
    # A signal often meets a writer before it unlocks, on a busy machine above all. Then actors or the learner are stuck
    # at that ring, which main may notice before the time is over that a stopped process has to show its stack.
    run.wait_until(f"{replaced}|{RESTARTED}", within(LOCKED_S))
    if re.search(replaced, run.stderr):
        assert_back(run, replaced, stopped, 3 + BACK_S)
    else:
        assert "it is locked by sf-policy-0-0, which is stopped" in run.stderr
    train_on(run)
    stop(run)


@LONG
@pytest.mark.parametrize("reader", ["sf-learner-0", "sf-main", "sf-policy-0-0"])
def test_ring_left_locked_by_a_killed_actor_does_not_end_the_run(
    run_trainer: RunTrainer, tmp_path: Path, reader: str
) -> None:
    kwargs = {"reader": reader, "at": 300, "fuse": str(tmp_path / "fuse")}
    run = run_trainer(env=LOCKS, env_kwargs=kwargs, train_for_env_steps=12_000)
    run.wait_until((tmp_path / "fuse").exists)
    run.wait_until(rf"({LOCKED.pattern})[^\n]*; replaced|{RESTARTED}", within(LOCKED_S))

    run.assert_ended(ExitCode.DONE, 150.0)
    assert re.search(r"sf-actor-\d was killed by SIGKILL", run.stderr)
    assert LOCKED.search(run.stderr)
    if reader != "sf-policy-0-0":  # which may get another ring before another process is stuck at the old one
        assert RESTARTED in run.stderr
    assert_accounted_for(run)


def test_actor_that_always_crashes_ends_the_run_when_no_restart_is_left(run_trainer: RunTrainer) -> None:
    kwargs = {"signal_at": 100, "signal_name": "SIGSEGV"}
    run = run_trainer(env=FAULTY, env_kwargs=kwargs, train_for_env_steps=ENDLESS, max_worker_restarts=3)

    run.assert_ended(ExitCode.FAULTS)
    assert "SIGSEGV" in run.last_stderr_line
    assert "3 of --max_worker_restarts=3 were replaced before" in run.last_stderr_line
    assert run.result()["env_steps"] == run.saved_env_steps()


def test_actor_that_cannot_start_any_more_ends_the_run(run_trainer: RunTrainer, tmp_path: Path) -> None:
    # The constructor raises for all but the probe and the first actors.
    fuse: dict[str, Any] = {"fuse": str(tmp_path / "fuse"), "fuse_skip": 17, "fuse_count": ENDLESS}
    run = run_trainer(env=FAULTY, env_kwargs={"raise_in_constructor": True, **fuse}, train_for_env_steps=ENDLESS)
    wait_until_all_work(run)

    run.kill("sf-actor-0")

    run.assert_ended(ExitCode.FAULTS, within(BACK_S))
    assert "EnvFault: the constructor raises, as ordered" in run.last_stderr_line
