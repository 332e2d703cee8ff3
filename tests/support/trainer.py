"""Starts whole training runs, observes them from outside, and checks what must hold after every run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import CheckpointError, ExitCode
from tests.support import processes
from tests.support.source import ROOT
from tests.support.warm_process import MARK, WarmRun, environment, warm_process

# Bounds on time are those of an idle machine. Where tests run, others compute, too: they allow so many times as much.
BUSY_FACTOR = 3.0
_LEAST_S = 5.0  # below that, one process that has to wait for the core a few times is all that is measured
_IMPORTS_S = 10.0  # before a run can refuse anything but a flag

START_S = 90.0  # bound on start-up up to the first checkpoint, on a busy machine
END_S = 60.0  # bound on an ordinary end, and on one whose cause takes half of that to be certain
CHECKPOINT = re.compile(r"checkpoint_(\d+)_(\d+)\.pth")
# How the last line begins. All that is not here has failed.
WORDS = {ExitCode.DONE: "done", ExitCode.SIGINT: "interrupted", ExitCode.SIGTERM: "interrupted"}

# Small enough that a run starts, trains and ends in a few seconds.
CHEAP: Mapping[str, object] = {
    "env": "CartPole-v1",
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "worker_num_splits": 2,
    "rollout": 16,
    "batch_size": 256,
    "encoder_mlp_layers": (16, 16),
    "device": "cpu",
    "seed": 1,
    "with_tensorboard": False,
    "report_interval_sec": 0.5,
    "experiment_summaries_interval": 1,
    "save_every_sec": 1,
}


REAL = ("env",)


def within(seconds: float) -> float:
    """The bound to be put on what takes at most so long on an idle machine."""
    return BUSY_FACTOR * max(seconds, _LEAST_S)


REFUSED_S = within(_IMPORTS_S + 5.0)  # bound on a refusal, which takes 5 s at most once there is what to refuse it by
CLEAN_S = within(5.0)  # bound on everything being gone after the main process is


def to_argv(flags: Mapping[str, object]) -> list[str]:
    """Flags as a user types them: --name=value, lists separated by spaces, mappings as JSON; None: not at all."""
    argv: list[str] = []
    for name, value in flags.items():
        if value is None:
            continue
        if isinstance(value, tuple):
            argv += [f"--{name}", *map(str, value)]
        else:
            argv.append(f"--{name}={json.dumps(value) if isinstance(value, Mapping) else value}")
    return argv


class TrainerRun:
    """One training run in a session of its own. ``close`` it, whatever happens."""

    def __init__(self, flags: Mapping[str, object], folder: Path, under: Sequence[str] = ()) -> None:
        """Start it at once. ``folder`` takes train_dir and the captured outputs; several runs may share it.

        It is forked from the warm process. With ``under`` it is a new interpreter, as a user starts it: that command
        changes what the process may have, and then becomes it (taskset, ...); REAL changes nothing.
        """
        self.run_id = uuid.uuid4().hex
        self.flags = {**CHEAP, "train_dir": folder / "train_dir", "experiment": "run", **flags}
        self.run_dir = Path(str(self.flags["train_dir"])) / str(self.flags["experiment"])
        argv = to_argv(self.flags)
        self.argv = [sys.executable, "-m", "sfactory.train", *argv]
        self._stdout_path = folder / f"{self.run_id}.stdout"
        self._stderr_path = folder / f"{self.run_id}.stderr"
        env = {**environment(), MARK: self.run_id}
        warm = None if under else warm_process()
        self._shm_before, self._handles_before = processes.shm_names(), processes.handles()
        self.started = time.monotonic()
        self._process: WarmRun | subprocess.Popen[bytes]
        if warm is not None:
            self._process = warm.start(
                "sfactory.train", argv, cwd=ROOT, env=env, stdout=self._stdout_path, stderr=self._stderr_path
            )
            return
        with self._stdout_path.open("wb") as out, self._stderr_path.open("wb") as err:
            self._process = subprocess.Popen(
                [*under, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of main, which is its session's and process group's too."""
        return self._process.pid

    @property
    def stdout(self) -> str:
        """Everything on stdout so far."""
        return self._stdout_path.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """Everything on stderr so far."""
        return self._stderr_path.read_text(errors="replace")

    @property
    def last_stderr_line(self) -> str:
        """The last line on stderr that is not empty."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def result(self) -> dict[str, Any]:
        """The JSON object of the last line on stdout."""
        lines = [line for line in self.stdout.splitlines() if line.strip()]
        assert lines, self.report("nothing on stdout")
        value = json.loads(lines[-1])
        assert isinstance(value, dict), self.report("the last line on stdout is no JSON object")
        return value

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def processes(self) -> dict[str, int]:
        """Process id by name (sf-main, sf-actor-0, ...) of the run's living processes that carry such a name."""
        found = processes.processes_of(self.run_id)
        return {name: pid for pid, name in found.items() if name.startswith("sf-")}

    def pid_of(self, name: str) -> int:
        """Process id of the run's process of that name."""
        found = self.processes()
        assert name in found, self.report(f"there is no process {name}, only {sorted(found)}")
        return found[name]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the run's process of that name alone."""
        os.kill(self.pid_of(name), number)

    def signal_main(self, number: int) -> None:
        """Send a signal to main alone, as `kill` and a container's stop do."""
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to all processes of the run, as a terminal does on Ctrl-C."""
        os.killpg(self.pid, number)

    def wait_until(self, condition: str | Callable[[], bool], within_s: float = START_S) -> None:
        """Wait until stderr matches a pattern, or a predicate holds; fails if the run ends or time is up first."""
        predicate = condition
        if isinstance(condition, str):
            pattern = re.compile(condition)
            predicate = lambda: pattern.search(self.stderr) is not None  # noqa: E731
        assert callable(predicate)
        ended = False

        def met_or_ended() -> bool:
            nonlocal ended
            ended = self._process.poll() is not None
            return predicate() or ended

        in_time = processes.eventually(met_or_ended, within_s)
        assert in_time, self.report(f"still not so after {within_s} s: {condition}")
        assert not ended or predicate(), self.report(f"ended with {self._process.returncode} before: {condition}")

    def wait_until_training(self) -> None:
        """Wait until env steps were trained and saved.

        One actor alone can fill the first dataset: see ``process_states.wait_until_all_work``.
        """
        self.wait_until(lambda: self.saved_env_steps() > 0)

    def saved_env_steps(self) -> int:
        """Env steps of the newest checkpoint, 0 if there is none. Looks at names alone: cheap enough to poll."""
        names = [CHECKPOINT.fullmatch(path.name) for path in self.run_dir.glob("checkpoint_p0/*.pth")]
        return max((int(match[2]) for match in names if match), default=0)

    def wait(self, within_s: float | None = None) -> int:
        """The exit code of main; fails if it does not end within the bound. A signal's death is the negative number.

        ``within_s``: END_S by default, and for a run that was started just now also what its start may take.
        """
        if within_s is None:
            within_s = max(END_S, self.started + START_S + END_S - time.monotonic())
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            left = sorted(processes.processes_of(self.run_id).values())
            raise AssertionError(self.report(f"did not end within {within_s} s; alive: {left}")) from None

    def assert_ended(self, code: ExitCode, within_s: float | None = None, loads: bool = True) -> None:
        """The run ends in time, with that exit code, and says so in its last line; ``assert_clean`` holds then.

        ``within_s``: as ``wait`` has it by default, of a refusal REFUSED_S. ``loads``: False where the test has damaged
        every checkpoint; then none loads.
        """
        word = WORDS.get(code, "failed")
        ended = self.wait(within_s or (REFUSED_S if code == ExitCode.REFUSED else None))
        assert ended == code, self.report(f"wrong exit code: {ended}, not {code}")
        assert self.last_stderr_line.startswith(f"RESULT {word} "), self.report("wrong last line")
        measures = bool(self.flags.get("benchmark"))
        if not measures:
            resume = self.last_stderr_line.partition(" resume: ")[2]
            assert "sfactory.train" in resume, self.report("the last line does not say how to go on")
        if self.stdout.strip() or code == ExitCode.DONE:
            # What a benchmark tells is its measurement, which has no status.
            status = self.result().get("status", word if measures else None)
            assert status == word, self.report("wrong status")
        self.assert_clean(loads)

    def assert_clean(self, loads: bool = True) -> None:
        """Nothing of the run is left, and its newest checkpoint, if any, loads.

        No process of it lives, nothing new is in /dev/shm, and this process has the same files open as before.
        ``loads``: False if no checkpoint is to load.
        """
        gone = processes.eventually(lambda: not processes.processes_of(self.run_id), CLEAN_S)
        assert gone, self.report(f"still alive: {processes.processes_of(self.run_id)}")
        swept = processes.eventually(lambda: not processes.shm_left_since(self._shm_before), CLEAN_S)
        assert swept, self.report(f"left in /dev/shm: {sorted(processes.shm_left_since(self._shm_before))}")
        left = processes.handles().items() - self._handles_before.items()
        assert not left, self.report(f"open files that were not before: {sorted(left)}")
        if loads:
            self._assert_newest_loads()
        else:
            with pytest.raises(CheckpointError):
                CheckpointDir(self.run_dir / "checkpoint_p0", keep=2).load()

    def _assert_newest_loads(self) -> None:
        """Of each policy; of the first, it is the one with the most steps."""
        for folder in sorted(self.run_dir.glob("checkpoint_p*")):
            loaded = CheckpointDir(folder, keep=2).load()
            if loaded is not None:
                assert loaded.skipped == {}, self.report(f"checkpoints that do not load: {loaded.skipped}")
                ends = folder.name != "checkpoint_p0" or loaded.path.name.endswith(f"_{self.saved_env_steps()}.pth")
                assert ends, self.report(f"{loaded.path.name} is not the newest")

    def report(self, problem: str) -> str:
        """The problem, the command, and the end of both outputs: what a failed test shows."""
        out, err = self.stdout[-2000:], self.stderr[-6000:]
        return f"{problem}\n$ {' '.join(self.argv)}\n--- stdout\n{out}\n--- stderr\n{err}"

    def close(self) -> None:
        """End every process of the run that still lives."""
        for pid in processes.processes_of(self.run_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


class RunTrainer(Protocol):
    """The type of the fixture ``run_trainer``: starts a run with these flags on top of CHEAP."""

    def __call__(self, under: Sequence[str] = (), /, **flags: object) -> TrainerRun: ...
