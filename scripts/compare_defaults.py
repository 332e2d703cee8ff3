"""Trains eight tasks with the defaults of their kind and with those of the schema.

    pip install 'gymnasium[box2d,mujoco]' minigrid
    python scripts/compare_defaults.py --out docs/task_defaults.json --page docs/task_defaults.md
    python scripts/compare_defaults.py --tasks Catch --seeds 1 --out /tmp/catch.json

Every result is written at once, and what --out holds already is not measured again. The page says what the defaults
are, and for each task the mean return of the last episodes, seed by seed, and the seconds of training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.command import TRAIN, json_line, run
from scripts.record import machine, table, write_json
from scripts.results_files import where
from sfactory.config.flags import all_flags
from sfactory.config.task_defaults import TASK_DEFAULTS


def by_gymnasium(env_id: str, **kwargs: object) -> tuple[str, ...]:
    """Words that make an id without its family, which has defaults of its own."""
    return "--env=gymnasium:make", f"--env_kwargs={json.dumps({'id': env_id, 'disable_env_checker': True, **kwargs})}"


class Task(NamedTuple):
    """What to train, for how many env steps, and the return of a perfect policy, where it is known."""

    kind: str
    words: tuple[str, ...]
    steps: int
    best: str = ""


TASKS = {
    "FrozenLake-v1, not slippery": Task("table", by_gymnasium("FrozenLake-v1", is_slippery=False), 60_000, "1"),
    "Taxi-v4": Task("table", by_gymnasium("Taxi-v4"), 400_000, "7.9"),
    "LunarLander-v3": Task("vector", by_gymnasium("LunarLander-v3"), 200_000),
    "MiniGrid-Empty-8x8-v0": Task(
        "vector", ("--env=minigrid.envs:EmptyEnv", "--ignore_obs_keys=mission"), 60_000, "0.96"
    ),
    "BipedalWalker-v3": Task("continuous", by_gymnasium("BipedalWalker-v3"), 300_000),
    "HalfCheetah-v5": Task("continuous", by_gymnasium("HalfCheetah-v5"), 300_000),
    "Hopper-v5": Task("continuous", by_gymnasium("Hopper-v5"), 300_000),
    "Catch": Task("images", ("--env=sfactory_envs.synthetic.catch:Catch",), 100_000, "1"),
}
DEFAULTS = {"by kind of task": "True", "of the schema": "False"}


def train(task: Task, task_defaults: str, seed: int) -> dict[str, Any]:
    """One run: its mean return at the end, env steps and seconds of training."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*task.words, f"--train_for_env_steps={task.steps}", f"--task_defaults={task_defaults}"]
        words += [f"--seed={seed}", f"--train_dir={folder}", "--experiment=run", "--device=cpu"]
        result = json_line(run([*TRAIN, *words]).stdout)
    return {
        "return": result["episode_return_mean"],
        "env_steps": result["env_steps"],
        "seconds": round(result["train_seconds"], 1),
    }


def page(found: dict[str, Any]) -> str:
    """The page in Markdown."""
    known = all_flags()
    names = list(dict.fromkeys(name for defaults in TASK_DEFAULTS.values() for name in defaults))
    flags = [
        [f"`--{name}`", known[name].default, *(defaults.get(name, "same") for defaults in TASK_DEFAULTS.values())]
        for name in names
    ]
    rows = []
    for name, task in TASKS.items():
        for defaults in DEFAULTS:
            runs = [each for each in found["runs"] if (each["task"], each["defaults"]) == (name, defaults)]
            if not runs:
                continue
            returns = [each["return"] for each in runs if each["return"] is not None]
            timed = [each["seconds"] for each in runs if not each.get("note")]
            steps, seconds = f"{task.steps:,}", f"{statistics.mean(timed):.0f}" if timed else "-"
            mean = f"{statistics.mean(returns):.4g}" if returns else "none"
            each_seed = ", ".join(f"{value:.4g}" for value in returns)
            rows.append([name, task.kind, defaults, mean, each_seed, task.best or "-", steps, seconds])
    seeds_by_note: dict[str, dict[str, list[str]]] = {}
    for each in found["runs"]:
        if "note" in each:
            seeds_by_note.setdefault(each["note"], {}).setdefault(each["task"], []).append(str(each["seed"]))
    notes = []
    for note, tasks in seeds_by_note.items():
        runs_of = [f"{task} (seed {', '.join(seeds)})" for task, seeds in tasks.items()]
        notes.append(f"- {', '.join(runs_of)}: {note}.")
    head = ["task", "kind", "defaults", "mean return", "each seed", "best", "env steps", "seconds"]
    return "\n".join([
        "# Defaults by kind of task",
        "",
        "Flags that are not set get the defaults of the kind of task, which the env's spaces decide: images (an image",
        "among the observations), continuous (Box actions), table (observations that are choices alone), or vector",
        "(all else). Env families have defaults of their own, which come before. `--task_defaults=False` takes those",
        "of the schema in place of those by kind; config.json says where each value comes from.",
        "An actor has 32 envs where a GPU may choose their actions (fewer with many actors), and 2 where a step",
        "takes 5 ms or more. With more than two actors, or with several agents in an env, minibatches are larger, up",
        "to 8 times (16 times for images on a GPU), so that a dataset is all that a policy gets of a round of",
        "collection. What else holds on a GPU is in [gpu.md](gpu.md).",
        "",
        table(["flag", "schema", *TASK_DEFAULTS], flags),
        "",
        "## Measured",
        "",
        "Returns are means of the last 100 episodes, in training. Made by `scripts/compare_defaults.py`.",
        "",
        table(head, rows),
        "",
        *notes,
        *([""] if notes else []),
        f"All else: {where(found['machine'])}.",
        "",
    ])  # fmt: skip


def main() -> int:
    """Measure what is not measured yet; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "runs": []}
    if given.out.exists():  # the machine is that of its first runs; those of another one need a "note"
        found = json.loads(given.out.read_text())
    for seed in given.seeds:
        for name in given.tasks:
            for defaults, value in DEFAULTS.items():
                key = {"task": name, "defaults": defaults, "seed": seed}
                if any(key.items() <= each.items() for each in found["runs"]):
                    continue
                found["runs"].append(key | train(TASKS[name], value, seed))
                print(found["runs"][-1], flush=True)
                write_json(given.out, found)
    if given.page is not None:
        given.page.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
