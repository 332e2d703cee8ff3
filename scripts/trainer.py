"""Room: sfactory's own benchmark, as scripts run it. In: flags of a run. Out: its command, the rate that it tells."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.command import Output, json_line, run

TRAIN = (sys.executable, "-m", "sfactory.train")


def benchmark(flags: Sequence[str], seconds: float, stage: str = "full") -> list[str]:
    """The command that measures a stage of a run with these flags."""
    measure = ["--benchmark=True", f"--benchmark_stage={stage}", f"--benchmark_seconds={seconds:g}"]
    return [*TRAIN, *flags, *measure]


def rate_of(command: Sequence[str], cwd: Path | None = None) -> float:
    """Env steps per second, as a benchmark tells them."""
    return rate_told_by(run(command, cwd))


def rate_told_by(output: Output) -> float:
    """Env steps per second, at the end of a benchmark's output."""
    return float(json_line(output.stdout)["env_steps_per_second"])


def told_rate(steps_per_second: float) -> str:
    """As scripts print it, of env steps or of agents' steps."""
    return f"{steps_per_second:,.0f} steps/s"
