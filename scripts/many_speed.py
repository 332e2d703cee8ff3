"""Measures what many policies and many agents cost in sampling: paired ratios and a JSON.

    python scripts/many_speed.py --rounds 5 --out docs/performance/many.json
    python scripts/many_speed.py --rounds 10 --seconds 8 --turns 0.5 --only "pole each" --out FILE

Four policies against one on the same envs, each split being one policy's; and envs of many agents against as many envs
of one agent with the same spaces, in agents' steps. Sampling alone, in alternating rounds; or side by side, with
``--turns``, in which each stands still for so many seconds while the other works, and has half of the rate that it has
alone. Poles are as much work for each agent in either form; other envs of agents cost nothing here, so that every
difference shows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import ROOT, benchmark, rate_in, rate_of, rate_text
from scripts.record import machine, table, write_json
from scripts.rounds import alternating, ratio, side_by_side
from scripts.turns import Order, run_in_turns

AGENTS = 4
_COMMON = (
    "--device=cpu --num_workers=2 --rollout=32 --batch_size=16384 --encoder_mlp_layers 64 64 --worker_num_splits=2"
)
_POLE = f"--env=CartPole-v1 --num_envs_per_worker=256 {_COMMON}"
_FREE = "--env=sfactory_envs.synthetic.costfree"
_OF_AGENTS = f'--env_kwargs={{"agents":{AGENTS}}} --num_envs_per_worker=64 {_COMMON}'
_SINGLE = f"{_FREE}:CostFree --num_envs_per_worker=256 {_COMMON}"
_POLES, _OF_POLES = "--env=sfactory_envs.synthetic.poles", f"--num_envs_per_worker=64 {_COMMON}"
# By name: flags of the one that has many, those of the one that has one, and how many steps of agents an env step is.
PAIRS = {
    "4 policies over 1, CartPole-v1": (f"{_POLE} --num_policies=4", _POLE, 1),
    f"{AGENTS} agents (PettingZoo), a pole each, over single envs": (
        f'{_POLES}:Poles --env_kwargs={{"agents":{AGENTS}}} {_OF_POLES}',
        f"{_POLES}:Pole --num_envs_per_worker=256 {_COMMON}",
        AGENTS,
    ),
    f"{AGENTS} agents (lists) over single envs": (f"{_FREE}_agents:CostFreeLists {_OF_AGENTS}", _SINGLE, AGENTS),
    f"{AGENTS} agents (PettingZoo) over single envs": (
        f"{_FREE}_agents:CostFreeParallel {_OF_AGENTS}",
        _SINGLE,
        AGENTS,
    ),
}


class Envs(NamedTuple):
    """Flags of a run, and how many agents its envs have."""

    flags: str
    agents: int


def rates(systems: Mapping[str, Envs], rounds: int, seconds: float, turn_s: float) -> dict[str, list[float]]:
    """Agents' steps per second of each in each round."""
    orders = {
        name: Order(benchmark(system.flags.split(), seconds, "sample"), ROOT, {}) for name, system in systems.items()
    }

    def alone(name: str) -> float:
        return systems[name].agents * rate_of(orders[name].argv)

    def in_turns(names: Sequence[str]) -> dict[str, float]:
        outputs = run_in_turns({name: orders[name] for name in names}, turn_s)
        return {name: systems[name].agents * rate_in(output) for name, output in outputs.items()}

    if turn_s:
        return side_by_side(list(systems), in_turns, rounds, rate_text)
    return alternating({name: partial(alone, name) for name in systems}, rounds, rate_text)


def main() -> int:
    """Measure all in alternating rounds; print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--turns", type=float, default=0.0, metavar="SECONDS", help="side by side, in turns so long")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="pairs whose names hold one of these")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found, rows = {}, []
    chosen = {name: pair for name, pair in PAIRS.items() if any(text in name for text in given.only)}
    if not chosen:
        parser.error(f"--only: no pair has any of these in its name; there are {', '.join(PAIRS)}")
    for name, (many, one, agents) in chosen.items():
        for inference in ("central", "local"):
            layout = f" --inference={inference}"
            systems = {"many": Envs(many + layout, agents), "one": Envs(one + layout, 1)}
            measured = rates(systems, given.rounds, given.seconds, given.turns)
            share = ratio(*(dict(enumerate(measured[system])) for system in ("many", "one")))
            assert share is not None
            found[f"{name}, {inference}"] = {"steps_per_second": measured, "many_over_one": share.to_json()}
            middle = [f"{statistics.median(measured[system]):,.0f}" for system in ("many", "one")]
            rows.append([name, inference, *middle, share.as_share()])
            write_json(given.out, {**machine(), "seconds": given.seconds, "turns": given.turns, "pairs": found})
    print(table(["pair", "inference", "steps/s of many", "of one", "many over one"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
