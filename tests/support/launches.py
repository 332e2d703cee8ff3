"""Starts a launcher as a user does; a mark in their environment finds its processes and those of its runs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.proc import marked
from tests.support import processes
from tests.support.trainer import CHECKPOINT, START_S, to_argv

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


class Launch(processes.MarkedProgram):
    """One ``python -m sfactory.launcher``. ``close`` it, whatever happens."""

    def __init__(self, text: str, folder: Path, environment: Mapping[str, str] | None = None, **flags: object) -> None:
        """Start it at once on the description ``text``; ``folder`` takes train_dir and outputs."""
        file = folder / "runs.toml"
        file.write_text(text)
        self.folder = folder / "train_dir" / "many"
        argv = [sys.executable, "-m", "sfactory.launcher", f"--run={file}", f"--train_dir={folder / 'train_dir'}"]
        super().__init__(uuid.uuid4().hex, argv + to_argv(flags), folder)
        self._start(self.argv, {**os.environ, **(environment or {})})

    def wait(self, within_s: float = END_S) -> int:
        """As MarkedProgram, with the bound of a launch."""
        return super().wait(within_s)

    def runs(self) -> dict[str, dict[str, Any]]:
        """The result, by the name of the run."""
        result = json.loads(self.stdout.splitlines()[-1])
        return {run["experiment"]: run for run in result["runs"]}

    def mains(self) -> dict[str, int]:
        """Process id of the main process of each run that lives, by its name."""
        found: dict[str, int] = {}
        for pid, name in marked(self.mark).items():
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

    def report(self, problem: str) -> str:
        """As MarkedProgram, with the end of each run's log."""
        logs = "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))
        return f"{super().report(problem)}\n{logs}"
