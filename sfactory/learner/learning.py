"""Room: one dataset from staging to published weights. In: full staging areas. Out: weights, counts, statistics."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from sfactory.clock import Every
from sfactory.errors import DivergedError, SFactoryError
from sfactory.learner.batch import Batch
from sfactory.learner.keeper import CheckpointKeeper
from sfactory.learner.progress import Progress
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import Staging
from sfactory.learner.trainer import Trainer
from sfactory.messages import TrainStats
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.model.precision import allow_tf32, compute_dtype
from sfactory.shared.status import State, StatusRow

_STATS_EVERY_S = 0.25
_END_S = 600.0  # of one minibatch, or a save, that is under way at a limit; after a stop main waits for less


class _LagStats:
    """Minimum, mean and maximum of the policy lag over datasets, over steps that it masks, too."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.minimum, self.maximum, self._total, self._count = float("inf"), 0.0, 0.0, 0

    def add(self, lag: Tensor, taken: Tensor) -> None:
        """Take in a dataset. ``lag``: [T, R] int32, as in Batch; ``taken``: [T, R] bool - it is the lag of a step."""
        lags = lag[taken].double()
        if lags.numel():
            self.minimum = min(self.minimum, float(lags.min()))
            self.maximum = max(self.maximum, float(lags.max()))
            self._total += float(lags.sum())
            self._count += lags.numel()

    @property
    def mean(self) -> float:
        return self._total / self._count if self._count else 0.0


class Learning:
    """The learner's model and everything that happens to it. One thread learns; any may finish."""

    def __init__(self, setup: LearnerSetup, row: StatusRow) -> None:
        self._setup, self._row = setup, row
        self._device = torch.device(setup.device)
        dtype = compute_dtype(setup.model.amp, self._device)
        allow_tf32(setup.model.amp, self._device)
        model = ActorCritic(setup.spec, setup.model, dtype).to(self._device)
        self._flat = FlatState(model)
        self._trainer = Trainer(
            model,
            setup.algo,
            setup.optim,
            setup.learner,
            seed=setup.seed,
            policy=setup.policy,
            total_env_steps=setup.limits.env_steps,
        )
        self.progress = Progress(best_metric=setup.checkpoint.save_best_metric)
        self.keeper = CheckpointKeeper(setup, self._trainer, self.progress, row)
        self._lags = _LagStats()
        self._stats_due = Every(_STATS_EVERY_S)
        self._changing = threading.Lock()
        self._failure: BaseException | None = None
        self._finished = False

    def begin(self) -> None:
        """Load the checkpoint, if any, and publish the first weights."""
        self.keeper.load()
        self._write_row()
        self.publish()

    @property
    def over(self) -> bool:
        """True once a limit is reached."""
        return self.progress.reached(self._setup.limits)

    def learn(self, staging: Staging) -> None:
        """Train on a full staging area, publish, and do what is due."""
        with self._changing:
            if self._finished:
                return
            try:
                self._learn(staging)
            except BaseException as failure:
                self._failure = failure  # what is left of a dataset that failed is not to be saved
                raise

    def _learn(self, staging: Staging) -> None:
        setup, trainer, progress = self._setup, self._trainer, self.progress
        trainer.coefficients.at(progress.env_steps)
        batch = Batch.of(staging, setup.algo, trainer.train_step, setup.learner.max_policy_lag, self._device)
        if self._device.type != "cpu":
            # The staging area is filled anew once this call returns: its copies to the device must be over.
            torch.cuda.current_stream(self._device).synchronize()
        self._lags.add(trainer.train_step - staging.scalars["policy_version"], staging.scalars["valid"])
        progress.env_steps += trainer.train(batch, lambda: setup.control.stopping or self.over)
        self.publish()
        self._write_row()
        if self._stats_due.due():
            self.report()
        self.keeper.after_dataset()

    @property
    def train_step(self) -> int:
        """Minibatch updates so far, those of earlier sessions included."""
        return self._trainer.train_step

    def publish(self) -> None:
        """Publish the weights; raises DivergedError instead if they are not finite."""
        if not self._flat.is_finite():
            raise DivergedError(
                f"weights are not finite after update {self._trainer.train_step}; they were not published or "
                "saved; lower --learning_rate, or look for extreme rewards or observations"
            )
        self._setup.weights.publish(self._flat.to_host(), self._trainer.train_step)

    def report(self) -> None:
        """Send statistics since the last report to main; if main is behind, they go with the next."""
        trainer, lags = self._trainer, self._lags
        if not trainer.updates:
            return
        lag = (0.0 if lags.minimum == float("inf") else lags.minimum, lags.mean, lags.maximum)
        stats = TrainStats(
            policy=self._setup.policy,
            updates=trainer.updates,
            learning_rate=trainer.coefficients.rates.policy,
            lag_min=lag[0],
            lag_mean=lag[1],
            lag_max=lag[2],
            **trainer.statistics(),
        )
        if self._setup.to_main.try_put(stats):
            trainer.clear_statistics()
            lags.clear()

    def finish(self, save: bool) -> None:
        """Last words, after which nothing is learned any more: statistics, and the final checkpoint if ``save``.

        Waits for what is being learned. If that fails, its failure is raised, and nothing is saved.
        """
        if not self._changing.acquire(timeout=_END_S):
            raise SFactoryError(f"training did not come to a stop within {_END_S:.0f} s; nothing was saved")
        try:
            self._finished = True
            if self._failure is not None:
                raise self._failure
            self.report()
            self._write_row()
            if save:
                self.keeper.finish()
            if self.over:
                self._row.set("state", State.DONE)
        finally:
            self._changing.release()

    def _write_row(self) -> None:
        row, progress = self._row, self.progress
        row.set("env_steps", progress.env_steps)
        row.set("agent_steps", progress.env_steps)
        row.set("updates", self._trainer.train_step)
        row.set("train_seconds", progress.train_seconds)
