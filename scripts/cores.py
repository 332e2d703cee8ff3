"""Measures updates per second of the recurrent cores, forward and backward over a rollout; prints a table.

    python scripts/cores.py --steps 128

One thread computes, and its CPU time is measured, so that other programs matter little. Cores take turns, so that a
drift of the machine affects all alike.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.record import table
from scripts.rounds import Spread, alternating
from sfactory.config.schema import ModelConfig
from sfactory.model.rnn import Core
from sfactory.model.tower import make_core

CORES = ("gru", "lstm", "mingru")
SIZES = (64, 256, 512)


def updates_per_second(core: Core, size: int, steps: int, rows: int, seconds: float) -> float:
    """Forward and backward passes over [steps, rows, size], with resets."""
    x = torch.randn(steps, rows, size, requires_grad=True)
    state = torch.zeros(rows, core.state_size)
    is_first = torch.rand(steps, rows) < 0.01
    count, start = -1, time.process_time()
    while time.process_time() - start < seconds:
        y, _ = core.sequence(x, state, is_first)
        y.square().mean().backward()
        count += 1
        if not count:  # the first pass allocates
            start = time.process_time()
    return count / (time.process_time() - start)


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=128, help="T")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for size in SIZES:
        cores = {name: make_core(size, ModelConfig(rnn_type=name, rnn_size=size)) for name in CORES}  # type: ignore[arg-type]
        found = alternating(
            {
                name: partial(updates_per_second, core, size, flags.steps, flags.rows, flags.seconds)
                for name, core in cores.items()
            },
            flags.rounds,
        )
        medians = [f"{Spread.of(found[name]).median:.3g}" for name in CORES]
        ratios = Spread.of(new / old for new, old in zip(found["mingru"], found["gru"], strict=True))
        lines.append([str(size), *medians, f"{ratios.median:.2f} times ({ratios.least:.2f}-{ratios.most:.2f})"])
    print(table(["size", "GRU", "LSTM", "minGRU", "minGRU against GRU"], lines))


if __name__ == "__main__":
    main()
