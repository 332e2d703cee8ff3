"""Predicts the throughput of ranks from that of one: waiting for the slowest rank, and for the sums over all.

    python scripts/scaling_model.py
    python scripts/scaling_model.py --rate=RATE_OF_ONE --cores=2 --cores_of_rank=1 --ranks 1 2 4 --spread=0.05

``--rate``: env steps per second of one rank on the cores that it will have, alone on the machine. Without flags it
prints the curve of DD-PPO (Wijmans et al., 2020: 107 times one GPU with 128), by which the spread is fitted, and what
crosses the network is left out, as that was little there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import NormalDist

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.record import table

PUBLISHED = {128: 107.0}  # GPUs: times the rate of one
GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def waiting(ranks: int, spread: float) -> float:
    """By which share the slowest of ``ranks`` takes longer than the mean. ``spread``: of an update, deviation by mean.

    Times are taken to be normal; Blom's formula for the mean of the largest of so many.
    """
    return spread * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def sum_s(ranks: int, gradient_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Seconds of a sum of gradients over a ring, in which each rank sends twice its bytes, and two short sums."""
    steps = 2 * (ranks - 1)
    return steps / ranks * gradient_bytes / bytes_per_s + 3 * steps * latency_s


def speedup(ranks: int, spread: float, update_s: float, in_sums_s: float, per_core: float = 1.0) -> float:
    """How many times the rate of one rank; ``per_core``: the share of its cores that a rank has to itself."""
    return ranks * per_core / (1 + waiting(ranks, spread) + per_core * in_sums_s / update_s)


def fitted_spread() -> float:
    """The spread with which the model meets the published figure."""
    ((ranks, times),) = PUBLISHED.items()
    return (ranks / times - 1) / waiting(ranks, 1.0)


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1.0, help="env steps per second of one rank")
    parser.add_argument("--ranks", type=int, nargs="+", default=GPUS)
    parser.add_argument("--spread", type=float, default=fitted_spread(), help="of the time of an update")
    parser.add_argument("--batch_size", type=int, default=256, help="env steps of an update and rank")
    parser.add_argument("--gradient_bytes", type=float, default=0.0, help="4 for each weight")
    parser.add_argument(
        "--bytes_per_s", type=float, default=1.25e9, help="of the network, one way; 1.25e9 is 10 Gbit/s"
    )
    parser.add_argument("--latency_s", type=float, default=0.0, help="of a message")
    parser.add_argument("--cores", type=int, default=0, help="of the machine that all ranks share; 0: each has its own")
    parser.add_argument("--cores_of_rank", type=int, default=1, help="that --rate was measured on")
    given = parser.parse_args()
    rows = []
    for ranks in given.ranks:
        per_core = min(1.0, given.cores / (ranks * given.cores_of_rank)) if given.cores else 1.0
        in_sums = sum_s(ranks, given.gradient_bytes, given.bytes_per_s, given.latency_s)
        times = speedup(ranks, given.spread, given.batch_size / given.rate, in_sums, per_core)
        rows.append([ranks, f"{times * given.rate:,.1f}", f"{times / ranks:.0%}", PUBLISHED.get(ranks, "")])
    print(table(["ranks", "env steps/s", "of ideal", "published"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
