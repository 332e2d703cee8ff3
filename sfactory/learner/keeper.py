"""Room: checkpoints of one learner: when, and what on trouble. In: Progress, Control. Out: files."""

from __future__ import annotations

import logging

from sfactory.checkpoint import CheckpointDir
from sfactory.clock import Deadline, Every
from sfactory.errors import CannotSaveError
from sfactory.learner.progress import Progress, payload_of, restore
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.trainer import Trainer

log = logging.getLogger(__name__)

_RETRY_S = 5.0


class CheckpointKeeper:
    """Loads at the start, saves every save_every_sec, at the end, and whenever main saw a new best return."""

    def __init__(self, setup: LearnerSetup, trainer: Trainer, progress: Progress) -> None:
        self._setup, self._trainer, self._progress = setup, trainer, progress
        config = setup.checkpoint
        path = setup.checkpoint_dir
        self._directory = CheckpointDir(path, config.keep_checkpoints) if path is not None else None
        self._save_due = Every(config.save_every_sec)
        self._pause: Deadline | None = None
        self._bests_done = setup.control.best_wanted(setup.policy)[0]

    def load(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if self._directory is None:
            return
        self._directory.tidy()
        loaded = self._directory.load(self._setup.checkpoint.load_checkpoint_kind)
        if loaded is not None:
            restore(dict(loaded.payload), str(loaded.path), self._trainer, self._progress)

    def after_dataset(self) -> None:
        """Save what is due. A failure is reported, and what failed is tried again later; training goes on."""
        if self._pause is not None and not self._pause.passed:
            return
        try:
            self._save_best_if_wanted()
            if self._save_due.due():
                self.save()
        except CannotSaveError as error:
            self._pause = Deadline(_RETRY_S)
            log.error("%s; training goes on, saving is tried again in %.0f s or later", error, _RETRY_S)

    def finish(self) -> None:
        """Save for the last time, as the best policy, too, if it ends as that; raises CannotSaveError."""
        self._save_best_if_wanted()
        mean_return = self._setup.control.mean_return(self._setup.policy)
        late_enough = self._progress.env_steps >= self._setup.checkpoint.save_best_after
        if late_enough and mean_return > self._progress.best_return:
            self._save_best(mean_return)
        self.save()

    def save(self) -> None:
        """Save now; raises CannotSaveError."""
        if self._directory is not None:
            payload = payload_of(self._trainer, self._progress)
            self._directory.save(payload, self._trainer.train_step, self._progress.env_steps)

    def _save_best_if_wanted(self) -> None:
        wanted, episode_return = self._setup.control.best_wanted(self._setup.policy)
        if wanted != self._bests_done:
            self._save_best(episode_return)
            self._bests_done = wanted

    def _save_best(self, episode_return: float) -> None:
        """Save as the best policy; if that fails, ``best_return`` stays what it was and it is tried again."""
        if self._directory is None:
            return
        payload = payload_of(self._trainer, self._progress) | {"best_return": episode_return}
        self._directory.save_best(payload, self._trainer.train_step, self._progress.env_steps, episode_return)
        self._progress.best_return = episode_return
