"""Side by side with Sample Factory and Stable-Baselines3 on the same environment code, in alternating rounds.

The bench folder holds ``envs.py`` (the environments) and the peers' runners; see peers.py. Rounds alternate between the
systems, so that a drift of the machine affects all alike; the result is the ratio of two rates of the same round,
and of these the median (rounds.py).

    python scripts/compare_peers.py cartpole --bench BENCH --peers PEERS --out docs/performance/cartpole_peers.json
    python scripts/compare_peers.py cartpole_gru --bench BENCH --peers PEERS --out docs/performance/gru_peers.json
    python scripts/compare_peers.py breakout --bench BENCH --peers PEERS --out docs/performance/breakout_peers.json
    python scripts/compare_peers.py --summarise docs/performance/cartpole_peers.json    # measures nothing
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import benchmark, folder, rate_of, rate_text, shown
from scripts.peers import SETTINGS, peers_of
from scripts.record import machine, table, write_json
from scripts.rounds import Spread, alternating, medians, ratio
from scripts.workloads import INFERENCES, compared_with_peers

WORKERS = 2  # as the peers have
OURS = "sfactory "

Rates = Mapping[str, Sequence[float]]  # env steps per second of each round, by system


def ratios_of(rates: Rates) -> dict[str, dict[str, dict[str, float]]]:
    """By our layouts and then by peer: how many times as fast, round by round."""
    by_round = {name: dict(enumerate(values, 1)) for name, values in rates.items()}
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    for ours in filter(_is_ours, rates):
        spreads = {name: ratio(by_round[ours], by_round[name]) for name in rates if not _is_ours(name)}
        ratios[ours] = {name: spread.to_json() for name, spread in spreads.items() if spread is not None}
    return ratios


def result_of(rates: Rates) -> dict[str, Any]:
    """The recorded result of the rates."""
    return {"env_steps_per_second": rates, "medians": medians(rates), "ratios": ratios_of(rates)}


def report_text(result: Mapping[str, Any]) -> str:
    """The table of docs/performance.md: all rounds, and how much faster each of our layouts is than each peer."""
    ratios: Mapping[str, Mapping[str, Mapping[str, float]]] = result["ratios"]
    rows = []
    for name, rates in result["env_steps_per_second"].items():
        faster = ["" if _is_ours(name) else Spread.from_json(ratios[ours][name]).as_times() for ours in ratios]
        rounds = " · ".join(f"{rate:,.0f}" for rate in rates)
        rows.append([name, rounds, f"**{result['medians'][name]:,.0f}**", *faster])
    return table(["system", "rounds", "median", *(f"{ours} is faster by" for ours in ratios)], rows)


def _is_ours(name: str) -> bool:
    return name.startswith(OURS)


def measured(workload: str, bench: Path, peers: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Run the rounds."""
    settings = compared_with_peers(workload, bench)
    ours = {f"{OURS}{name}": benchmark(settings.arguments(name, WORKERS), seconds) for name in INFERENCES}
    theirs = peers_of(workload, peers)
    systems: dict[str, Callable[[], float]] = {name: partial(rate_of, command, bench) for name, command in ours.items()}
    systems |= {name: partial(peer.rate, bench) for name, peer in theirs.items()}
    rates = alternating(systems, rounds, rate_text)
    commands = ours | {name: peer.command for name, peer in theirs.items()}
    lines = {name: shown(command, bench, peers) for name, command in commands.items()}
    return {**machine(), **result_of(rates), "commands": lines}


def command_line() -> argparse.Namespace:
    """What to measure, or which file to summarise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=tuple(SETTINGS), nargs="?")
    parser.add_argument("--bench", type=folder)
    parser.add_argument("--peers", type=folder)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each of our measurements")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summarise", type=Path, metavar="FILE", help="compute the ratios in it again from its rounds")
    given = parser.parse_args()
    if given.summarise is None and None in (given.workload, given.bench, given.peers):
        parser.error("a workload, --bench and --peers are needed (or --summarise)")
    return given


def main() -> None:
    """Run the rounds or take those of a file, print the table, write the JSON."""
    given = command_line()
    if given.summarise is None:
        result = measured(given.workload, given.bench, given.peers, given.rounds, given.seconds)
    else:
        kept = json.loads(given.summarise.read_text())
        result = {**kept, **result_of(kept["env_steps_per_second"])}
    print(report_text(result))
    out = given.out or given.summarise
    if out is not None:
        write_json(out, result)


if __name__ == "__main__":
    main()
