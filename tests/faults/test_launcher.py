"""A launcher or its runs are stopped or killed: interrupted runs resume, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.proc import marked
from sfactory.errors import ExitCode
from sfactory.launch.jobs import Entry, LaunchState
from sfactory.process.signals import ECHO_S
from tests.support import processes
from tests.support.launches import description
from tests.support.long import LONG
from tests.support.trainer import ENDLESS, START_S, saved_env_steps, to_argv

SECONDS = 10  # a run is killed soon after its first save, and must not have ended by itself before
SIX = "grid = {seed = [1, 2], gamma = [0.5, 0.7, 0.9]}"
NAMES = [f"run_seed_{seed}_gamma_{gamma}" for seed in (1, 2) for gamma in (0.5, 0.7, 0.9)]
END_S = 240.0  # bound on a handful of short runs on a busy machine
CLEAN_S = 30.0  # bound on everything being gone after a launcher that was killed: its runs save before they end


class Launch(processes.MarkedProgram):
    """One ``python -m sfactory.launcher``. ``close`` it, whatever happens."""

    def __init__(self, text: str, folder: Path, **flags: object) -> None:
        """Start it at once on the description ``text``; ``folder`` takes train_dir and outputs."""
        file = folder / "runs.toml"
        file.write_text(text)
        self.folder = folder / "train_dir" / "many"
        argv = [f"--run={file}", f"--train_dir={folder / 'train_dir'}", *to_argv(flags)]
        super().__init__(uuid.uuid4().hex, [sys.executable, "-m", "sfactory.launcher", *argv], folder)
        self._fork("sfactory.launcher", argv)

    def wait(self, within_s: float = END_S) -> int:
        return super().wait(within_s)

    def runs(self) -> dict[str, dict[str, Any]]:
        """The result, by the name of the run."""
        return {run["experiment"]: run for run in json.loads(self.stdout.splitlines()[-1])["runs"]}

    def mains(self) -> dict[str, int]:
        """Process id of the main process of each run that lives, by its name."""
        found: dict[str, int] = {}
        for pid in [pid for pid, name in marked(self.mark).items() if name == "sf-main"]:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                found |= {word.partition("=")[2]: pid for word in words if word.startswith("--experiment=")}
        return found

    def saved_env_steps(self, name: str) -> int:
        """Env steps of the newest checkpoint of a run, 0 if there is none."""
        return saved_env_steps(self.folder / name)

    def wait_until_saved(self, *names: str) -> None:
        """Wait until runs of these names live and have saved something."""

        def saved_or_ended() -> bool:
            living = self.mains()
            return self._process.poll() is not None or all(n in living and self.saved_env_steps(n) for n in names)

        assert processes.eventually(saved_or_ended, START_S), self.report(f"{names} have not saved")
        assert self._process.poll() is None, self.report("it has ended before")

    def report(self, problem: str) -> str:
        """As MarkedProgram, with the end of each run's log."""
        logs = "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))
        return f"{super().report(problem)}\n{logs}"


Start = Callable[..., Launch]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Start]:
    """Starts launchers on descriptions, which share a folder; ends what still runs after the test."""
    launches: list[Launch] = []

    def start(text: str, **flags: object) -> Launch:
        launches.append(Launch(text, tmp_path, **{"pause_between": 0, **flags}))
        return launches[-1]

    yield start
    for each in launches:
        each.close()


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below ``folder``."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def entries(folder: Path, names: list[str]) -> dict[str, Entry]:
    with LaunchState.opened(folder) as launch_state:
        return {name: launch_state.entry(name) for name in names}


@LONG
def test_killed_run_of_six_is_resumed_and_the_others_are_left_alone(launch: Start) -> None:
    text = description("many", {"train_for_seconds": SECONDS}, SIX)
    killed, others = NAMES[2], NAMES[:2] + NAMES[3:]
    first = launch(text, max_parallel=2)
    first.wait_until_saved(killed)
    os.kill(first.mains()[killed], signal.SIGKILL)

    assert first.wait() == ExitCode.FAULTS, first.report("wrong exit code")
    assert list(first.runs()) == NAMES
    assert {name: first.runs()[name]["status"] for name in NAMES} == {**dict.fromkeys(others, "done"), killed: "failed"}
    assert first.runs()[killed]["exit_code"] == -signal.SIGKILL
    assert f"failed {killed} (-9): " in first.stderr
    first.assert_all_gone(5.0)
    before = {name: files(first.folder / name) for name in others}
    saved = first.saved_env_steps(killed)

    second = launch(text, max_parallel=2)

    assert second.wait() == 0, second.report("wrong exit code")
    assert {run["status"] for run in second.runs().values()} == {"done"}
    assert "5 of 6 runs are done already" in second.stderr
    assert second.stderr.count("started ") == 1
    assert f"resumed at {saved} env steps" in (second.folder / f"{killed}.log").read_text()
    assert second.runs()[killed]["env_steps"] > saved
    assert {name: files(second.folder / name) for name in others} == before
    starts = {name: entry.starts for name, entry in entries(second.folder, NAMES).items()}
    assert starts == {**dict.fromkeys(others, 1), killed: 2}
    second.assert_all_gone(5.0)


