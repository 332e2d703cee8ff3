"""Observers and hooks that write down their calls, fail, stand still, or spoil what a learner has."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sfactory.config.saved_config import SUMMARY_NAME
from sfactory.experiment.summary import Outcome
from sfactory.learner.hooks import LearnerFacts
from sfactory.report.observers import Observer, RunFacts
from sfactory.report.progress import Progress

# Variables of the environment, with the path of a file or of a folder in which tests and hooks see each other's files.
DIARY = "SFACTORY_TEST_DIARY"
FILE = "diary.jsonl"
MOMENT = "SFACTORY_TEST_MOMENT"
FUSE = "SFACTORY_TEST_FUSE"
FOLDER = "SFACTORY_TEST_FOLDER"
SOLVED = 475.0  # mean return over 100 episodes at which Gymnasium calls CartPole-v1 solved
FAIL_AT = 5  # updates
SPOIL_AT = 20  # updates
SLEEPING = "the learner sleeps"
ROWS = 3
FULL = "full"  # as long as it is in FOLDER, no file of the learner grows beyond LARGEST bytes
LARGEST = 500_000
_SPOILED = "spoiled"

Stats = Mapping[str, float]


def lines(path: Path) -> list[dict[str, Any]]:
    """What was written down."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _write(path: Path, **fields: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **fields}) + "\n")


class Diary(Observer):
    """Writes all calls to ``diary.jsonl``, and prints to stdout, where it must not arrive."""

    def __init__(self) -> None:
        self._asked = 0
        self._path = Path(os.devnull)

    def on_init(self, facts: RunFacts) -> None:
        self._path = facts.run_dir / FILE
        print("an observer says hello")
        sizes = [tensor.shape for _, tensor in facts.spec.obs]
        _write(self._path, call="on_init", env=facts.config.run.env, seed=facts.seed, obs=sizes, at=facts.env_steps)

    def on_start(self) -> None:
        _write(self._path, call="on_start")

    def on_training_step(self, progress: Progress) -> None:
        _write(self._path, call="on_training_step", updates=progress.updates, env_steps=progress.env_steps)

    def extra_summaries(self) -> Mapping[str, float]:
        self._asked += 1
        return {"diary/asked": self._asked}

    def on_stop(self, outcome: Outcome) -> None:
        saved = json.loads((self._path.parent / SUMMARY_NAME).read_text())
        steps = outcome.summary.env_steps
        _write(self._path, call="on_stop", status=outcome.status, env_steps=steps, saved=saved["env_steps"])


class Episodes(Observer):
    """Counts the episodes of each env, and gives half the length of each; writes the sums at the end.

    The run ends once each env has ended an episode, and there were ROWS rows with updates.
    """

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self._rows = 0

    def on_init(self, facts: RunFacts) -> None:
        self._path = facts.run_dir / "episodes.jsonl"
        sampling = facts.config.sampling
        self._envs = {f"env_{env}" for env in range(sampling.num_workers * sampling.num_envs_per_worker)}

    def on_episode(self, policy: int, env: int, stats: Stats, info: Stats) -> Stats:
        for name, number in {"episodes": 1, f"env_{env}": 1, f"policy_{policy}": 1, **stats, **info}.items():
            self.sums[name] += number
        return {"half_length": stats["length"] / 2}

    def on_report(self, row: Mapping[str, float | None]) -> bool | None:
        self._rows += bool(row["perf/updates"])
        return not (self._envs <= self.sums.keys() and self._rows >= ROWS)

    def on_stop(self, outcome: Outcome) -> None:
        _write(self._path, **self.sums)


class EndsWhenSolved(Observer):
    """Ends a run of CartPole-v1 once it is solved."""

    def on_report(self, row: Mapping[str, float | None]) -> bool | None:
        return (row["train/best_episode_return_mean"] or 0.0) < SOLVED


class EndsInTraining(Observer):
    """Ends a run at the first report with updates."""

    def on_report(self, row: Mapping[str, float | None]) -> bool | None:
        return not row["perf/updates"]


class FailsInTraining(Observer):
    def on_training_step(self, progress: Progress) -> None:
        if progress.updates >= FAIL_AT:
            raise ValueError("no mail server")


