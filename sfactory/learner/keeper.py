"""Room: checkpoints of one learner: when, and what on trouble. In: Progress, Control. Out: files."""

from __future__ import annotations

import logging

from sfactory.checkpoint import CheckpointDir
from sfactory.clock import Every
from sfactory.errors import CannotSaveError
from sfactory.learner.progress import Progress, payload_of, restore
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.trainer import Trainer

log = logging.getLogger(__name__)


class CheckpointKeeper:
    """Loads at the start, saves every save_every_sec, at the end, and whenever main saw a new best return."""

    def __init__(self, setup: LearnerSetup, trainer: Trainer, progress: Progress) -> None:
        self._setup, self._trainer, self._progress = setup, trainer, progress
        config = setup.checkpoint
        path = setup.checkpoint_dir
        self._directory = CheckpointDir(path, config.keep_checkpoints) if path is not None else None
        self._save_due = Every(config.save_every_sec)
        self._bests_done = setup.control.best_wanted(setup.policy)[0]

    def load(self) -> None:
        """Continue from the checkpoint, if there is one."""
        loaded = self._directory.load(self._setup.checkpoint.load_checkpoint_kind) if self._directory else None
        if loaded is not None:
            restore(dict(loaded.payload), str(loaded.path), self._trainer, self._progress)

    def after_dataset(self) -> None:
        """Save what is due. A failure is reported and tried again at the next beat; training goes on."""
        try:
            self._save_best_if_wanted()
            if self._save_due.due():
                self.save()
        except CannotSaveError as error:
            log.error("%s; training goes on, the next save is tried in %.0f s", error, self._save_due.seconds)

    def finish(self) -> None:
        """Save for the last time; raises CannotSaveError."""
        self._save_best_if_wanted()
        self.save()

    def save(self) -> None:
        """Save now; raises CannotSaveError."""
        if self._directory is not None:
            payload = payload_of(self._trainer, self._progress)
            self._directory.save(payload, self._trainer.train_step, self._progress.env_steps)

    def _save_best_if_wanted(self) -> None:
        wanted, episode_return = self._setup.control.best_wanted(self._setup.policy)
        if wanted == self._bests_done or self._directory is None:
            return
        self._bests_done = wanted
        self._progress.best_return = episode_return
        payload = payload_of(self._trainer, self._progress)
        self._directory.save_best(payload, self._trainer.train_step, self._progress.env_steps, episode_return)
