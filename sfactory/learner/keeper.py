"""Room: checkpoints of one learner: when, and what on trouble. In: Progress, the objective. Out: files."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from sfactory.checkpoint import CheckpointDir
from sfactory.clock import Deadline, Every, now
from sfactory.errors import CannotSaveError, CheckpointError
from sfactory.learner.progress import Progress, payload_of, restore
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.trainer import Trainer
from sfactory.shared.status import StatusRow

log = logging.getLogger(__name__)

_RETRY_S = 5.0


class CheckpointKeeper:
    """Loads at the start, saves every save_every_sec, at the end, and whenever the objective is better than ever.

    Milestones, which are kept for ever, are due at multiples of save_milestones_sec of training time, so that a run
    that is stopped and resumed again and again has them, too.

    The objective (the mean of save_best_metric over the last stats_avg episodes, told by main) is looked at when
    saving, not before: what is saved as best are the weights that earn it now.
    """

    def __init__(
        self,
        setup: LearnerSetup,
        trainer: Trainer,
        progress: Progress,
        row: StatusRow,
        check: Callable[[int], None],
    ) -> None:
        """``check``: given the train step, raises DivergedError if weights are not finite; nothing is saved then."""
        self._setup, self._trainer, self._progress, self._row = setup, trainer, progress, row
        self._check = check
        config = setup.checkpoint
        path = setup.checkpoint_dir
        self._directory = CheckpointDir(path, config.keep_checkpoints) if path is not None else None
        self._save_due = Every(config.save_every_sec)
        self._pause: Deadline | None = None
        self._best_pause = Deadline(config.save_best_every_sec)
        self._next_milestone = math.inf
        self._has_latest = False  # as long as there is none, a resumed run goes on from the best policy
        self._plan_milestone()

    def load(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if self._directory is None:
            return
        self._directory.tidy()
        kind = self._setup.checkpoint.load_checkpoint_kind
        loaded = self._directory.load_to_go_on(kind)
        if loaded is not None:
            self._directory.go_on_from(loaded, kind)
            restore(dict(loaded.payload), str(loaded.path), self._trainer, self._progress)
            self._progress.best_objective = self._best_on_disk()
            self._row.set("saved_env_steps", self._progress.run_env_steps)
            self._has_latest = True
            self._plan_milestone()

    def save_first(self) -> None:
        """Save unless there is a checkpoint: a policy that does not learn is the same in every session."""
        if not self._has_latest:
            log.warning(
                "policy %d does not learn (--train_policies) and has no checkpoint: it plays with the weights that it "
                "was made with",
                self._setup.policy,
            )
            self.save()

    def after_dataset(self) -> None:
        """Save what is due. A failure is reported, and what failed is tried again later; training goes on.

        Raises DivergedError.

        What a resumed run goes on from comes first, and nothing that fails keeps another from being saved.
        """
        if self._pause is not None and not self._pause.passed:
            return
        for save in (self._save_latest_if_due, self._save_best_if_due, self._save_milestone_if_due):
            try:
                save()
            except CannotSaveError as error:
                self._pause = Deadline(_RETRY_S)
                log.error("%s; training goes on, saving is tried again in %.0f s or later", error, _RETRY_S)

    def finish(self) -> None:
        """Save for the last time, as the best policy, too, if it ends as that; raises CannotSaveError, DivergedError.

        What a resumed run goes on from comes first: it is there even if the best policy cannot be saved.
        """
        objective = self._record_objective()
        self.save(objective)
        if objective is not None:
            self._save_best(objective)

    def save(self, best_objective: float | None = None) -> None:
        """Save now; raises CannotSaveError, DivergedError.

        best_objective: that of the best policy, if it is to be saved next.
        """
        if self._directory is not None:
            since, payload = now(), self._payload()
            if best_objective is not None:
                payload["best_objective"] = best_objective
            self._directory.save(payload, self._trainer.train_step, self._progress.env_steps)
            self._row.set("save_s", now() - since)
            self._row.set("saved_env_steps", self._progress.run_env_steps)
            self._has_latest = True

    def _save_latest_if_due(self) -> None:
        if not self._save_due.left:
            self.save()
            self._save_due.due()

    def _save_best_if_due(self) -> None:
        if self._best_pause.passed and (objective := self._record_objective()) is not None:
            self._save_best(objective)

    def _save_milestone_if_due(self) -> None:
        if self._progress.train_seconds >= self._next_milestone:
            self._save_milestone()

    def _record_objective(self) -> float | None:
        """The objective, if it is better than ever and late enough to count."""
        objective = self._setup.control.objective(self._setup.policy)
        late_enough = self._progress.env_steps >= self._setup.checkpoint.save_best_after
        return objective if late_enough and objective > self._progress.best_objective else None

    def _save_best(self, objective: float) -> None:
        """Save as the best policy; if that fails, ``best_objective`` stays and it is looked at again."""
        if self._directory is None:
            return
        payload = self._payload() | {"best_objective": objective}
        self._directory.save_best(payload, self._trainer.train_step, self._progress.env_steps, objective)
        if not self._has_latest:
            self._row.set("saved_env_steps", self._progress.run_env_steps)
        self._progress.best_objective = objective
        self._best_pause = Deadline(self._setup.checkpoint.save_best_every_sec)

    def _plan_milestone(self) -> None:
        """The next milestone, if they are wanted, is due at the next multiple of their interval."""
        interval = self._setup.checkpoint.save_milestones_sec
        if interval > 0:
            self._next_milestone = (self._progress.train_seconds // interval + 1) * interval

    def _save_milestone(self) -> None:
        """Save a checkpoint for ever; if that fails, it stays due."""
        if self._directory is not None:
            payload = self._payload()
            self._directory.save_milestone(payload, self._trainer.train_step, self._progress.env_steps)
        self._plan_milestone()

    def _payload(self) -> dict[str, Any]:
        """What is to be saved, looked at first: a hook, or an update not yet published, may have spoiled it."""
        self._check(self._trainer.train_step)
        return payload_of(self._trainer, self._progress)

    def _best_on_disk(self) -> float:
        """The objective of the best policy that can be loaded, -inf without one or if another metric decided.

        The checkpoint that the run goes on from does not tell: a run that is killed may have saved its best policy
        later; and one that goes back leaves a later one behind, which had taken the place of the one known then.
        """
        assert self._directory is not None
        try:
            best = self._directory.load("best")
        except CheckpointError as error:
            log.warning("%s", error)
            best = None
        if best is None or best.payload["best_metric"] != self._progress.best_metric:
            return float("-inf")
        return float(best.payload["best_objective"])
