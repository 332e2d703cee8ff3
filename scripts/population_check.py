"""Population-based training against runs without it, where the best learning rate lies far from the start.

    python scripts/population_check.py --out docs/results/population.json --runs population_runs

CartPole-v1, where a rate of START learns next to nothing in the steps that a policy has, and BEST is about the best. Of
each seed three runs of four policies with the same steps each: population-based training from START, four policies that
keep START, four that keep BEST. Written are the last mean returns of all policies; the runs stay in ``--runs``, where
``python -m sfactory.plot population`` draws them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import TRAIN, run
from scripts.record import machine, table, write_json

POLICIES = 4
START, BEST = 1e-5, 1e-3
_SIZES = "--num_workers=2 --num_envs_per_worker=64 --rollout=32 --batch_size=1024 --encoder_mlp_layers 64 64"
_TURNS = "--pbt_start_mutation=20000 --pbt_period_env_steps=20000 --pbt_mutation_rate=0.5 --pbt_replace_fraction=0.25"
_FACTORS = '--pbt_perturb_min=1.5 --pbt_perturb_max=4 --pbt_hyperparameters={"learning_rate":{"min":1e-6,"max":1e-2}}'
_COMMON = f"--env=CartPole-v1 --device=cpu --num_policies={POLICIES} --stats_avg=100 --with_tensorboard=False {_SIZES}"
WAYS = {
    "population": f"--learning_rate={START:g} --with_pbt=True {_TURNS} {_FACTORS}",
    "start, kept": f"--learning_rate={START:g}",
    "best, kept": f"--learning_rate={BEST:g}",
}


def last_row(run_dir: Path) -> dict[str, Any]:
    """The last row of metrics that has every policy."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return next(row for row in reversed(rows) if all(row.get(_name(policy)) is not None for policy in range(POLICIES)))


def _name(policy: int) -> str:
    return f"policy_{policy}/train/episode_return_mean"


def returns_of(way: str, seed: int, steps: int, runs: Path) -> list[float]:
    """Train all policies in one way; their last mean returns."""
    name = f"{way.replace(', ', '_')}_{seed}"
    own = [f"--seed={seed}", f"--train_for_env_steps={steps}", f"--train_dir={runs}", f"--experiment={name}"]
    run([*TRAIN, *_COMMON.split(), *WAYS[way].split(), *own, "--restart_behavior=restart"])
    row = last_row(runs / name)
    return [round(float(row[_name(policy)]), 1) for policy in range(POLICIES)]


def main() -> int:
    """Train in all ways with all seeds; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps of each policy")
    parser.add_argument("--runs", type=Path, default=Path("population_runs"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found: dict[str, dict[int, list[float]]] = {way: {} for way in WAYS}
    for seed in given.seeds:
        for way in WAYS:
            found[way][seed] = returns_of(way, seed, given.steps, given.runs.absolute())
            print(f"seed {seed}, {way}: {found[way][seed]}", flush=True)
    write_json(given.out, {**machine(), "steps": given.steps, "start": START, "best": BEST, "returns": found})
    rows = [[way, *(f"{statistics.mean(found[way][seed]):.0f}" for seed in given.seeds)] for way in WAYS]
    print(table(["learning rate", *(f"seed {seed}" for seed in given.seeds)], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
