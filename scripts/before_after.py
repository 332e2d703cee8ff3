"""Room: throughput of this checkout against another's. In: a folder. Out: paired ratios with their confidence; a JSON.

    git worktree add /tmp/before COMMIT
    python scripts/before_after.py --before /tmp/before --rounds 10 --out docs/performance/guards.json
    python scripts/before_after.py --before /tmp/before --only "full central" --out FILE -- --env=Acrobot-v1

Both run the same flags with the same packages, in turn. What is told is the mean of the ratios after/before, round by
round, and the interval in which the true mean lies with 95% confidence (Student's t): 1.00 is as fast as before.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.arguments import folder, split_flags
from scripts.command import ROOT, json_line, run
from scripts.markdown import table
from scripts.ratios import paired
from scripts.record import machine, write_json
from scripts.rounds import alternating
from scripts.trainer import benchmark

FLAGS = ["--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=256", "--rollout=32", "--batch_size=16384"]
FLAGS += ["--encoder_mlp_layers", "64", "64", "--device=cpu"]
# By name: stage and layout.
MEASUREMENTS = {f"{stage} {layout}": (stage, layout) for stage in ("sample", "full") for layout in ("central", "local")}
CONFIDENCE = 0.95


def confidence_of_mean(values: list[float]) -> tuple[float, float, float]:
    """Mean of at least two numbers, and the bounds between which their true mean lies with CONFIDENCE."""
    degrees = len(values) - 1
    # The quantile of Student's t, from a million draws: to a fraction of a percent, which is all that is read from it.
    quantile = float(np.quantile(np.abs(np.random.default_rng(0).standard_t(degrees, 1_000_000)), CONFIDENCE))
    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - quantile * error, mean + quantile * error


def rate(code: Path, flags: list[str], seconds: float, stage: str) -> float:
    """Env steps per second of the code in a folder, whatever is installed."""
    with tempfile.TemporaryDirectory() as place:
        # A folder of its own, because envs/ is to be found as sfactory_envs, and Python looks where it stands first.
        (Path(place) / "sfactory").symlink_to(code / "sfactory")
        (Path(place) / "sfactory_envs").symlink_to(code / "envs")
        paths = os.pathsep.join([place, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        output = run(benchmark(flags, seconds, stage), Path(place), environment={"PYTHONPATH": paths})
    return float(json_line(output.stdout)["env_steps_per_second"])


def main() -> int:
    """Measure all in alternating rounds; print a table."""
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=folder, required=True, help="folder of the other checkout")
    parser.add_argument("--only", choices=MEASUREMENTS, nargs="+", default=list(MEASUREMENTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(own)
    if given.rounds < 2:
        parser.error("--rounds must be at least 2: one ratio has no spread")
    flags, found, rows = flags or FLAGS, {}, []
    for name in given.only:
        stage, layout = MEASUREMENTS[name]
        all_flags = [*flags, f"--inference={layout}"]
        systems = {
            when: partial(rate, code, all_flags, given.seconds, stage)
            for when, code in (("before", given.before), ("after", ROOT))
        }
        rates = alternating(systems, given.rounds, lambda value: f"{value:,.0f} steps/s")
        ratios = paired(*(dict(enumerate(rates[when])) for when in ("after", "before")))
        mean, low, high = confidence_of_mean(list(ratios.values()))
        found[name] = {"steps_per_second": rates, "mean_ratio": mean, "low": low, "high": high}
        print(f"{name}: after/before {mean:.3f} ({low:.3f} to {high:.3f})", flush=True)
        middle = [f"{statistics.median(rates[when]):,.0f}" for when in ("before", "after")]
        rows.append([name, *middle, f"{mean:.3f}", f"{low:.3f} to {high:.3f}"])
        facts = {"rounds": given.rounds, "seconds": given.seconds, "flags": flags, "confidence": CONFIDENCE}
        write_json(given.out, {**machine(), **facts, "measurements": found})
    print(table(["measurement", "steps/s before", "after", "mean ratio", f"{CONFIDENCE:.0%} confidence"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