@LONG
def test_ctrl_c_saves_all_runs_and_the_same_command_resumes_them(launch: Start) -> None:
    varied = "grid = {seed = [1, 2, 3]}"
    endless = description("many", {"train_for_env_steps": ENDLESS}, varied)
    # Places for four, GPUs for two, which this machine lacks; each run sees one.
    first = launch(endless, max_parallel=4, num_gpus=2, experiments_per_gpu=1)
    first.wait_until_saved("run_seed_1", "run_seed_2")
    gpus = set()
    for pid in first.mains().values():
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        gpus |= {variable for variable in variables if variable.startswith("CUDA_VISIBLE_DEVICES=")}

    first.signal_group(signal.SIGINT)

    assert first.wait() == ExitCode.SIGINT, first.report("wrong exit code")
    statuses = [run["status"] for run in first.runs().values()]
    assert statuses == ["interrupted", "interrupted", "waiting"]
    assert [run["exit_code"] for run in first.runs().values()] == [130, 130, None]
    assert gpus == {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"}
    assert "to resume the runs that are not done: " in first.stderr
    first.assert_all_gone(5.0)
    saved = first.saved_env_steps("run_seed_1")
    assert f" saved={saved} " in (first.folder / "run_seed_1.log").read_text().splitlines()[-2]

    second = launch(description("many", {"train_for_env_steps": saved + 1}, varied))

    assert second.wait() == 0, second.report("wrong exit code")
    assert {run["status"] for run in second.runs().values()} == {"done"}
    assert f"resumed at {saved} env steps" in (first.folder / "run_seed_1.log").read_text()


@LONG
def test_second_ctrl_c_ends_everything_at_once(launch: Start) -> None:
    run = launch(description("many", {"train_for_env_steps": ENDLESS}, "grid = {seed = [1, 2]}"))
    run.wait_until_saved("run_seed_1", "run_seed_2")

    # Stopped, a run cannot answer the first one.
    stopped = run.mains()["run_seed_1"]
    os.kill(stopped, signal.SIGSTOP)
    run.signal_group(signal.SIGINT)
    assert processes.eventually(lambda: "a second signal ends them at once" in run.stderr, 10)
    time.sleep(ECHO_S)
    run.signal_group(signal.SIGINT)

    assert run.wait(30) == ExitCode.SIGINT, run.report("wrong exit code")
    assert {each["status"] for each in run.runs().values()} == {"interrupted"}
    run.assert_all_gone(5.0)


@LONG
def test_killed_launcher_leaves_no_process_and_its_runs_have_saved(launch: Start) -> None:
    text = description("many", {"train_for_env_steps": ENDLESS, "save_every_sec": 1000}, "grid = {seed = [1, 2]}")
    run = launch(text)
    logs = [run.folder / f"run_seed_{seed}.log" for seed in (1, 2)]
    learned = re.compile(r" env_steps=[1-9]")
    training = lambda: all(log.exists() and learned.search(log.read_text()) for log in logs)  # noqa: E731
    assert processes.eventually(training, 90), run.report("not training")

    run.signal_group(signal.SIGKILL)

    assert run.wait() == -signal.SIGKILL
    run.assert_all_gone(CLEAN_S)
    assert [run.saved_env_steps(f"run_seed_{seed}") > 0 for seed in (1, 2)] == [True, True]
    assert {entry.status for entry in entries(run.folder, ["run_seed_1", "run_seed_2"]).values()} == {"interrupted"}


def test_failed_run_is_reported_with_its_last_line_and_the_others_continue(launch: Start, tmp_path: Path) -> None:
    done = description("many", {"train_for_env_steps": 2000, "serial_mode": True}, "")
    # Refused before torch is imported: no socket has so long a path.
    long_path = tmp_path / ("x" * 120)
    long_path.mkdir()
    fails = done.replace("'run'", "'fails'") + f"env_vars = {{TMPDIR = '{long_path}'}}\n"
    run = launch(fails + done.partition("\n")[2], max_parallel=1)

    assert run.wait() == ExitCode.FAULTS, run.report("wrong exit code")
    failure, other = (run.runs()[name] for name in ("fails", "run"))
    assert (failure["status"], failure["exit_code"], failure["env_steps"]) == ("failed", ExitCode.REFUSED, None)
    assert (other["status"], other["exit_code"]) == ("done", 0)
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("failed fails (2): ")]
    assert "set a shorter one: TMPDIR=/tmp" in line
    assert line.endswith(f"[{failure['log']}]")
    run.assert_all_gone(5.0)
