"""Room: checkpoints of one learner: when, and what on trouble. In: Progress, the mean return. Out: files."""

from __future__ import annotations

import logging

from sfactory.checkpoint import CheckpointDir
from sfactory.clock import Deadline, Every
from sfactory.errors import CannotSaveError, CheckpointError
from sfactory.learner.progress import Progress, payload_of, restore
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.trainer import Trainer
from sfactory.shared.status import StatusRow

log = logging.getLogger(__name__)

_RETRY_S = 5.0


class CheckpointKeeper:
    """Loads at the start, saves every save_every_sec, at the end, and whenever the mean return is better than ever.

    The mean return (over the last stats_avg episodes, told by main) is looked at when saving, not before: what is
    saved as best are the weights that earn it now.
    """

    def __init__(self, setup: LearnerSetup, trainer: Trainer, progress: Progress, row: StatusRow) -> None:
        self._setup, self._trainer, self._progress, self._row = setup, trainer, progress, row
        config = setup.checkpoint
        path = setup.checkpoint_dir
        self._directory = CheckpointDir(path, config.keep_checkpoints) if path is not None else None
        self._save_due = Every(config.save_every_sec)
        self._pause: Deadline | None = None
        self._best_pause = Deadline(config.save_best_every_sec)

    def load(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if self._directory is None:
            return
        self._directory.tidy()
        loaded = self._directory.load_to_go_on(self._setup.checkpoint.load_checkpoint_kind)
        if loaded is not None:
            restore(dict(loaded.payload), str(loaded.path), self._trainer, self._progress)
            self._progress.best_return = self._best_on_disk()
            self._row.set("saved_env_steps", self._progress.env_steps)

    def after_dataset(self) -> None:
        """Save what is due. A failure is reported, and what failed is tried again later; training goes on."""
        if self._pause is not None and not self._pause.passed:
            return
        try:
            if self._best_pause.passed:
                self._save_if_best()
            if self._save_due.due():
                self.save()
        except CannotSaveError as error:
            self._pause = Deadline(_RETRY_S)
            log.error("%s; training goes on, saving is tried again in %.0f s or later", error, _RETRY_S)

    def finish(self) -> None:
        """Save for the last time, as the best policy, too, if it ends as that; raises CannotSaveError."""
        self._save_if_best()
        self.save()

    def save(self) -> None:
        """Save now; raises CannotSaveError."""
        if self._directory is not None:
            payload = payload_of(self._trainer, self._progress)
            self._directory.save(payload, self._trainer.train_step, self._progress.env_steps)
            self._row.set("saved_env_steps", self._progress.env_steps)

    def _save_if_best(self) -> None:
        """Save as the best policy if it is; if that fails, ``best_return`` stays and it is looked at again."""
        mean_return = self._setup.control.mean_return(self._setup.policy)
        late_enough = self._progress.env_steps >= self._setup.checkpoint.save_best_after
        if self._directory is None or not late_enough or mean_return <= self._progress.best_return:
            return
        payload = payload_of(self._trainer, self._progress) | {"best_return": mean_return}
        self._directory.save_best(payload, self._trainer.train_step, self._progress.env_steps, mean_return)
        self._progress.best_return = mean_return
        self._best_pause = Deadline(self._setup.checkpoint.save_best_every_sec)

    def _best_on_disk(self) -> float:
        """The mean return of the best policy that can be loaded, -inf without one.

        The latest checkpoint may not know it: a run that is killed may have saved its best policy after it.
        """
        assert self._directory is not None
        try:
            best = self._directory.load("best")
        except CheckpointError as error:
            log.warning("%s", error)
            best = None
        return float("-inf") if best is None else float(best.payload["best_return"])