class FailsAtStop(Observer):
    def on_stop(self, outcome: Outcome) -> None:
        raise ValueError("no mail server")


def note(learner: LearnerFacts, stats: Stats) -> None:
    """Writes down where the learner stands, and its statistics."""
    _write(
        Path(os.environ[DIARY]),
        train_step=learner.train_step,
        env_steps=learner.env_steps,
        parameters=sum(parameter.numel() for parameter in learner.model.parameters()),
        stats=dict(stats),
    )


def fail(learner: LearnerFacts, stats: Stats) -> None:
    """Fails once there are some updates; the file that MOMENT names, if any, is there from then on."""
    if learner.train_step >= FAIL_AT:
        Path(os.environ.get(MOMENT, os.devnull)).touch()
        raise ValueError("the loss is not to my liking")


def fail_with_time(learner: LearnerFacts, stats: Stats) -> None:
    """Fails with the time on the clock of the machine."""
    raise ValueError(f"failed at {time.monotonic()}")


def fail_once(learner: LearnerFacts, stats: Stats) -> None:
    """Fails at its tenth update or later, unless the file that FUSE names is there."""
    fuse = Path(os.environ[FUSE])
    if learner.train_step >= 10 and not fuse.exists():
        fuse.touch()
        raise ValueError("the loss is not to my liking")


def stand_still(learner: LearnerFacts, stats: Stats) -> None:
    """Touches the file that MOMENT names, and does not return while there is one of that name and ".still"."""
    moment = Path(os.environ[MOMENT])
    while Path(f"{moment}.still").exists():
        moment.touch()
        time.sleep(0.01)


def sleep_long(learner: LearnerFacts, stats: Stats) -> None:
    """Takes longer than any stop waits for a last checkpoint."""
    print(SLEEPING, file=sys.stderr, flush=True)
    time.sleep(30)


def spoil_gradients(learner: LearnerFacts, stats: Stats) -> None:
    """After SPOIL_AT updates one gradient is infinite, and after as many more all are."""
    parameter = _to_be_spoiled(learner)
    if parameter is not None:
        factors = chain([torch.inf], repeat(1.0, SPOIL_AT), repeat(torch.inf))
        parameter.register_hook(lambda gradient: gradient * next(factors))


def spoil_weight(learner: LearnerFacts, stats: Stats) -> None:
    """A weight is NaN, as if a gradient had spoiled it."""
    parameter = _to_be_spoiled(learner)
    if parameter is not None:
        with torch.no_grad():
            parameter.view(-1)[0] = torch.nan


def spoil_first_policy(learner: LearnerFacts, stats: Stats) -> None:
    """As ``spoil_weight`` for policy 0, once another policy has learned from a dataset."""
    learned = Path(os.environ[FOLDER]) / "another_has_learned"
    if learner.policy != 0:
        learned.touch()
    elif learned.exists():
        spoil_weight(learner, stats)


def _to_be_spoiled(learner: LearnerFacts) -> nn.Parameter | None:
    """The first parameter of the model, the first time that there have been enough updates."""
    parameter = next(learner.model.parameters())
    if learner.train_step < SPOIL_AT or hasattr(parameter, _SPOILED):
        return None
    setattr(parameter, _SPOILED, True)
    return parameter


def fill_disk(learner: LearnerFacts, stats: Stats) -> None:
    """A disk is full as long as there is the file FULL: writing fails with OSError, as it does there."""
    limit = LARGEST if (Path(os.environ[FOLDER]) / FULL).exists() else resource.RLIM_INFINITY
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def write_checksum(learner: LearnerFacts, stats: Stats) -> None:
    """Append the checksum of weights and buffers after this update to a file of this rank in FOLDER."""
    model = learner.model
    content = b"".join(tensor.detach().numpy().tobytes() for tensor in (*model.parameters(), *model.buffers()))
    with (Path(os.environ[FOLDER]) / f"sums-{os.environ.get('RANK', '0')}").open("a") as file:
        file.write(f"{learner.train_step} {zlib.crc32(content)}\n")
