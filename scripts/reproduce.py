"""Trains rows of the table of docs/results.md, each seed as the row's command does, and writes their small files.

    python scripts/reproduce.py cartpole acrobot --seeds 3
    python scripts/reproduce.py parity_hopper parity_hopper_async --seeds 5 --publish
    python scripts/reproduce.py --page

Each row has a CSV in train_dir/rows/results with the thinned curve of each seed, and a JSON beside it with what it
reached, on which machine, from which commit; with ``--publish`` they are those in docs/results/rows. They are written
after each seed that has ended well. A seed that was interrupted goes on where it was, if code, machine and command are
the same. Seeds that are there already, from the same code on the same machine, are not run again; those from another
are dropped, and named, or with ``--add`` kept: the page says from which code and machine each is, and has the minutes
of the newest. A line at the end of a row has its bar, the published figure, and what
docs/results/rows had. ``--page`` writes the table and its charts from the files in docs/results/rows (pip install
-e '.[plot]'). Runs are kept in --train_dir. The page marks the minutes of rows beside other work, which are longer than
those of a run that is alone: before and after each seed it is measured how busy the cores are without it, and
``--beside`` marks a row in any case. The mark stays until the row's files are removed or dropped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import ROOT, TRAIN, json_line, run, shown
from scripts.draw_curves import kept, rows_of
from scripts.proc import busy_cores
from scripts.record import machine
from scripts.results_files import Point, measurements, read_row, write_row
from scripts.results_page import PAGE, RESULTS, outcome, write_page
from scripts.rows import EPISODES, GREEDY, PARITY, RATING, RETURN, ROWS, Row
from sfactory.atomic import read_json, write_json
from sfactory.config.saved_config import RUN_NAME

_LIMIT_S = 24 * 3600.0
_LOOK_S = 2.0
_BUSY_CORES = 0.5  # more than that by others slows a run down
_PLAY_SEED = 10_000  # episodes that are played afterwards are not those of training
_TRAIN_S = "perf/train_seconds"
_OF_SESSION = ("date", "alone")  # facts that may differ where a row or a seed goes on
# Their versions change what a row reaches.
_PACKAGES = ("ale-py", "box2d", "envpool", "minatar", "minigrid", "mpe2", "mujoco", "nle", "pettingzoo", "vizdoom")


class Runs(NamedTuple):
    """The runs of a row. train_dir: where they are kept, from the repository's root. alone, add: see the module."""

    row: Row
    train_dir: Path
    alone: bool = True  # not with --beside
    add: bool = False

    def train(self, seed: int | str, resumes: bool = False) -> list[str]:
        """The command that trains a seed. How often metrics are written does not change what is learned."""
        every_s = max(0.25, self.row.steps / 1_000_000)
        restart = f"--restart_behavior={'resume' if resumes else 'restart'}"
        where = [f"--train_dir={self.train_dir}", f"--experiment={self.name(seed)}", restart]
        return [*TRAIN, *self.row.words(seed), *where, f"--experiment_summaries_interval={every_s:g}"]

    def begun_path(self, seed: int) -> Path:
        """The file with the facts of a seed whose run has begun, until its results are written."""
        return ROOT / self.train_dir / f"{self.name(seed)}.json"

    def name(self, seed: int | str) -> str:
        """Of the run of a seed."""
        return f"{self.row.name}_{seed}"

    def play(self, module: str, *words: str) -> dict[str, Any]:
        """What playing a run prints."""
        own = [f"--train_dir={self.train_dir}", "--trust_run_dir=True"]  # its code is that of the row
        return json_line(run([sys.executable, "-m", module, *words, *own], ROOT, limit_s=_LIMIT_S).stdout)

    def points(self, seed: int) -> list[Point]:
        """The thinned curve of a seed."""
        metric = self.row.metric if "/" in self.row.metric else RETURN
        found = rows_of(ROOT / self.train_dir / self.name(seed), metric)
        rows = list({row["env_steps"]: row for row in found}.values())  # the end of a run may write a row twice
        return [
            Point(seed, row["env_steps"], round(row[_TRAIN_S] / 60, 4), round(row[metric], 4))
            for row in (rows[index] for index in kept([row[metric] for row in rows]))
        ]


def _greedy(runs: Runs, seed: int) -> float:
    """The mean return of the newest policy, which takes its most probable actions."""
    how = ["--eval_deterministic=True", f"--max_num_episodes={runs.row.episodes}", "--render=none"]
    played = runs.play("sfactory.enjoy", f"--experiment={runs.name(seed)}", f"--seed={_PLAY_SEED + seed}", *how)
    return float(played["true_objective_mean"])


def _rating(runs: Runs, seed: int) -> float:
    """Elo of the newest policy above its first snapshot."""
    players = runs.play("sfactory.match", runs.name(seed), f"--seed={seed}")["players"]
    return float(players[-1]["rating"] - players[0]["rating"])


PLAYED: Mapping[str, Callable[[Runs, int], float]] = {GREEDY: _greedy, RATING: _rating}


def measure(runs: Runs, seed: int, resumes: bool = False) -> tuple[list[Point], float]:
    """Train a seed: its curve, and the value of the row's metric. Exits if the run fails or is interrupted."""
    done = json_line(run(runs.train(seed, resumes), ROOT, limit_s=_LIMIT_S).stdout)
    if done["env_steps"] < runs.row.steps:
        raise SystemExit(f"error: {runs.name(seed)} ended after {done['env_steps']} of {runs.row.steps} env steps")
    points = runs.points(seed)
    played = PLAYED.get(runs.row.metric)
    return points, points[-1].value if played is None else round(played(runs, seed), 4)


