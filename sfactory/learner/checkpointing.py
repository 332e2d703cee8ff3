"""Saves and restores the training of one policy; only this file knows the payload's keys and versions."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch

from sfactory.checkpoint.directory import CheckpointDir, Payload
from sfactory.clock import TIMEOUTS, Awake, Deadline, Every, now
from sfactory.errors import CannotSaveError, CheckpointError, clean
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.train_stats import Learned
from sfactory.learner.trainer import Trainer
from sfactory.model.flat_state import FlatState
from sfactory.shared.status import StatusRow
from sfactory.spec import EnvSpec

PAYLOAD_VERSION = 3
READABLE_VERSIONS = (2, PAYLOAD_VERSION)  # 2 knew of one optimizer, Adam, and of no coefficient but its rate

_RETRY_S = TIMEOUTS.save_retry

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Counts over the whole run, resumes included. Steps are trained steps, without masked ones.

    env_steps: in which the policy took part. agent_steps: of its agents. run_env_steps: env steps of the run, each
    counted by one policy only. episodes: as main counts them. best_objective: the best mean of ``best_metric`` so far.
    awake: time that counts; None: all of it.
    """

    env_steps: int = 0
    agent_steps: int = 0
    run_env_steps: int = 0
    episodes: int = 0
    best_metric: str = "reward"
    best_objective: float = float("-inf")
    earlier_seconds: float = 0.0
    started_at: float | None = None
    awake: Awake | None = None

    def add(self, learned: Learned, before: Learned) -> None:
        """Count the steps in ``learned`` that are not in ``before``."""
        self.agent_steps += learned.fresh - before.fresh
        self.env_steps += learned.env_steps - before.env_steps
        self.run_env_steps += learned.run_steps - before.run_steps

    def write_to(self, row: StatusRow) -> None:
        """Show steps and seconds in the row of a learner."""
        seconds, grew = self.train_seconds, self.run_env_steps != row.get("run_env_steps")
        for name in ("env_steps", "agent_steps", "run_env_steps"):
            row.set(name, getattr(self, name))
        row.set("train_seconds", seconds)
        if grew:  # written after the steps: a reader of this time then sees at least the steps that belong to it
            row.set("counted_at", seconds)

    def start_clock(self, at: float) -> None:
        """Count training time from ``at`` (monotonic seconds); later calls have no effect."""
        if self.started_at is None:
            self.started_at = at

    @property
    def train_seconds(self) -> float:
        """Seconds of training, without start-up, over all resumes."""
        at = self.started_at
        if at is None:
            return self.earlier_seconds
        return self.earlier_seconds + (now() - at if self.awake is None else self.awake.since(at))


@dataclass(frozen=True)
class SavedState:
    """A checkpoint without its optimizer: ``model``, as of ``state_dict``, and fields of Trainer and Progress.

    spec: what the model was made for; None in checkpoints of older versions.
    """

    model: Mapping[str, torch.Tensor]
    spec: EnvSpec | None
    train_step: int
    env_steps: int
    agent_steps: int
    run_env_steps: int
    train_seconds: float
    best_metric: str
    best_objective: float
    episodes: int = 0

    @staticmethod
    def of(payload: Payload, where: Path | str) -> SavedState:
        """Read ``payload``, loaded from ``where``; raises CheckpointError if another version or program wrote it."""
        try:
            if payload["payload_version"] in READABLE_VERSIONS and isinstance(payload["model"], dict):
                # Without several agents or policies, older runs did not count steps apart.
                older = {**dict.fromkeys(("agent_steps", "run_env_steps"), payload["env_steps"]), "episodes": 0}
                numbers: dict[str, Any] = {name: kind((older | payload)[name]) for name, kind in _NUMBERS.items()}
                spec = payload.get("env_spec")
                return SavedState(payload["model"], None if spec is None else EnvSpec.of_plain(spec), **numbers)
        except (KeyError, TypeError, ValueError, RuntimeError):
            pass
        raise CheckpointError(
            f"{where} was written by another version of sfactory, or by another program. Use the version that wrote "
            "it, or start a new run with another --experiment. Nothing was deleted."
        )


# Numbers of a payload, with their types.
_NUMBERS = {name: kind for name, kind in get_type_hints(SavedState).items() if name not in ("model", "spec")}


