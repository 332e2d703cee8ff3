"""Observers and hooks that write down their calls, or fail.

Observers write lines of JSON to the run's directory, hooks to the file that DIARY names.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfactory.experiment.summary import Outcome
from sfactory.learner.hooks import LearnerFacts
from sfactory.report.console import Progress
from sfactory.report.observers import Observer, RunFacts

DIARY = "SFACTORY_TEST_DIARY"
FILE = "diary.jsonl"
MOMENT = "SFACTORY_TEST_MOMENT"
FAIL_AT = 5  # updates


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
        _write(self._path, call="on_stop", status=outcome.status, env_steps=outcome.summary.env_steps)


class FailsInInit(Observer):
    """Fails before anything is started."""

    def on_init(self, facts: RunFacts) -> None:
        raise ValueError("no mail server")


class FailsInStart(Observer):
    """Fails when the processes have been started."""

    def on_start(self) -> None:
        raise ValueError("no mail server")


class FailsInTraining(Observer):
    """Fails once there are some updates."""

    def on_training_step(self, progress: Progress) -> None:
        if progress.updates >= FAIL_AT:
            raise ValueError("no mail server")


class FailsInSummaries(Observer):
    """Gives no numbers."""

    def extra_summaries(self) -> Mapping[str, float]:
        raise ValueError("no mail server")


class FailsAtStop(Observer):
    """Fails when all is over."""

    def on_stop(self, outcome: Outcome) -> None:
        raise ValueError("no mail server")


def note(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """A hook that writes down where the learner stands, and its statistics."""
    _write(
        Path(os.environ[DIARY]),
        train_step=learner.train_step,
        env_steps=learner.env_steps,
        parameters=sum(parameter.numel() for parameter in learner.model.parameters()),
        stats=dict(stats),
    )


def fail(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """A hook that fails once there are some updates; the file that MOMENT names, if any, is there from then on."""
    if learner.train_step >= FAIL_AT:
        Path(os.environ.get(MOMENT, os.devnull)).touch()
        raise ValueError("the loss is not to my liking")


def stand_still(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """A hook that does not come back as long as there is a file called as MOMENT says, with .still behind it.

    While it stands still, the file that MOMENT names is there.
    """
    moment = Path(os.environ[MOMENT])
    while Path(f"{moment}.still").exists():
        moment.touch()
        time.sleep(0.01)


def fail_telling_when(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """A hook that fails, and says when that was on the clock of the machine."""
    raise ValueError(f"failed at {time.monotonic()}")


def fail_once(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """A hook that fails at its tenth update or later, unless the file that SFACTORY_TEST_FUSE names is there."""
    fuse = Path(os.environ["SFACTORY_TEST_FUSE"])
    if learner.train_step >= 10 and not fuse.exists():
        fuse.touch()
        raise ValueError("the loss is not to my liking")
