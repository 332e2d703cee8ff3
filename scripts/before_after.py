"""Compares the throughput of this checkout and of another, or of two settings: paired ratios, their confidence, a JSON.

    git worktree add /tmp/before COMMIT
    python scripts/before_after.py --before /tmp/before --rounds 10 --out docs/performance/guards.json
    python scripts/before_after.py --before /tmp/before --only "full central" --out FILE -- --env=Acrobot-v1
    python scripts/before_after.py --flags_before=--env=Hopper-v5 --flags_after=--env=envpool:Hopper-v5 --only env \
        --out FILE -- --num_workers=2
    python scripts/before_after.py --torchrun_after --only "full central" "full local" --out FILE

Both run the same flags with the same packages, one after the other. ``--flags_before`` and ``--flags_after`` are flags
of one side, in place of the default ones. With ``--torchrun_after`` the second one is a rank that torchrun starts. The
measurement "env" is of the environments alone, with random actions, in as many processes as actors. With ``--turns``
both run side by side and pause in turn, for machines that drift within seconds. The report is the mean of the ratios
after/before, round by round, and its 95% confidence interval (Student's t): 1.00 is as fast as before.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import ROOT, TORCHRUN, benchmark, folder, rate_in, rate_text, run, split_flags
from scripts.record import machine, table, write_json
from scripts.rounds import alternating, paired, side_by_side
from scripts.turns import Order, run_in_turns

FLAGS = ["--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=256", "--rollout=32", "--batch_size=16384"]
FLAGS += ["--encoder_mlp_layers", "64", "64", "--device=cpu"]
# By name: stage and layout.
BY_DEFAULT = {f"{stage} {layout}": (stage, layout) for stage in ("sample", "full") for layout in ("central", "local")}
MEASUREMENTS = {**BY_DEFAULT, "env": ("env", "local")}
CONFIDENCE = 0.95


class Side(NamedTuple):
    """What is compared: the code in a folder, all flags, and the command that starts it, if it is not the shell."""

    code: Path
    flags: list[str]
    under: Sequence[str] = ()


def confidence_of_mean(values: list[float]) -> tuple[float, float, float]:
    """Mean of at least two numbers, and the bounds between which their true mean lies with CONFIDENCE."""
    degrees = len(values) - 1
    # The quantile of Student's t, from a million draws: to a fraction of a percent, which is all that is read from it.
    quantile = float(np.quantile(np.abs(np.random.default_rng(0).standard_t(degrees, 1_000_000)), CONFIDENCE))
    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - quantile * error, mean + quantile * error


def order(side: Side, seconds: float, stage: str, place: Path) -> Order:
    """The command of the benchmark with the code of a side, not the installed code."""
    # A folder of its own, because envs/ is to be found as sfactory_envs, and Python looks where it stands first.
    (place / "sfactory").symlink_to(side.code / "sfactory")
    (place / "sfactory_envs").symlink_to(side.code / "envs")
    paths = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return Order([*side.under, *benchmark(side.flags, seconds, stage)], place, {"PYTHONPATH": paths})


def rate(side: Side, seconds: float, stage: str) -> float:
    """Env steps per second of a side."""
    with tempfile.TemporaryDirectory() as place:
        argv, cwd, environment = order(side, seconds, stage, Path(place))
        return rate_in(run(argv, cwd, environment=environment))


def rates_in_turns(sides: Mapping[str, Side], seconds: float, stage: str, turn_s: float) -> dict[str, float]:
    """Env steps per second of each, in its turns."""
    with contextlib.ExitStack() as stack:
        places = {when: Path(stack.enter_context(tempfile.TemporaryDirectory())) for when in sides}
        orders = {when: order(side, seconds, stage, places[when]) for when, side in sides.items()}
        return {when: rate_in(output) for when, output in run_in_turns(orders, turn_s).items()}


def measured(
    sides: Mapping[str, Side], stage: str, rounds: int, seconds: float, turn_s: float
) -> dict[str, list[float]]:
    """Rates of each side in each round."""
    if not turn_s:
        systems = {when: partial(rate, side, seconds, stage) for when, side in sides.items()}
        return alternating(systems, rounds, rate_text)

    def rates(names: Sequence[str]) -> dict[str, float]:
        return rates_in_turns({when: sides[when] for when in names}, seconds, stage, turn_s)

    return side_by_side(list(sides), rates, rounds, rate_text)


def main() -> int:
    """Measure all in alternating rounds; print a table."""
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=folder, default=ROOT, help="folder of the other checkout")
    for option in ("--flags_before", "--flags_after"):
        parser.add_argument(option, type=shlex.split, default=[], metavar="FLAGS", help="of this side alone")
    parser.add_argument("--torchrun_after", action="store_true")
    parser.add_argument("--only", choices=MEASUREMENTS, nargs="+", default=list(BY_DEFAULT))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--turns", type=float, default=0.0, metavar="SECONDS", help="side by side, in turns so long")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(own)
    if given.rounds < 2:
        parser.error("--rounds must be at least 2: one ratio has no spread")
    own_flags = {"flags_before": given.flags_before, "flags_after": given.flags_after}
    if given.before == ROOT and not any(own_flags.values()) and not given.torchrun_after:
        parser.error("nothing to compare: give --before=FOLDER, or --flags_before and --flags_after")
    flags, found, rows = flags or ([] if any(own_flags.values()) else FLAGS), {}, []
    under = (*TORCHRUN, "--nproc-per-node=1") if given.torchrun_after else ()
    for name in given.only:
        stage, layout = MEASUREMENTS[name]
        all_flags = [*flags, f"--inference={layout}"]
        sides = {
            "before": Side(given.before, [*given.flags_before, *all_flags]),
            "after": Side(ROOT, [*given.flags_after, *all_flags], under),
        }
        rates = measured(sides, stage, given.rounds, given.seconds, given.turns)
        ratios = paired(*(dict(enumerate(rates[when])) for when in ("after", "before")))
        mean, low, high = confidence_of_mean(list(ratios.values()))
        found[name] = {"steps_per_second": rates, "mean_ratio": mean, "low": low, "high": high}
        print(f"{name}: after/before {mean:.3f} ({low:.3f} to {high:.3f})", flush=True)
        middle = [f"{statistics.median(rates[when]):,.0f}" for when in ("before", "after")]
        rows.append([name, *middle, f"{mean:.3f}", f"{low:.3f} to {high:.3f}"])
        facts: dict[str, object] = {"rounds": given.rounds, "seconds": given.seconds, "turns": given.turns}
        facts |= {"flags": flags, **own_flags, "torchrun_after": given.torchrun_after, "confidence": CONFIDENCE}
        write_json(given.out, {**machine(), **facts, "measurements": found})
    print(table(["measurement", "steps/s before", "after", "mean ratio", f"{CONFIDENCE:.0%} confidence"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