def payload_of(trainer: Trainer, progress: Progress) -> dict[str, Any]:
    """What a checkpoint holds: plain numbers and tensors only."""
    numbers = {name: getattr(progress, name) for name in _NUMBERS if name != "train_step"}
    state = {"coefficients": trainer.coefficients.state(), "train_step": trainer.train_step, **numbers}
    state["env_spec"] = trainer.model.spec.plain()
    return {"payload_version": PAYLOAD_VERSION, **_weights(trainer), **state}


def restore(payload: dict[str, Any], where: str, trainer: Trainer, progress: Progress) -> None:
    """Continue from ``payload``; raises CheckpointError if it does not fit the model or its optimizer."""
    saved = SavedState.of(payload, where)
    _restore_weights(payload, where, trainer)
    trainer.coefficients.restore(payload.get("coefficients", payload))  # version 2 had its rate beside all else
    trainer.train_step = saved.train_step
    progress.env_steps, progress.agent_steps = saved.env_steps, saved.agent_steps
    progress.run_env_steps, progress.earlier_seconds = saved.run_env_steps, saved.train_seconds
    progress.episodes = saved.episodes
    if saved.best_metric == progress.best_metric:
        progress.best_objective = saved.best_objective


def take_over(payload: dict[str, Any], where: str, trainer: Trainer) -> None:
    """Weights, moments, adapted rates of another policy; raises CheckpointError, with all as it was, if they misfit."""
    SavedState.of(payload, where)
    before = copy.deepcopy(_weights(trainer))
    try:
        _restore_weights(payload, where, trainer)
    except CheckpointError:
        _restore_weights(before, where, trainer)
        raise
    trainer.coefficients.restore(payload.get("coefficients", payload))


def _weights(trainer: Trainer) -> dict[str, Any]:
    """Weights of all networks and the state of the optimizer, by the keys of a payload."""
    others = {"target": trainer.target, "auxiliary": trainer.auxiliary}
    states: dict[str, Any] = {name: network.state_dict() for name, network in others.items() if network is not None}
    if trainer.averaging is not None:
        states["averaging"] = trainer.averaging.state()
    return {"model": trainer.model.state_dict(), **trainer.updater.state(), **states}


