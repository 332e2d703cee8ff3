"""Room: what replaced workers cost. In: flags of a run. Out: env steps with and without kills, their ratio; a JSON.

    python scripts/disturbed.py --rounds 3 --out docs/performance/disturbed.json
    python scripts/disturbed.py --seconds 30 --every 5 --out disturbed.json -- --env=CartPole-v1 --inference=local

Pairs of runs of the same length, one left alone, one in which an actor is killed (SIGKILL) every so many seconds, in
turn. Env steps learned from are compared round by round. The time is that on the wall since the first env step: what
passes while all processes start anew is counted, too. With ``--at_least`` a smaller share is exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
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
START_S, END_S = 120.0, 60.0
FLAGS = ("--env=CartPole-v1", "--device=cpu", "--num_workers=2", "--num_envs_per_worker=64", "--with_tensorboard=False")


def trained(flags: list[str], seconds: float, every: float) -> dict[str, Any]:
    """Train for so long on the wall's clock, killing one actor after another ``every`` seconds (0: none).

    Tells steps that were learned from, kills, workers that were replaced, and how often all processes started anew.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        command = [*TRAIN, *flags, f"--train_for_env_steps={ENDLESS}", "--max_worker_restarts=1000"]
        told = Path(folder, "stderr")
        with told.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, f"--train_dir={folder}"],
                env={**os.environ, MARK: mark},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        wait_for_the_first_step(process, told)
        kills, end = 0, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(every or left, left))
                break
            if time.monotonic() < end:
                kills += killed(mark, kills)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=END_S)
        log = told.read_text()
    if every and not kills:
        raise SystemExit(f"error: the run was over before a kill: {shlex.join(command)}")
    if process.returncode != 128 + signal.SIGINT:
        raise SystemExit(f"error: exit code {process.returncode}: {shlex.join(command)}\n{log[-4000:]}")
    steps = json.loads(out.splitlines()[-1])["env_steps"]
    return {"env_steps": steps, "kills": kills, "replaced": log.count("; replaced ("), "anew": log.count("start anew")}


def wait_for_the_first_step(process: subprocess.Popen[str], told: Path) -> None:
    """Return once ``told`` tells of it; exits if it never does."""
    end = time.monotonic() + START_S
    while "first env step" not in told.read_text():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise SystemExit(f"error: no first env step\n{told.read_text()[-4000:]}")
        time.sleep(0.02)


def killed(mark: str, turn: int) -> int:
    """Kill the actor whose turn it is; how many were killed, which is none while none is there."""
    actors = sorted((name, pid) for pid, name in marked(mark).items() if name.startswith(ACTOR))
    if not actors:
        return 0
    os.kill(actors[turn % len(actors)][1], signal.SIGKILL)
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
