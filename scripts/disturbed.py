"""Room: what replaced workers cost. In: flags of a run. Out: env steps with and without kills, their ratio; a JSON.

    python scripts/disturbed.py --rounds 3 --out docs/performance/disturbed.json
    python scripts/disturbed.py --seconds 30 --every 5 --out disturbed.json -- --env=CartPole-v1 --inference=local

Pairs of runs of the same length, one left alone, one in which an actor is killed (SIGKILL) every so many seconds, in
turn. Env steps learned from are compared round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.proc import MARK, marked
from scripts.ratios import ratio
from scripts.record import machine, write_json
from scripts.rounds import alternating
from scripts.trainer import TRAIN

ACTOR = "sf-actor-"
ENDLESS = 10**12
FLAGS = ("--env=CartPole-v1", "--device=cpu", "--num_workers=2", "--num_envs_per_worker=64", "--with_tensorboard=False")


def trained(flags: list[str], seconds: float, every: float) -> dict[str, Any]:
    """Train for so long, killing one actor after another ``every`` seconds (0: none); steps, and kills."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        limits = [f"--train_for_seconds={seconds:g}", f"--train_for_env_steps={ENDLESS}"]
        command = [*TRAIN, *flags, *limits, "--max_worker_restarts=1000"]
        process = subprocess.Popen(
            [*command, f"--train_dir={folder}"],
            env={**os.environ, MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        kills = 0
        while True:
            try:
                out, _ = process.communicate(timeout=every or None)
                break
            except subprocess.TimeoutExpired:
                actors = sorted((name, pid) for pid, name in marked(mark).items() if name.startswith(ACTOR))
                if actors:
                    os.kill(actors[kills % len(actors)][1], signal.SIGKILL)
                    kills += 1
    if every and not kills:
        raise SystemExit(f"error: the run was over before a kill: {shlex.join(command)}")
    if process.returncode:
        raise SystemExit(f"error: exit code {process.returncode}: {shlex.join(command)}")
    return {"env_steps": json.loads(out.splitlines()[-1])["env_steps"], "kills": kills}


def main() -> int:
    """Measure in alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0, help="of training, in each run")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
