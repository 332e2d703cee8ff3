"""Starts a launcher as a user does; a mark in their environment finds its processes and those of its runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import processes
from tests.support.source import ROOT
from tests.support.trainer import CHECKPOINT, START_S, to_argv
from tests.support.warm_process import MARK

END_S = 240.0  # bound on a handful of short runs on a busy machine
CLEAN_S = 30.0  # bound on everything being gone after a launcher that was killed: its runs save before they end
# Flags of runs that start, learn and end in a few seconds, in one process each but for what probes the environment.
SHORT: Mapping[str, object] = {
    "env": "sfactory_envs.synthetic.bandit:Bandit",
    "num_workers": 1,
    "num_envs_per_worker": 8,
    "rollout": 16,
    "batch_size": 128,
    "encoder_mlp_layers": (8,),
    "normalize_input": False,
    "normalize_returns": False,
    "device": "cpu",
    "with_tensorboard": False,
    "report_interval_sec": 0.5,
    "experiment_summaries_interval": 0.5,
    "save_every_sec": 0.5,
}


def description(name: str, flags: Mapping[str, object], varied: str) -> str:
    """A TOML file of one experiment called ``run``; ``varied``: its last lines."""
    words = to_argv({**SHORT, **flags})
    return f"run_name = {json.dumps(name)}\n[[experiments]]\nbase_name = 'run'\ncmd = {json.dumps(words)}\n{varied}\n"


class Launch:
    """One ``python -m sfactory.launcher`` in a session of its own. ``close`` it, whatever happens."""

    def __init__(self, text: str, folder: Path, environment: Mapping[str, str], **flags: object) -> None:
        """Start it at once on the description ``text``; ``folder`` takes train_dir and outputs."""
        self.mark, file = uuid.uuid4().hex, folder / "runs.toml"
        file.write_text(text)
        self.folder = folder / "train_dir" / "many"
        self.argv = [sys.executable, "-m", "sfactory.launcher", f"--run={file}", f"--train_dir={folder / 'train_dir'}"]
        self.argv += to_argv(flags)
        self._out, self._err = folder / f"{self.mark}.out", folder / f"{self.mark}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**os.environ, **environment, MARK: self.mark},
                start_new_session=True,
            )

    @property
    def stdout(self) -> str:
        """Everything on stdout so far."""
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """Everything on stderr so far."""
        return self._err.read_text()

    def send(self, number: int) -> None:
        """A signal to the launcher's process group, as a terminal does on Ctrl-C."""
        os.killpg(self._process.pid, number)

    def wait(self, within_s: float = END_S) -> int:
        """The exit code; fails if it does not end within the bound."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            left = sorted(processes.processes_of(self.mark).values())
            raise AssertionError(self.report(f"did not end within {within_s} s; alive: {left}")) from None

    def runs(self) -> dict[str, dict[str, Any]]:
        """The result, by the name of the run."""
        result = json.loads(self.stdout.splitlines()[-1])
        return {run["experiment"]: run for run in result["runs"]}

    def mains(self) -> dict[str, int]:
        """Process id of the main process of each run that lives, by its name."""
        found: dict[str, int] = {}
        for pid, name in processes.processes_of(self.mark).items():
            if name == "sf-main":
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                    found |= {word.partition("=")[2]: pid for word in words if word.startswith("--experiment=")}
        return found

    def saved_env_steps(self, name: str) -> int:
        """Env steps of the newest checkpoint of a run, 0 if there is none."""
        paths = self.folder.glob(f"{name}/checkpoint_p0/*.pth")
        return max((int(match[2]) for path in paths if (match := CHECKPOINT.fullmatch(path.name))), default=0)

    def wait_until_saved(self, *names: str) -> None:
        """Wait until runs of these names live and have saved something."""

        def saved_or_ended() -> bool:
            living = self.mains()
            return self._process.poll() is not None or all(n in living and self.saved_env_steps(n) for n in names)

        assert processes.eventually(saved_or_ended, START_S), self.report(f"{names} have not saved")
        assert self._process.poll() is None, self.report("it has ended before")

    def assert_clean(self, within_s: float = 5.0) -> None:
        """No process of it, or of its runs, is left."""
        gone = processes.eventually(lambda: not processes.processes_of(self.mark), within_s)
        assert gone, self.report(f"still alive: {processes.processes_of(self.mark)}")

    def report(self, problem: str) -> str:
        """The problem, the command, and its output: what a failed test shows."""
        logs = "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))
        return f"{problem}\n$ {' '.join(self.argv)}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}\n{logs}"

    def close(self) -> None:
        """End every process of it that still lives."""
        for pid in processes.processes_of(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
