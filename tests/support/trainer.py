"""Starts whole training runs, observes them from outside, and checks what must hold after every run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest
import torch

from scripts.proc import marked
from scripts.process_facts import shm_left_since, shm_names
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.errors import CheckpointError, ExitCode
from tests.support import processes
from tests.support.files import json_rows
from tests.support.warm_process import environment, warm_process

# Bounds on time are those of an idle machine. Where tests run, others compute, too: they allow so many times as much.
BUSY_FACTOR = 3.0
_LEAST_S = 5.0  # below that, one process that has to wait for the core a few times is all that is measured
_IMPORTS_S = 10.0  # before a run can refuse anything but a flag

START_S = 90.0  # bound on start-up up to the first checkpoint, on a busy machine
END_S = 60.0  # bound on an ordinary end, and on one with a cause that takes half of that to be certain
CHECKPOINT = re.compile(r"checkpoint_(\d+)_(\d+)\.pth")
EXIT_CODES = {signal.SIGINT: ExitCode.SIGINT, signal.SIGTERM: ExitCode.SIGTERM}
ENDLESS = 1_000_000_000  # env steps
MORE_STEPS = 2048
FAULTY = "sfactory_envs.synthetic.faulty:Faulty"
UNHURRIED = "tests.support.envs:Unhurried"  # leaves the cores to other tests while a run is looked at
BANDIT = "sfactory_envs.synthetic.bandit:Bandit"
Kind = Literal["latest", "best", "milestone"]
# How the last line begins. All that is not here has failed.
WORDS = {ExitCode.DONE: "done", ExitCode.SIGINT: "interrupted", ExitCode.SIGTERM: "interrupted"}

# Small enough that a run starts, trains and ends in a few seconds.
CHEAP: Mapping[str, object] = {
    "env": "CartPole-v1",
    "inference": "central",
    "task_defaults": False,
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


def saved_env_steps(run_dir: Path) -> int:
    """Env steps of the newest checkpoint, 0 if there is none. Looks at names alone: cheap enough to poll."""
    names = [CHECKPOINT.fullmatch(path.name) for path in run_dir.glob("checkpoint_p0/*.pth")]
    return max((int(match[2]) for match in names if match), default=0)


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


class TrainerRun(processes.MarkedProgram):
    """One training run. ``close`` it, whatever happens."""

    def __init__(self, flags: Mapping[str, object], folder: Path, under: Sequence[str] = ()) -> None:
        """Start it at once. ``folder`` takes train_dir and the captured outputs; several runs may share it.

        It is forked from the warm process. With ``under`` it is a new interpreter, as a user starts it: that command
        changes what the process may have, and then becomes it (taskset, ...); REAL changes nothing.
        """
        self.flags = {**CHEAP, "train_dir": folder / "train_dir", "experiment": "run", **flags}
        self.run_dir = Path(str(self.flags["train_dir"])) / str(self.flags["experiment"])
        argv = to_argv(self.flags)
        super().__init__(uuid.uuid4().hex, [sys.executable, "-m", "sfactory.train", *argv], folder)
        if not under:
            warm_process()  # its pipes are open from now on
        self._shm_before, self._handles_before = shm_names(), processes.handles()
        self.started = time.monotonic()
        if under:
            self._start([*under, *self.argv], environment())
        else:
            self._fork("sfactory.train", argv)

    @property
    def last_stderr_line(self) -> str:
        """The last line on stderr that is not empty."""
        return self.stderr.strip().rpartition("\n")[2]

    def result(self) -> dict[str, Any]:
        """The JSON object of the last line on stdout."""
        assert self.stdout.strip(), self.report("nothing on stdout")
        value = json.loads(self.stdout.strip().splitlines()[-1])
        assert isinstance(value, dict), self.report("the last line on stdout is no JSON object")
        return value

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        return json_rows(self.run_dir / "metrics.jsonl")

    def processes(self) -> dict[str, int]:
        """Process id by name (sf-main, sf-actor-0, ...) of the run's living processes that carry such a name."""
        found = marked(self.mark)
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

    def wait_until(self, condition: str | Callable[[], bool], within_s: float = START_S) -> None:
        """Wait until stderr matches a pattern, or a predicate holds; fails if the run ends or time is up first."""

        def met() -> bool:
            return re.search(condition, self.stderr) is not None if isinstance(condition, str) else condition()

        ended = False

        def met_or_ended() -> bool:
            nonlocal ended
            ended = self._process.poll() is not None
            return met() or ended

        in_time = processes.eventually(met_or_ended, within_s)
        assert in_time, self.report(f"still not so after {within_s} s: {condition}")
        assert not ended or met(), self.report(f"ended with {self._process.returncode} before: {condition}")

    def wait_until_training(self) -> None:
        """Wait until env steps were trained and saved.

        One actor alone can fill the first dataset: see ``process_states.wait_until_all_work``.
        """
        self.wait_until(lambda: self.saved_env_steps() > 0)

    def saved_env_steps(self) -> int:
        """As the function of that name."""
        return saved_env_steps(self.run_dir)

    def wait(self, within_s: float | None = None) -> int:
        """As MarkedProgram; the bound is END_S by default, and after a start just now also what that may take."""
        if within_s is None:
            within_s = max(END_S, self.started + START_S + END_S - time.monotonic())
        return super().wait(within_s)

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
            says_how = "sfactory.train" in resume
            assert says_how == (code != ExitCode.REFUSED), self.report("wrong advice on resuming in the last line")
        if self.stdout.strip() or code == ExitCode.DONE:
            # The result of a benchmark is its measurement, which has no status.
            status = self.result().get("status", word if measures else None)
            assert status == word, self.report("wrong status")
        self.assert_clean(loads)

    def assert_clean(self, loads: bool = True) -> None:
        """Nothing of the run is left, and its newest checkpoint, if any, loads.

        No process of it lives, nothing new is in /dev/shm, and this process has the same files open as before.
        ``loads``: False if no checkpoint is to load.
        """
        self.assert_all_gone(CLEAN_S)
        swept = processes.eventually(lambda: not shm_left_since(self._shm_before), CLEAN_S)
        assert swept, self.report(f"left in /dev/shm: {shm_left_since(self._shm_before)}")
        left = processes.handles().items() - self._handles_before.items()
        assert not left, self.report(f"open files that were not before: {sorted(left)}")
        if not loads:
            with pytest.raises(CheckpointError):
                CheckpointDir(self.run_dir / "checkpoint_p0", keep=2).load()
            return
        for folder in sorted(self.run_dir.glob("checkpoint_p*")):
            loaded = CheckpointDir(folder, keep=2).load()
            if loaded is not None:
                newest = max(folder.glob("checkpoint_*_*.pth"))
                assert loaded.path == newest, self.report(f"{newest} does not load")
                ends = folder.name != "checkpoint_p0" or loaded.path.name.endswith(f"_{self.saved_env_steps()}.pth")
                assert ends, self.report(f"{loaded.path.name} is not the newest")

    def done(self) -> TrainerRun:
        """The run itself, once it has ended well."""
        self.assert_ended(ExitCode.DONE)
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM, within_s: float | None = None) -> None:
        """End an endless run by a signal to main, as a container's stop does."""
        self.signal_main(number)
        self.assert_ended(EXIT_CODES[number], within_s)

    def payload(self, policy: int = 0, kind: Kind = "latest") -> dict[str, Any]:
        """What the newest checkpoint of that kind holds."""
        loaded = CheckpointDir(self.run_dir / f"checkpoint_p{policy}", keep=2).load(kind)
        assert loaded is not None, self.report(f"there is no {kind} checkpoint of policy {policy}")
        return dict(loaded.payload)

    def saves_again(self) -> None:
        """Wait until more env steps are saved than now."""
        saved = self.saved_env_steps()
        self.wait_until(lambda: self.saved_env_steps() > saved)


