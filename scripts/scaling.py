"""Measures throughput, memory and start-up by number of workers and envs: a JSON and a table.

    python scripts/scaling.py --out docs/performance/scaling.json
    python scripts/scaling.py --bench BENCH --rounds 3 --out scaling.json      # the plain cart and pole of its envs.py

Every cell is one benchmark of the full loop; half-way through its measurement the memory of all its processes is read.
What starts up is another run with the same flags, as a benchmark simulates before it starts: its first env step is when
its line of that name appears on stderr, counted from the start of the command (interpreter and imports included; main
looks every quarter of a second, so a figure is up to that much too high). Every other round has the opposite order,
so that a drift of the machine affects all alike.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this may be started as a file and imported as a module
from scripts.command import ROOT, TRAIN, Command, benchmark, folder, json_line, shown
from scripts.process_facts import facts_by_name, median_private_mb, total
from scripts.record import machine, write_json

WORKERS = (1, 2, 4, 8, 16)
ENVS = (16, 64, 256, 1024, 2048)
INFERENCE = ("central", "local")
# Env steps count when they are learned from: small batches, so that few envs, too, fill many in a measurement.
FLAGS = (
    "--device=cpu --rollout=32 --batch_size=4096 --num_batches_per_epoch=1 --num_epochs=1 --encoder_mlp_layers 64 64 "
    "--nonlinearity=tanh --normalize_input=False --normalize_returns=False"
)
KINDS = {"actor": "sf-actor-", "policy_worker": "sf-policy-", "learner": "sf-learner-", "main": "sf-main"}
MEASURING, STEPPED = "s of measurement", "first env step"
BOOT_S = 120.0
COMPARED = (2, 16)  # workers


@dataclass(frozen=True)
class Cell:
    """One layout. ``envs`` are those of each worker."""

    inference: str
    workers: int
    envs: int

    @property
    def splits(self) -> int:
        """Groups of envs that a worker steps in turn; with local inference there is one."""
        return 1 if self.inference == "local" else 2

    @property
    def possible(self) -> bool:
        """Whether every split of every worker has an env, and all have as many."""
        return self.envs % self.splits == 0

    @property
    def shown(self) -> str:
        """The layout in words."""
        return f"{self.inference:7} {self.workers:2} workers, {self.envs:4} envs each"

    def flags(self, env: str) -> list[str]:
        """The flags of a run with this layout."""
        return [
            f"--env={env}",
            f"--inference={self.inference}",
            f"--num_workers={self.workers}",
            f"--num_envs_per_worker={self.envs}",
            f"--worker_num_splits={self.splits}",
            *FLAGS.split(),
        ]


@dataclass
class Figures:
    """What was measured of a cell, one number a round. Memory is private; of a kind, the median of its processes."""

    env_steps_per_second: list[float] = field(default_factory=list)
    first_env_step_s: list[float] = field(default_factory=list)
    total_pss_mb: list[float] = field(default_factory=list)
    private_mb: dict[str, list[float]] = field(default_factory=dict)

    @property
    def latest(self) -> str:
        """The last round in words."""
        return (
            f"{self.env_steps_per_second[-1]:>9,.0f} env steps/s, {self.private_mb['actor'][-1]:5.1f} MB per actor, "
            f"{self.total_pss_mb[-1]:6,.0f} MB in all, first step after {self.first_env_step_s[-1]:.2f} s"
        )

    def row(self, cell: Cell) -> dict[str, object]:
        """The cell with medians over rounds, and the rates and starts of each."""
        return {
            **asdict(cell),
            "env_steps_per_second": _median(self.env_steps_per_second),
            "first_env_step_s": _median(self.first_env_step_s),
            "total_pss_mb": _median(self.total_pss_mb),
            "private_mb": {kind: _median(values) for kind, values in self.private_mb.items()},
            "rounds": {"env_steps_per_second": self.env_steps_per_second, "first_env_step_s": self.first_env_step_s},
        }


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def cells(inference: Iterable[str], workers: Sequence[int], envs: Sequence[int]) -> list[Cell]:
    """All layouts that are possible."""
    every = [Cell(where, count, each) for each in envs for count in workers for where in inference]
    return [cell for cell in every if cell.possible]


def measure(cell: Cell, env: str, seconds: float, cwd: Path, into: Figures) -> None:
    """One benchmark; memory is read in the middle of its measurement."""
    command = benchmark(cell.flags(env), seconds)
    with tempfile.TemporaryDirectory(prefix="scaling-") as left, Command(command, Path(left), cwd) as run:
        run.wait_for(MEASURING, BOOT_S + seconds)
        time.sleep(max(2.0, 0.1 * seconds) + seconds / 2)  # the benchmark warms up for that long
        processes = facts_by_name(run.living())
        if run.wait(BOOT_S + seconds):
            raise run.failure(f"ended with {run.exit_code}")
        into.env_steps_per_second.append(float(json_line(run.stdout)["env_steps_per_second"]))
    into.total_pss_mb.append(round(total(processes, "pss_mb"), 2))
    for kind, prefix in KINDS.items():
        private = median_private_mb(processes, prefix)
        if private is not None:
            into.private_mb.setdefault(kind, []).append(private)


def start_up(cell: Cell, env: str, cwd: Path, into: Figures) -> None:
    """Start a run and end it after its first env step."""
    with tempfile.TemporaryDirectory(prefix="scaling-") as left:
        endless = [f"--train_dir={left}", "--train_for_env_steps=1000000000000"]
        with Command([*TRAIN, *cell.flags(env), *endless], Path(left), cwd) as run:
            into.first_env_step_s.append(round(run.wait_for(STEPPED, BOOT_S), 2))


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """A summary of the rows by name, without missing measurements."""
    found: dict[str, float] = {}
    for where, count in itertools.product(INFERENCE, COMPARED):
        here = [row for row in rows if row["inference"] == where]
        chosen = [row for row in here if row["workers"] == count]
        if chosen:
            best, ours = (max(row["env_steps_per_second"] for row in group) for group in (here, chosen))
            found[f"{where}, {count} workers: share of the best rate"] = round(ours / best, 3)
            private = statistics.median(row["private_mb"]["actor"] for row in chosen)
            found[f"{where}, {count} workers: private MB per actor"] = round(private, 1)
    for count in COMPARED:
        starts = [row["first_env_step_s"] for row in rows if row["workers"] == count]
        if starts:
            found[f"{count} workers: seconds to the first env step"] = round(statistics.median(starts), 2)
    return found


def run_all(
    order: Sequence[Cell],
    env: str,
    seconds: float,
    rounds: int,
    cwd: Path,
    keep: Callable[[Mapping[Cell, Figures]], object],
) -> None:
    """Measure all cells in so many rounds, every other one backwards; ``keep`` is given what there is after each."""
    figures = {cell: Figures() for cell in order}
    for round_ in range(rounds):
        for cell in order if round_ % 2 == 0 else reversed(order):
            into = figures[cell]
            measure(cell, env, seconds, cwd, into)
            start_up(cell, env, cwd, into)
            print(f"round {round_ + 1}: {cell.shown}: {into.latest}", flush=True)
            keep(figures)


def main() -> None:
    """Read the command line, measure, write the JSON and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/performance/scaling.json")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bench", type=folder, help="a folder with an envs.py that has the plain CartPole")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--envs", type=int, nargs="+", default=ENVS, help="of each worker")
    parser.add_argument("--inference", nargs="+", choices=INFERENCE, default=INFERENCE)
    given = parser.parse_args()

    env, cwd = ("CartPole-v1", ROOT) if given.bench is None else ("envs:CartPole", given.bench)
    order = cells(given.inference, given.workers, given.envs)
    commands = [shown(benchmark(cell.flags(env), given.seconds), given.bench) for cell in order]
    comes_to: dict[str, float] = {}

    def keep(figures: Mapping[Cell, Figures]) -> None:
        rows = [of_cell.row(cell) for cell, of_cell in figures.items() if of_cell.first_env_step_s]
        comes_to.update(summary(rows))
        facts = {**machine(), "env": env, "seconds": given.seconds, "rounds": given.rounds, "summary": comes_to}
        write_json(given.out, {**facts, "cells": rows, "commands": commands})

    run_all(order, env, given.seconds, given.rounds, cwd, keep)
    width = max(map(len, comes_to), default=0)
    print(*(f"{what:{width}}  {figure:g}" for what, figure in comes_to.items()), sep="\n")


if __name__ == "__main__":
    main()