def _restore_weights(payload: dict[str, Any], where: str, trainer: Trainer) -> None:
    part = "model"
    try:
        trainer.model.load_state_dict(payload["model"])
        if trainer.target is not None and payload.get("target") is None:
            trainer.target.copy()
        elif trainer.target is not None:
            trainer.target.load_state_dict(payload["target"])
        if trainer.auxiliary is not None:
            trainer.auxiliary.load_state_dict(payload["auxiliary"])
        part = "optimizer"
        trainer.updater.load(payload)
        if trainer.averaging is not None and "averaging" in payload:  # not in runs of one rank
            trainer.averaging.load(payload["averaging"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{where} does not fit the {part} of this configuration: {clean(str(error))}") from error


class Checkpointer:
    """Loads at the start; saves every save_every_sec, at the end, and when the objective is better than ever.

    Milestones, which are never deleted, are due at multiples of save_milestones_sec of training time over all resumes,
    and with a pool of opponents at multiples of opponent_snapshot_env_steps: the pool holds the newest milestones.
    Main computes the objective, the mean of save_best_metric over the last stats_avg episodes, or the mean return of an
    evaluation: then the best checkpoint has the weights that were evaluated, and the counts of their time.
    """

    def __init__(
        self,
        setup: LearnerSetup,
        trainer: Trainer,
        progress: Progress,
        row: StatusRow,
        check: Callable[[int], None],
        flat: FlatState,
    ) -> None:
        """``check``: given the train step, raises DivergedError if weights (``flat``) are not finite; none is saved."""
        self.setup, self.trainer, self.progress, self._row, self._check = setup, trainer, progress, row, check
        self._flat, self._pool = flat, setup.shared.opponents
        self._config = config = setup.config.checkpoint
        self._candidate = setup.shared.candidate if config.best_by_evaluation else None
        path = setup.checkpoint_dir
        self._directory = None if path is None else CheckpointDir(path, config.keep_checkpoints)
        self._save_due = Every(config.save_every_sec)
        self._pause, self._best_pause = Deadline(0.0), Deadline(config.save_best_every_sec)
        self._next_milestone = self._next_snapshot = math.inf
        self._resumed_at: tuple[int, int] | None = None  # train step and env steps
        self._has_latest = False  # without one, a resumed run continues from the best policy
        self._went_back = False  # to another kind than the latest, which a resume would go on from
        self._plan_milestone()

    def load(self) -> bool:
        """Continue from the checkpoint, if there is one; whether there was."""
        if self._directory is None:
            return False
        self._directory.tidy()
        kind = self._directory.kind_to_resume(self._config.load_checkpoint_kind, self.setup.trains)
        loaded = self._directory.load_to_resume(kind)
        if loaded is not None:
            self._directory.resume_from(loaded, kind)
            restore(dict(loaded.payload), str(loaded.path), self.trainer, self.progress)
            self._resumed_at = self.trainer.train_step, self.progress.env_steps
            self.progress.best_objective = self._best_on_disk()
            self._row.set("saved_env_steps", self.progress.run_env_steps)
            self._has_latest, self._went_back = True, kind != "latest"
            self._plan_milestone()
        return loaded is not None

    def fill_pool(self) -> None:
        """Fill the pool of opponents, if any, with the newest milestones; a new run begins with its first weights."""
        if self._pool is None:
            return
        model, directory = self.trainer.model, self._directory
        known = [] if directory is None else directory.env_steps_of("milestone")[-len(self._pool.weights) :]
        own = copy.deepcopy(model.state_dict()) if known else {}
        for env_steps in known:
            assert directory is not None
            try:
                loaded = directory.load_at(env_steps, "milestone")
                saved = SavedState.of(loaded.payload, loaded.path)
            except CheckpointError as error:
                log.warning("an opponent is missing: %s", error)
                continue
            model.load_state_dict(saved.model)
            self._pool.add(self._flat.to_host(), saved.train_step, env_steps)
        if known:
            model.load_state_dict(own)
        if not self._pool.newest():
            self._save_milestone()

    @property
    def choice_is_due(self) -> bool:
        """Whether to save what the policy went back to although it has learned nothing, as other policies have."""
        return self._went_back and self.setup.shared.others_have_learned(self.setup.policy)

    def save_first(self) -> None:
        """Save unless there is a checkpoint: a policy that does not learn stays the same when it is resumed."""
        if self._has_latest:
            return
        if not self._config.init_from:
            text = "does not learn (--train_policies) and has no checkpoint: it plays with the weights it was made with"
            log.warning("policy %d %s", self.setup.policy, text)
        self.save()

    def save_choice_if_due(self) -> None:
        """Save what the policy went back to, if that is due; as ``after_dataset``."""
        if self.choice_is_due:
            self._save_each(self._save_latest_if_due)

    def after_dataset(self) -> None:
        """Save all that is due, each even if another fails: that is logged, and tried again. Raises DivergedError."""
        self._save_each(self._save_latest_if_due, self._save_best_if_due, self._save_milestone_if_due)

    def _save_each(self, *saves: Callable[[], None]) -> None:
        for save in saves if self._pause.passed else ():
            try:
                save()
            except CannotSaveError as error:
                self._pause = Deadline(_RETRY_S)
                log.error("%s; training continues, saving is tried again in %.0f s or later", error, _RETRY_S)

    def finish(self) -> None:
        """Save the latest checkpoint, then the best policy if it is that; raises CannotSaveError, DivergedError."""
        if (averaging := self.trainer.averaging) is not None:
            averaging.undo()
            dropped, self.trainer.train_step = self.trainer.train_step - averaging.train_step, averaging.train_step
            if dropped:
                log.info("%d updates since the last mean of all ranks are dropped", dropped)
        # A copy of another policy counts as an update; hyperparameters of a population are in its own files.
        if self._resumed_at == (self.trainer.train_step, self.progress.env_steps):
            if self.choice_is_due:
                self.save()
            return  # those that were saved after it, if it is an older one, are set aside once more is learned
        objective = self._record_objective()
        with self._row.saving():
            self.save(objective)
            if objective is not None:
                self._save_best(objective)

    def save(self, best_objective: float | None = None) -> None:
        """Save now, with the ``best_objective`` that is saved next, if any; raises CannotSaveError, DivergedError."""
        if self._directory is not None:
            payload = self._payload() | ({} if best_objective is None else {"best_objective": best_objective})
            with self._row.saving():
                self._directory.save(payload, self.trainer.train_step, self.progress.env_steps)
            self._row.set("saved_env_steps", self.progress.run_env_steps)
            self._has_latest, self._went_back = True, False

    def save_copy(self, folder: Path) -> None:
        """Save the training into another folder, too, where the newest two stay; raises as ``save``."""
        with self._row.saving():
            CheckpointDir(folder, keep=2).save(self._payload(), self.trainer.train_step, self.progress.env_steps)

    def _save_latest_if_due(self) -> None:
        if self._went_back or not self._save_due.left:
            self.save()
            self._save_due.due()

    def _save_best_if_due(self) -> None:
        candidate = self._candidate
        if candidate is not None and (candidate.mean is None or candidate.judged):
            return
        if (candidate is not None or self._best_pause.passed) and (objective := self._record_objective()) is not None:
            self._save_best(objective)
        if candidate is not None:
            candidate.mark_judged()  # not if it could not be saved

    def _save_milestone_if_due(self) -> None:
        progress = self.progress
        if progress.train_seconds >= self._next_milestone or progress.env_steps >= self._next_snapshot:
            self._save_milestone()

    def _save_milestone(self) -> None:
        """If that fails, it stays due."""
        train_step, env_steps = self.trainer.train_step, self.progress.env_steps
        if self._directory is not None:
            with self._row.saving():
                self._directory.save_milestone(self._payload(), train_step, env_steps)
        if self._pool is not None:
            self._pool.add(self._flat.to_host(), train_step, env_steps)
        self._plan_milestone()

    def _record_objective(self) -> float | None:
        """The objective, if it is better than ever and late enough to count."""
        objective = self.setup.shared.control.objective(self.setup.policy)
        if self._candidate is not None:
            mean = self._candidate.mean
            # Judged: its memory may hold other weights by now.
            objective = -math.inf if mean is None or self._candidate.judged else mean
        late_enough = self.progress.env_steps >= self._config.save_best_after
        return objective if late_enough and objective > self.progress.best_objective else None

    def _save_best(self, objective: float) -> None:
        """Save as the best policy; if that fails, ``best_objective`` stays and it is looked at again."""
        if self._directory is None:
            return
        payload = self._payload() | {"best_objective": objective} | self._evaluated()
        with self._row.saving():
            self._directory.save_best(payload, payload["train_step"], payload["env_steps"], objective)
        if not self._has_latest:
            self._row.set("saved_env_steps", payload["run_env_steps"])
        self.progress.best_objective = objective
        self._best_pause = Deadline(self._config.save_best_every_sec)

    def _evaluated(self) -> dict[str, Any]:
        """Of a payload, what belongs to the candidate, if evaluations decide; the optimizer's state is the present."""
        if self._candidate is None:
            return {}
        weights, version, counts = self._candidate.read()
        numbers = {name: _NUMBERS[name](count) for name, count in counts.items()}
        return {"model": self._flat.state_dict(torch.from_numpy(weights)), "train_step": version, **numbers}

    def _plan_milestone(self) -> None:
        """The next milestone and snapshot, if they are wanted, are due at the next multiples of their intervals."""
        interval = self._config.save_milestones_sec
        if interval > 0:
            self._next_milestone = (self.progress.train_seconds // interval + 1) * interval
        if self._pool is not None:
            steps = self.setup.config.population.opponent_snapshot_env_steps
            self._next_snapshot = (self.progress.env_steps // steps + 1) * steps

    def _payload(self) -> dict[str, Any]:
        """The content to save, looked at first: a hook, or an update not yet published, may have spoiled it."""
        self._check(self.trainer.train_step)
        self.progress.episodes = max(self.progress.episodes, self.setup.shared.control.episodes(self.setup.policy))
        return payload_of(self.trainer, self.progress)

    def _best_on_disk(self) -> float:
        """The best policy's objective, -inf without one or of another metric. A killed run may have saved it last."""
        assert self._directory is not None
        try:
            best = self._directory.load("best")
            saved = None if best is None else SavedState.of(best.payload, best.path)
            if saved is not None and saved.best_metric == self.progress.best_metric:
                return saved.best_objective
        except CheckpointError as error:
            log.warning("%s", error)
        return float("-inf")
