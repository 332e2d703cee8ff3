"""Measures what replaced workers cost: env steps of runs with and without kills, their ratio, and a JSON.

    python scripts/disturbed.py --rounds 3 --out docs/performance/disturbed.json
    python scripts/disturbed.py --seconds 30 --every 5 --out disturbed.json -- --env=CartPole-v1 --inference=local

Pairs of runs have the same length; in one of them the actors are killed (SIGKILL) in turn, one every so many seconds.
Trained env steps are compared round by round. Wall-clock time since the first env step counts, restarts included. With
``--at_least`` a smaller share is exit code 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import TRAIN, Command, json_line
from scripts.record import machine, write_json
from scripts.rounds import alternating, ratio
from sfactory.layout import ACTORS

ENDLESS = 10**12
START_S, END_S = 120.0, 60.0
FLAGS = ("--env=CartPole-v1", "--device=cpu", "--num_workers=2", "--num_envs_per_worker=64", "--with_tensorboard=False")


def trained(flags: list[str], seconds: float, every: float) -> dict[str, Any]:
    """Train for so long on the wall's clock, killing one actor after another ``every`` seconds (0: none).

    Returns the steps learned from, kills, replaced workers, and how often all processes were restarted.
    """
    # If this script is killed, the run ends by itself; else a signal ends it before.
    ends = [f"--train_for_env_steps={ENDLESS}", f"--train_for_seconds={seconds + START_S + END_S:g}"]
    with tempfile.TemporaryDirectory() as folder:
        argv = [*TRAIN, *flags, *ends, "--max_worker_restarts=1000", f"--train_dir={folder}"]
        with Command(argv, Path(folder)) as command:
            command.wait_for("first env step", START_S)
            kills = killed_within(command, seconds, every)
            command.send(signal.SIGINT)
            code = command.wait(END_S)
            if code != 128 + signal.SIGINT:
                raise command.failure(f"ended with {code}")
            if every and not kills:
                raise command.failure("was over before a kill")
            log, steps = command.stderr, json_line(command.stdout)["env_steps"]
    return {
        "env_steps": steps,
        "kills": kills,
        "replaced": log.count("; replaced ("),
        "restarts": log.count("restart from the checkpoint"),
    }


def killed_within(command: Command, seconds: float, every: float) -> int:
    """Let a run train for so long, or to its end, and kill an actor ``every`` seconds (0: none); how many were."""
    kills, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and command.runs_on(min(every or left, left)):
        if time.monotonic() < end:
            kills += killed(command.living(), kills)
    return kills


def killed(processes: Mapping[int, str], turn: int) -> int:
    """Kill the next actor; returns the number of killed ones, 0 if there is none or it has just ended.

    processes: name by pid.
    """
    actors = sorted((name, pid) for pid, name in processes.items() if name.startswith(ACTORS))
    if not actors:
        return 0
    try:
        os.kill(actors[turn % len(actors)][1], signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def main() -> int:
    """Measure in alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0, help="of training, in each run")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--at_least", type=float, default=0.0, help="share of the steps of the run left alone, median")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("flags", nargs="*", default=FLAGS, help="of both runs, after --")
    given = parser.parse_args()
    flags = list(given.flags)
    systems = {
        "left alone": partial(trained, flags, given.seconds, 0.0),
        "disturbed": partial(trained, flags, given.seconds, given.every),
    }
    found = alternating(systems, given.rounds, lambda run: f"{run['env_steps']:,} env steps, {run['kills']} kills")
    left_alone, disturbed = (
        {number: float(run["env_steps"]) for number, run in enumerate(found[name])} for name in systems
    )
    spread = ratio(disturbed, left_alone)
    assert spread is not None
    facts = {"seconds": given.seconds, "every_s": given.every, "flags": flags}
    write_json(given.out, {**machine(), **facts, "runs": found, "ratio": spread.to_json()})
    print(f"disturbed over left alone: {spread.as_share()}")
    if spread.median < given.at_least:
        print(f"error: less than {given.at_least:.0%} of the run left alone", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