def commit() -> str:
    """The newest commit of what is trained with, and whether that has changes that are in no commit."""
    code = ["--", "sfactory", "envs"]
    newest = subprocess.run(["git", "log", "-1", "--format=%h", *code], cwd=ROOT, capture_output=True, text=True)
    clean = subprocess.run(["git", "diff", "--quiet", "HEAD", *code], cwd=ROOT, capture_output=True).returncode == 0
    return (newest.stdout.strip() or "unknown") + ("" if clean else " with changes")


def facts_of(runs: Runs) -> dict[str, Any]:
    """What the results of a row depend on, and the date."""
    packages = {name: metadata.version(name) for name in _PACKAGES if any(metadata.distributions(name=name))}
    command = shown(runs.train("SEED"))
    played = {} if runs.row.episodes == EPISODES else {"episodes": runs.row.episodes}
    return {**machine(), "packages": packages, "commit": commit(), "command": command, **played}


class Begun(NamedTuple):
    """A run of a seed that can go on. status: of its last session. alone: whether nothing is known to run beside it."""

    status: str
    alone: bool


def begun(runs: Runs, seed: int, facts: Mapping[str, Any]) -> Begun | None:
    """The run of a seed that began with the same facts and has not failed, if any."""
    try:
        known = read_json(runs.begun_path(seed))
        status = str(read_json(ROOT / runs.train_dir / runs.name(seed) / RUN_NAME)["status"])
    except (OSError, ValueError):
        return None
    is_same = all(known.get(name) == facts[name] for name in facts if name not in _OF_SESSION)
    return Begun(status, known["alone"]) if is_same and status != "failed" else None


def kept_of(runs: Runs, facts: Mapping[str, Any], results: Path) -> tuple[dict[str, Any], list[Point]]:
    """What ``results`` has of a row that stays. Says which seeds are of other code or of another machine."""
    known, points = read_row(runs.row.name, results)
    other = [name for name in facts if name not in _OF_SESSION and known.get(name) != facts[name]]
    if not (known and other):
        return known, points
    seeds, does = ", ".join(measurements(known)[-1]["reached"]), "keeps" if runs.add else "drops"
    print(f"{runs.row.name}: {does} seeds {seeds} of {results}, which differ in {', '.join(other)}", flush=True)
    return ({"reached": known["reached"], "earlier": measurements(known)}, points) if runs.add else ({}, [])


def reproduce(runs: Runs, seeds: Sequence[int], results: Path) -> dict[str, float]:
    """Measure the seeds that are not measured yet, and write the row's files to ``results`` after each.

    Returns what all seeds in the files have reached.
    """
    facts = facts_of(runs)
    known, points = kept_of(runs, facts, results)
    facts["alone"] = runs.alone and known.get("alone", True)
    if "alone" in known and not facts["alone"]:  # also where all seeds are measured already
        write_row(runs.row.name, {**known, "alone": False}, points, results)
    reached, of_run = dict(known.get("reached", {})), dict(facts)
    facts |= {name: known[name] for name in ("earlier", "resumed") if name in known}
    for seed in seeds:
        if str(seed) in reached:
            print(f"{runs.row.name}, seed {seed}: measured already", flush=True)
            continue
        before = begun(runs, seed, of_run)
        goes_on = "" if before is None else "goes on; "
        print(f"{runs.row.name}, seed {seed}: {goes_on}see {runs.train_dir / runs.name(seed)}", flush=True)
        if before is not None and before.status != "done":
            facts["resumed"] = [*facts.get("resumed", ()), seed]
        busy = busy_cores(_LOOK_S)
        facts["alone"] = facts["alone"] and busy <= _BUSY_CORES and (before is None or before.alone)
        runs.begun_path(seed).parent.mkdir(parents=True, exist_ok=True)
        write_json(runs.begun_path(seed), {**of_run, "alone": facts["alone"]})
        curve, reached[str(seed)] = measure(runs, seed, before is not None)
        busy = max(busy, busy_cores(_LOOK_S))
        if busy > _BUSY_CORES:
            print(f"{runs.row.name}, seed {seed}: beside other work, which kept {busy:.1f} cores busy", flush=True)
        facts["alone"] = facts["alone"] and busy <= _BUSY_CORES
        points = [*points, *curve]
        write_row(runs.row.name, {**facts, "reached": reached}, points, results)
        runs.begun_path(seed).unlink()
        print(f"{runs.row.name}, seed {seed}: {reached[str(seed)]} after {curve[-1].minutes:.2f} min", flush=True)
    return reached


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help=f"one of {', '.join([*ROWS, *PARITY])}")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on")
    parser.add_argument("--train_dir", type=Path, default=Path("train_dir/rows"))
    parser.add_argument("--publish", action="store_true", help="write the small files to docs/results/rows")
    parser.add_argument("--beside", action="store_true", help="other work runs on the machine: marks the minutes")
    parser.add_argument("--add", action="store_true", help="keep seeds of other code or of another machine")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    rows = {**ROWS, **PARITY}
    if unknown := [name for name in given.row if name not in rows]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(rows)}")
    results = RESULTS if given.publish else ROOT / given.train_dir / "results"
    for name in given.row:
        published, _ = read_row(name, RESULTS)
        runs = Runs(rows[name], given.train_dir, not given.beside, given.add)
        reached = reproduce(runs, range(1, given.seeds + 1), results)
        print(outcome(rows[name], reached, published), flush=True)
    if given.page:
        write_page(PAGE, RESULTS)
    elif not given.row:
        parser.error("name a row, or --page")


if __name__ == "__main__":
    main()
