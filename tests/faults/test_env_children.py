"""Programs, daemons, forked processes and pools of envs end with the process of their env, and with the run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.proc import PROC, marked
from sfactory.errors import ExitCode
from sfactory.process.orphans import children_of
from tests.support.long import LONG, long
from tests.support.process_states import wait_until_all_work
from tests.support.processes import eventually
from tests.support.trainer import ENDLESS, MORE_STEPS, REAL, RunTrainer, TrainerRun, within

GONE_S = within(3.0)
EACH = 6  # processes of an env


class Started:
    """A run of StartsProcesses with two envs in each of two actors, and what these have started."""

    def __init__(
        self, run_trainer: RunTrainer, folder: Path, deaf: bool = False, under: Sequence[str] = (), **flags: Any
    ) -> None:
        self.folder = folder / "pids"
        self.folder.mkdir()
        self._kwargs = {"folder": str(self.folder), "deaf": deaf}
        env = {"env": "tests.support.envs:StartsProcesses", "env_kwargs": self._kwargs, "num_envs_per_worker": 2}
        self.run: TrainerRun = run_trainer(under, **{"batch_size": 64, **env, **flags})

    def of(self, process: int) -> set[int]:
        """All that the envs of a process of the run have started so far."""
        path = self.folder / str(process)
        return set(map(int, path.read_text().split())) if path.exists() else set()

    def alive(self, *processes: int) -> set[int]:
        """What of the processes' envs lives; of all that there were by default."""
        known = processes or tuple(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())
        return set().union(*map(self.of, known)) & marked(self.run.mark).keys()

    def assert_replaced(self, name: str, before: int) -> None:
        """The process is replaced by one whose envs have processes, and those of its predecessor are gone."""

        def replaced() -> bool:
            now = self.run.processes().get(name, before)
            return now != before and len(self.alive(now)) == 2 * EACH

        self.run.wait_until(replaced)
        gone = eventually(lambda: not self.alive(before), GONE_S)
        assert gone, self.run.report(f"still alive: {self.alive(before)}")


def test_what_envs_start_ends_with_their_actor_and_an_interrupted_run(run_trainer: RunTrainer, tmp_path: Path) -> None:
    started = Started(run_trainer, tmp_path, train_for_env_steps=ENDLESS, step_timeout_seconds=3)
    run = started.run
    wait_until_all_work(run)
    killed, hung = run.pid_of("sf-actor-0"), run.pid_of("sf-actor-1")
    assert started.alive() == started.alive(killed, hung), run.report("what the probe's env has started is left")
    assert len(started.alive(killed)) == 2 * EACH
    # A forked process has no handler of ours: it ends as its parent expects.
    forked = int((started.folder / str(hung)).read_text().split()[0])
    os.kill(forked, signal.SIGTERM)
    assert eventually(lambda: forked not in marked(run.mark), GONE_S)

    os.kill(killed, signal.SIGKILL)

    started.assert_replaced("sf-actor-0", killed)
    assert len(started.alive(hung)) == 2 * EACH - 1, run.report("what another actor's envs have started has ended")
    run.wait_until("left behind by an env, and ended: .*sleep")

    (started.folder / "sf-actor-1").touch()
    run.wait_until("sf-actor-1 hung here")
    (started.folder / "sf-actor-1").unlink()

    started.assert_replaced("sf-actor-1", hung)
    run.signal_group(signal.SIGINT)
    run.wait()
    assert not started.alive(), run.report("main has not waited for them")
    run.assert_ended(ExitCode.SIGINT)


@LONG
@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("end", [None, signal.SIGTERM])
def test_nothing_that_envs_have_started_is_left_when_main_has_ended(
    run_trainer: RunTrainer, tmp_path: Path, serial: bool, end: signal.Signals | None
) -> None:
    limit = 500 if end is None else ENDLESS
    started = Started(run_trainer, tmp_path, train_for_env_steps=limit, serial_mode=serial)
    if end is not None:
        started.run.wait_until_training()
        started.run.signal_main(end)
    code = started.run.wait()

    assert not started.alive(), started.run.report("main has not waited for them")
    started.run.assert_ended(ExitCode.DONE if end is None else ExitCode.SIGTERM)
    assert code == (ExitCode.DONE if end is None else ExitCode.SIGTERM)


def kill_server(run: TrainerRun, watcher: bool) -> str:
    """Kill the fork server of a run, or its watcher; returns what the run is to say of it."""
    (pid,) = [pid for pid, name in marked(run.mark).items() if name == "sfactory-watch"]
    os.kill(pid if watcher else min(children_of(pid)), signal.SIGKILL)
    return "sfactory-watch, the parent of the fork server, has ended" if watcher else "the fork server has ended"


@pytest.mark.long
@pytest.mark.parametrize("watcher", [False, True])
def test_a_run_saves_and_ends_by_the_name_of_its_fork_server_or_the_watcher_of_it(
    run_trainer: RunTrainer, watcher: bool
) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, save_every_sec=1000, max_worker_restarts=0)
    run.wait_until(lambda: any(row.get("env_steps", 0) > MORE_STEPS for row in run.metrics()))
    assert run.saved_env_steps() <= MORE_STEPS

    words = kill_server(run, watcher)

    run.assert_ended(ExitCode.FAULTS)
    assert words in run.last_stderr_line
    assert run.stderr.count(words) == 1
    assert run.result()["env_steps"] == run.saved_env_steps() > MORE_STEPS
    assert not re.search("sf-.* ended with exit code|left behind", run.stderr), run.report(
        "the wrong process is blamed"
    )


@pytest.mark.long
def test_all_processes_restart_without_a_loss_after_their_fork_server_was_killed(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    # A server that is forked from the middle of a run would have files that the run has opened.
    run = Started(run_trainer, tmp_path, under=REAL, train_for_env_steps=ENDLESS).run
    wait_until_all_work(run)
    learner = run.pid_of("sf-learner-0")

    words = kill_server(run, watcher=False)

    run.wait_until(rf"{words}.*\n.*all processes are restarted from the checkpoint at \d+ env steps \(1 of")
    run.wait_until(lambda: run.processes().get("sf-learner-0", learner) != learner)
    run.saves_again()
    assert run.stderr.count(words) == 1
    run.kill("sf-main")
    assert run.wait() == -signal.SIGKILL
    run.assert_clean()


# An env that closes the files of its process also closes the pipe by which its actor would end with main.
@pytest.mark.parametrize(("serial", "deaf"), [(False, True), (True, False), long(False, False)])
def test_nothing_that_envs_have_started_is_left_when_main_is_killed(
    run_trainer: RunTrainer, tmp_path: Path, serial: bool, deaf: bool
) -> None:
    started = Started(run_trainer, tmp_path, deaf, train_for_env_steps=ENDLESS, serial_mode=serial)
    wait_until_all_work(started.run)
    programs = [pid for pid in started.alive() if (PROC / str(pid) / "comm").read_text() == "sleep\n"]
    assert len(programs) == 2 * 2 * 3
    open_files = {name for pid in programs for name in os.listdir(PROC / str(pid) / "fd")}
    assert open_files <= {"0", "1", "2"}, started.run.report("programs have inherited files of ours")

    started.run.kill("sf-main")

    assert started.run.wait() == -signal.SIGKILL
    started.run.assert_clean()
