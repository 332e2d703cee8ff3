"""Takes the turns of a run that is one member of a population of runs, which share a folder (``--pbt_dir``).

In a turn the learner saves a copy of its checkpoint for the others, main publishes what it was reached with, reads what
the others have published, and decides for this member alone. No member waits for another.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sfactory import atomic
from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import assigned
from sfactory.config.schema import Config
from sfactory.errors import CannotSaveError, CheckpointError, RunDirError, clean
from sfactory.experiment.run_dir import LOCK_NAME, RunDir, lock_file
from sfactory.learner.checkpointing import SavedState
from sfactory.pbt.event_log import Kind
from sfactory.pbt.shared_dir import MEMBER_NAME, SharedDir, member_dir, run_of
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.shared.control import LearnerCommand
from sfactory.system.operating_system import close_lock

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def held_member(config: Config, run_dir: RunDir) -> Iterator[None]:
    """Own the member's folder inside the block.

    Raises RunDirError if another run does or did, or if it cannot be made: a member goes on only with its own run, as
    the objectives of a finished population, which are high, would decide turns of a new one.
    """
    population = config.population
    assert population.pbt_member is not None, "a rule demands it"
    flag = assigned("pbt_dir", population.pbt_dir)
    folder = member_dir(population.pbt_dir, population.pbt_member)
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = lock_file(folder / LOCK_NAME, "Give this run another --pbt_member, or stop that one.")
            stack.callback(close_lock, fd)
            atomic.remove_stale(folder)
            earlier = run_of(folder / MEMBER_NAME, population.pbt_member) if (folder / MEMBER_NAME).exists() else None
        except OSError as error:
            advice = "choose another folder, on a file system with locks"
            raise RunDirError(f"{flag}: {folder} cannot be used: {error}; {advice}") from error
        if earlier is not None and not _resumes(config, run_dir, earlier):
            raise RunDirError(
                f"{flag}: member {population.pbt_member} of this population is the run in {clean(str(earlier))}, and "
                f"this start does not resume that run; choose another --pbt_dir, or remove {population.pbt_dir} if "
                f"that population has ended, or only {folder} if it goes on"
            )
        yield


def _resumes(config: Config, run_dir: RunDir, earlier: Path) -> bool:
    """Whether this start resumes the run that had the directory ``earlier``."""
    is_same = os.path.realpath(earlier) == os.path.realpath(run_dir.path)
    has_checkpoint = CheckpointDir(run_dir.checkpoint_dir(0), keep=1).holds_any()
    return is_same and has_checkpoint and config.run.restart_behavior == "resume"


class MemberDriver(PbtDriver):
    """Advances the turns of policy 0, which is member ``pbt_member``, at every beat."""

    def __init__(self, config: Config, *parts: Any) -> None:
        """As PbtDriver."""
        super().__init__(config, *parts)
        self._path = Path(config.population.pbt_dir).absolute()
        self._shared_dir = SharedDir(self._path, self._first, config.run.env, self._rundir.path)
        self._is_saving = False

    def look(self) -> None:
        """Advance the turn in progress, or begin one if it is due."""
        metric = self._find_objective()
        if metric is None:
            return
        self._advance()
        objective = self._mean(metric)
        self._population.look_at({self._first: objective})
        if self._turn is not None:
            return
        if not self._is_saving:
            if not self._is_done(0) and self._population.due(self._first, self._reports.env_steps_of(0)):
                copy_to = str(member_dir(self._path, self._first))
                self._commands.give(0, LearnerCommand(save=True, copy_to=copy_to))
                self._is_saving = True
        elif (problem := self._commands.answer(0)) is not None:
            self._is_saving = False
            self._take_turn(metric, objective, problem)

    def _take_turn(self, metric: str, objective: float | None, problem: str) -> None:
        """Publish and decide, once the learner has answered; problem: why it could not save, "" if it could."""
        env_steps = self._reports.env_steps_of(0)
        if problem:
            _log.warning("other members do not get the weights that this one has now: %s", problem)
        else:
            self._shared_dir.publish(self._population.state, metric, env_steps, objective)
        others = self._shared_dir.others(metric, self._population.state.reward_shaping)
        self._population.meet({number: other.member for number, other in others.items()})
        objectives = {number: other.objective for number, other in others.items()}
        event = self._population.turn(self._first, env_steps, {**objectives, self._first: objective})
        if event.kind is Kind.KEEP:
            self._population.record(event)
        else:
            self._command(event)

    def publish_last(self) -> None:
        """Publish what a run that is done has saved last: it has no more turns, and others may still copy from it."""
        metric = self._find_objective()
        try:
            loaded = CheckpointDir(self._rundir.checkpoint_dir(0), keep=1).load()
            if metric is None or loaded is None:
                return
            saved = SavedState.of(loaded.payload, loaded.path)
            CheckpointDir(self._weights_of(self._first), keep=2).save(loaded.payload, saved.train_step, saved.env_steps)
        except (CheckpointError, CannotSaveError, OSError) as error:
            _log.warning("other members do not get the weights that this one has saved last: %s", error)
        else:
            self._shared_dir.publish(self._population.state, metric, saved.env_steps, self._mean(metric))

    def _mean(self, metric: str) -> float | None:
        """The mean objective over the last episodes; None after too few."""
        objective = self._reports.objectives(metric)[0]
        return float(objective) if objective is not None and math.isfinite(objective) else None

    def _weights_of(self, parent: int) -> Path:
        return member_dir(self._path, parent)
