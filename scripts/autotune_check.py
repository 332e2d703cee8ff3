"""Compares autotune with a search by hand: a JSON, a verdict and an exit code.

    python scripts/autotune_check.py --out docs/performance/autotune.json
    python scripts/autotune_check.py --envs CartPole-v1 --seconds 2 --pairs 3 --out autotune.json

``--autotune=True`` gets only the environment and ``--device=cpu``; other flags have the defaults of its family. The
search by hand is a grid over workers, envs, splits and the layout of inference, with the maximum number of envs that
autotune may choose (see docs/decisions/0019-autotune.md) and with half of it. Each setting of the grid is measured
once, for ``--glance`` seconds; the best two and autotune's choice are then measured in alternating rounds. The result
is the ratio to the better of the two, round by round. Takes about 8 minutes for each environment. Exits with 1 if
autotune's median ratio is below 0.9 for any environment.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import ROOT, benchmark, rate_of, rate_text, run, shown
from scripts.record import machine, table, write_json
from scripts.rounds import Spread, alternating, medians, ratio
from sfactory.benchmark.autotune import MOST_DATASETS_A_ROUND
from sfactory.config.resolve import read_command_line
from sfactory.config.schema import Config
from sfactory.layout import Layout

ENVS = ("CartPole-v1", "atari_breakout")
WORKERS, SPLITS, INFERENCES = (1, 2, 4), (1, 2), ("local", "central")
LEAST = 0.9  # of the best setting by hand
AUTOTUNED, FIRST, SECOND = "autotuned", "best by hand", "second by hand"
TUNED = re.compile(r"autotune: the same without it: (.*)")

Rates = Mapping[str, Sequence[float]]  # env steps per second of each round, by whose settings


@dataclass(frozen=True)
class Setting:
    """A setting of the grid. ``envs``: of each worker."""

    inference: str
    workers: int
    envs: int
    splits: int

    @property
    def flags(self) -> list[str]:
        """As on a command line."""
        return [
            f"--inference={self.inference}",
            f"--num_workers={self.workers}",
            f"--num_envs_per_worker={self.envs}",
            f"--worker_num_splits={self.splits}",
        ]


def empty(env: str) -> list[str]:
    """The empty configuration."""
    return [f"--env={env}", "--device=cpu"]


def most_envs(config: Config) -> int:
    """The maximum number of envs of all workers that autotune may choose."""
    layout = Layout.plan(config.sampling, config.learner, "local")
    return int(MOST_DATASETS_A_ROUND * layout.dataset_rows)


def grid(most: int) -> list[Setting]:
    """All settings by hand with ``most`` envs, and with half of them. Splits make no difference to local inference."""
    every = itertools.product(INFERENCES, (most, most // 2), WORKERS, SPLITS)
    settings = [Setting(inference, workers, envs // workers, splits) for inference, envs, workers, splits in every]
    return [
        setting
        for setting in settings
        if setting.envs and setting.envs % setting.splits == 0 and (setting.inference, setting.splits) != ("local", 2)
    ]


def chosen(stderr: str, tuning: Sequence[str]) -> list[str]:
    """The flags that autotune has chosen: those of the printed command that ``tuning`` did not have."""
    command = TUNED.search(stderr)
    if command is None:
        raise SystemExit(f"error: autotune printed no command:\n{stderr[-2000:]}")
    flags = [word for word in shlex.split(command[1]) if word.startswith("--")]
    return [flag for flag in flags if flag not in tuning]


def verdict(rates: Rates) -> dict[str, Any]:
    """Autotune's settings against the better of the two by hand."""
    middle = medians(rates)
    best = max((FIRST, SECOND), key=lambda name: middle[name])
    by_round = {name: dict(enumerate(values, 1)) for name, values in rates.items()}
    found = ratio(by_round[AUTOTUNED], by_round[best])
    assert found is not None
    return {
        "env_steps_per_second": rates,
        "medians": middle,
        "compared_with": best,
        "ratio": found.to_json(),
        "within_bounds": found.median >= LEAST,
    }


def checked(
    env: str, seconds: float, glance: float, pairs: int, measure: Callable[[list[str]], float]
) -> dict[str, Any]:
    """Tune, look at the grid, and compare. ``measure``: the rate of a benchmark's command."""
    command = benchmark([*empty(env), "--autotune=True"], seconds)
    flags = chosen(run(command).stderr, command)
    print(f"{env}: autotune chose {' '.join(flags)}", flush=True)
    looks: dict[Setting, float] = {}
    for setting in grid(most_envs(read_command_line(empty(env)).config)):
        looks[setting] = measure(benchmark([*empty(env), *setting.flags], glance))
        print(f"{env}: {' '.join(setting.flags)}: {looks[setting]:,.0f} env steps/s", flush=True)
    first, second = sorted(looks, key=lambda setting: looks[setting], reverse=True)[:2]
    settings = {AUTOTUNED: flags, FIRST: first.flags, SECOND: second.flags}
    commands = {name: benchmark([*empty(env), *its], seconds) for name, its in settings.items()}
    systems = {name: partial(measure, its) for name, its in commands.items()}
    rates = alternating(systems, pairs, rate_text)
    return {
        "autotune": shown(command),
        "settings": settings,
        "commands": {name: shown(its) for name, its in commands.items()},
        **verdict(rates),
        "looked_at": {" ".join(setting.flags): rate for setting, rate in looks.items()},
    }


def report_text(envs: Mapping[str, Any]) -> str:
    """The table of docs/performance.md."""
    rows = []
    for env, found in envs.items():
        best, middle = found["compared_with"], found["medians"]
        ours, theirs = (
            f"`{' '.join(found['settings'][name])}`: {middle[name]:,.0f} env steps/s" for name in (AUTOTUNED, best)
        )
        rows.append([env, ours, theirs, Spread.from_json(found["ratio"]).as_share()])
    return table(["environment", "autotune", "best by hand", "ratio"], rows)


def main() -> int:
    """Check all environments; write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=ENVS)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement that is compared")
    parser.add_argument("--glance", type=float, default=1.5, help="length of the one measurement of each of the grid")
    parser.add_argument("--pairs", type=int, default=5, help="alternating rounds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/performance/autotune.json")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for env in given.envs:
        found[env] = checked(env, given.seconds, given.glance, given.pairs, rate_of)
        lengths = {"seconds": given.seconds, "glance_s": given.glance, "pairs": given.pairs, "least": LEAST}
        write_json(given.out, {**machine(), **lengths, "envs": found})
    print(report_text(found))
    return 0 if all(each["within_bounds"] for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