class RunTrainer(Protocol):
    """The type of the fixture ``run_trainer``: starts a run with these flags on top of CHEAP."""

    def __call__(self, under: Sequence[str] = (), /, **flags: object) -> TrainerRun: ...


def process_of_rank(run: TrainerRun, rank: int, name: str = "sf-learner-0") -> int:
    """Process id of a rank's process."""

    def is_of(pid: int) -> bool:
        return f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    return next(pid for pid, found in marked(run.mark).items() if found == name and is_of(pid))


def assert_resumes(stopped: TrainerRun, run_trainer: RunTrainer) -> None:
    """Run the same command with a higher limit: it says at which step it resumes, and counts on from there."""
    assert stopped.payload()
    saved = stopped.saved_env_steps()
    limit = saved + MORE_STEPS

    again = run_trainer(**{**stopped.flags, "train_for_env_steps": limit}).done()

    assert f"resumed at {saved} env steps" in again.stderr, again.report(f"does not say that it resumes at {saved}")
    assert again.result()["env_steps"] >= limit
    # A run that had begun again would have put the old checkpoint aside, as no part of its own past.
    assert not list(again.run_dir.glob("checkpoint_p0/set_aside_*")), again.report("the step count went back")
    assert again.saved_env_steps() >= limit


@dataclass(frozen=True)
class Finished:
    """A run that has ended well: its directory, and the flags of its last session, with which it is started again."""

    run_dir: Path
    flags: dict[str, object]

    def copied_to(self, folder: Path) -> Finished:
        """The same run in ``folder``, where a TrainerRun of that folder and of its name finds it."""
        train_dir = folder / "train_dir"
        run_dir = Path(shutil.copytree(self.run_dir, train_dir / self.run_dir.name))
        return Finished(run_dir, {**self.flags, "train_dir": train_dir})


def trained(folder: Path, *limits: int, **flags: object) -> Finished:
    """Train one run on top of CHEAP, in a session for each of the limits of env steps."""
    for limit in limits:
        run = TrainerRun({**flags, "train_for_env_steps": limit}, folder)
        try:
            run.done()
        finally:
            run.close()
    return Finished(run.run_dir, run.flags)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors and numbers of a nested payload, in order, as rows of numbers."""
    if isinstance(value, torch.Tensor):
        return [value.double().flatten()]
    if isinstance(value, dict):
        return [tensor for key in sorted(value, key=str) for tensor in tensors_in(value[key])]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return [torch.tensor([float(value)])] if isinstance(value, int | float) else []


def learned_by(run: TrainerRun) -> torch.Tensor:
    """Weights, normalizers, moments of the optimizer and counts of the newest checkpoint, as one row of numbers."""
    payload = run.payload()
    kept = {name: payload[name] for name in ("model", "optimizer", "train_step", "env_steps", "coefficients")}
    return torch.cat(tensors_in(kept))
