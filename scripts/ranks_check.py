"""Whether two ranks learn CartPole as one does with the double batch, and keep equal weights.

    python scripts/ranks_check.py --out docs/results/ranks.json

Of each seed one run of two ranks that torchrun starts, and one of a rank alone with the double batch and as many envs,
for the same env steps. A rank sees its own episodes alone, so its mean is over half as many of them. Written are the
env steps at which the mean return first was at least 475, and the updates up to which both ranks had the same checksum
of their weights after each dataset.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import ROOT, TORCHRUN, TRAIN, json_line, run
from scripts.record import machine, table, write_json

SOLVED = 475
BATCH = 512
LIMIT_S = 3600.0
FLAGS = "--env=CartPole-v1 --device=cpu --with_tensorboard=False --experiment_summaries_interval=1"
# The hook and the variable of the folder that it writes to.
HOOK, FOLDER = "tests.support.hooks:write_checksum", "SFACTORY_TEST_FOLDER"


def sums(folder: Path, rank: int) -> dict[int, str]:
    """Checksum of the weights by update, as the rank has written them."""
    lines = (folder / f"sums-{rank}").read_text().splitlines()
    return {int(update): checksum for update, checksum in map(str.split, lines)}


def solved_at(run_dir: Path) -> int | None:
    """Env steps of the first row whose mean return is at least SOLVED."""
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return next((row["env_steps"] for row in rows if (row.get("train/episode_return_mean") or 0) >= SOLVED), None)


def train(ranks: int, seed: int, steps: int, folder: Path) -> dict[str, object]:
    """Train in one or two ranks."""
    own = [f"--seed={seed}", f"--train_for_env_steps={steps}", f"--batch_size={2 * BATCH // ranks}"]
    own += [f"--num_workers={2 // ranks}", f"--stats_avg={100 // ranks}"]
    own += [f"--train_dir={folder}", "--experiment=run", f"--after_train_step={HOOK}"]
    under = (*TORCHRUN, f"--nproc-per-node={ranks}") if ranks > 1 else ()
    output = run([*under, *TRAIN, *FLAGS.split(), *own], ROOT, environment={FOLDER: str(folder)}, limit_s=LIMIT_S)
    done = json_line(output.stdout)
    found: dict[str, object] = {"best_return": done["best_episode_return_mean"], "env_steps": done["env_steps"]}
    found |= {"updates": done["updates"], "solved_at": solved_at(folder / "run")}
    if ranks > 1:
        first, second = (sums(folder, rank) for rank in range(ranks))
        found["equal_until_update"] = max(first) if first == second else None
    return found


def main() -> int:
    """Train with all seeds; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for seed in given.seeds:
        for ranks in (2, 1):
            with tempfile.TemporaryDirectory() as folder:
                found[f"{ranks} rank{'s'[: ranks > 1]}, seed {seed}"] = train(ranks, seed, given.steps, Path(folder))
            write_json(given.out, {**machine(), "steps": given.steps, "batch_of_a_rank": BATCH, "runs": found})
    names = ["solved_at", "best_return", "env_steps", "updates", "equal_until_update"]
    print(table(["run", *names], [[name, *(values.get(key, "") for key in names)] for name, values in found.items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
