"""Room: one dataset from staging to published weights. In: full staging areas. Out: weights, counts, statistics.

Room: when weights reach the policies. In: the count of updates. Out: published weights, or an error: they are bad.

What is published reaches every reader: it lies in shared memory, see NOTE [Weights seqlock].
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfactory.clock import Every, now
from sfactory.config.schema import LearnerConfig
from sfactory.errors import DivergedError, SFactoryError
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Checkpointer, Progress, take_over
from sfactory.learner.commands import execute, with_values
from sfactory.learner.hooks import Hooks
from sfactory.learner.loss import make_auxiliary
from sfactory.learner.minibatches import Dataset
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import REPLAYED, Columns
from sfactory.learner.timing_stats import LagStats, Timings
from sfactory.learner.trainer import Trainer
from sfactory.messages import TrainStats
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.model.precision import allow_tf32, compute_dtype
from sfactory.shared.status import State, StatusRow
from sfactory.shared.weights import SharedWeights


class Publisher:
    """Publishes every ``interval`` updates; looked at after each pass over a dataset."""

    def __init__(
        self, flat: FlatState, weights: SharedWeights, interval: int, unpublished: FlatState | None = None
    ) -> None:
        """``unpublished``: what is learned along but not acted with; it has to be finite, too."""
        self._flat, self._weights, self._interval, self._unpublished = flat, weights, interval, unpublished
        self._last = 0

    def publish(self, train_step: int) -> None:
        """Publish now, as policy version ``train_step``; raises DivergedError instead if a weight is not finite."""
        self.check(train_step)
        self._weights.publish(self._flat.to_host(), train_step)
        self._last = train_step

    def after_updates(self, train_step: int) -> bool:
        """Publish if it is due; whether it was. Raises DivergedError as ``publish`` does."""
        due = train_step - self._last >= self._interval
        if due:
            self.publish(train_step)
        return due

    def check(self, train_step: int) -> None:
        """Raises DivergedError if a weight is not finite, so that it is neither published nor saved."""
        if not self._flat.is_finite() or not (self._unpublished is None or self._unpublished.is_finite()):
            raise DivergedError(
                f"weights are not finite after update {train_step}; they were not published or "
                "saved; lower --learning_rate, or look for extreme rewards or observations"
            )


_STATS_EVERY_S = 0.25
_END_S = 600.0  # of one minibatch, or a save, that is under way at a limit; after a stop main waits for less


class Learner:
    """The learner's model and everything that happens to it. One thread learns; any may finish."""

    def __init__(self, setup: LearnerSetup, row: StatusRow) -> None:
        self._setup, self._row = setup, row
        self._algo, self._learner = setup.algo, setup.learner
        self._device = torch.device(setup.device)
        dtype = compute_dtype(setup.model.amp, self._device)
        allow_tf32(setup.model.amp, self._device)
        model = ActorCritic(setup.spec, setup.model, dtype).to(self._device)
        auxiliary = make_auxiliary(model, setup.algo)
        unpublished = None if auxiliary is None else FlatState(auxiliary.to(self._device))
        self._publisher = Publisher(FlatState(model), setup.weights, setup.learner.publish_interval, unpublished)
        self._trainer = Trainer(
            model,
            setup.algo,
            setup.optim,
            setup.learner,
            seed=setup.seed,
            policy=setup.policy,
            total_env_steps=setup.limits.env_steps,
            auxiliary=auxiliary,
            evidence=None if setup.checkpoint_dir is None else Path(setup.checkpoint_dir),
        )
        self.progress = Progress(best_metric=setup.checkpoint.save_best_metric)
        self.checkpointer = Checkpointer(setup, self._trainer, self.progress, row, self._publisher.check)
        self._hooks = Hooks.of(setup.after_train_step)
        self._lag, self._replay_lag = LagStats(), LagStats()
        self._stats_due = Every(_STATS_EVERY_S)
        self._changing = threading.Lock()
        self._failure: BaseException | None = None
        self._finished = False
        self._open = 0  # datasets
        self.timings = Timings()

    def begin(self) -> None:
        """Load the checkpoint, if any, and publish the first weights."""
        self.checkpointer.load()
        self._write_row()
        self.publish()

    @property
    def finished(self) -> bool:
        """Whether it has had its last words, see ``finish``."""
        return self._finished

    @property
    def failed(self) -> bool:
        """Whether something was raised while it learned: nothing is saved of it any more."""
        return self._failure is not None

    @property
    def wants_no_more(self) -> bool:
        """True once no further dataset is to be opened: a limit is reached, or a hook has failed."""
        return self._hooks.failed or self.progress.reached(self._setup.limits)

    @property
    def over(self) -> bool:
        """True once no more datasets are wanted and none is open; a limit of seconds waits for no pass."""
        if self.progress.train_seconds >= self._setup.limits.seconds:
            return True
        return not self._open and self.wants_no_more

    def learn(self, columns: Columns) -> None:
        """Every pass over one dataset, from open to close."""
        dataset = self.open(columns)
        for _ in range(self._learner.num_epochs):
            if not self.one_pass(dataset):
                break
        self.close(dataset)

    def open(self, columns: Columns) -> Dataset:
        """A dataset is to be learned from. ``columns`` stay as they are until it is closed."""
        with self._changing_model():
            trainer = self._trainer
            batch = Batch.of(columns, self._algo, self._learner, trainer.train_step, self._device)
            self._look_at(columns)
            trainer.coefficients.at(self.progress.env_steps)
            self._open += 1
            self._row.add("datasets", 1)
            return trainer.open(trainer.aged(batch))

    def one_pass(self, dataset: Dataset) -> bool:
        """Learn from every minibatch of ``dataset`` once, publish, do what is due; whether another pass makes sense.

        Steps count once the first pass over them is done.
        """
        with self._changing_model():
            if self._finished:
                return False
            trainer, before = self._trainer, dataset.learned
            updates, since = trainer.train_step, now()
            with self.timings.stretch("grad"):
                more = trainer.learn(dataset, self._stopping)
            # How long a stop may have to wait for the minibatch that is under way.
            took = (now() - since) / max(1, trainer.train_step - updates)
            self._row.set("update_s", max(took, self._row.get("update_s")))
            self.progress.add(dataset.learned, before)
            self._row.add("replayed_steps", dataset.learned.replayed - before.replayed)
            with self.timings.stretch("publish"):
                self._publisher.after_updates(trainer.train_step)
            self._write_row()
            return more

    def close(self, dataset: Dataset) -> None:
        """After the last pass over ``dataset``."""
        with self._changing_model():
            self._open -= 1
            if self._finished:
                return
            trainer, setup = self._trainer, self._setup
            trainer.close(dataset)
            self._write_row()
            self._hooks.after_dataset(trainer, setup.policy, self.progress.env_steps)
            if self._stats_due.due():
                self.report()
            self.checkpointer.after_dataset()
            self._obey()

    @property
    def learner(self) -> LearnerConfig:
        """The values in force, which may change in mid-run."""
        return self._learner

    def adopt(self, hyperparameters: Mapping[str, float]) -> None:
        """Learn on under other values of these flags."""
        setup = self._setup
        self._algo, optim, self._learner = with_values(hyperparameters, setup.algo, setup.optim, setup.learner)
        self._trainer.adopt(self._algo, optim, self._learner, self.progress.env_steps)

    def take_over(self, payload: Mapping[str, Any], where: str) -> None:
        """Learn on with the weights and the optimiser of another policy; steps and time stay this policy's own.

        What this one has sampled so far is not learned from.
        Raises CheckpointError, and leaves all as it was, if ``payload`` does not fit.
        """
        take_over(dict(payload), where, self._trainer)
        self._trainer.forget_what_was_sampled()
        self.publish()

    @property
    def ordered(self) -> bool:
        """Whether main has ordered something that is not carried out yet."""
        return self._setup.orders is not None and self._setup.orders.waiting(self._setup.policy) is not None

    def obey(self) -> None:
        """Carry out what main has ordered, if it has ordered anything: to be called while no dataset comes."""
        if self.ordered:
            with self._changing_model():
                if not self._finished:
                    self._obey()

    def _obey(self) -> None:
        orders, policy = self._setup.orders, self._setup.policy
        order = None if orders is None else orders.waiting(policy)
        if orders is not None and order is not None:
            orders.answered(policy, execute(order, self))
            self._write_row()

    def _look_at(self, columns: Columns) -> None:
        """Lags of what came new, and of what is replayed; of steps that are masked for it, too."""
        scalars = columns.scalars
        lag, taken = self._trainer.train_step - scalars["policy_version"], scalars["valid"]
        if REPLAYED in scalars:
            self._replay_lag.add_sums(*_lag_sums(lag, taken & scalars[REPLAYED]))
            taken = taken & ~scalars[REPLAYED]
        self._lag.add_sums(*_lag_sums(lag, taken))

    def _stopping(self) -> bool:
        """Whether a pass is to be broken off. A limit of env steps is no reason: what is open is learned from whole."""
        return self._setup.control.stopping or self.progress.train_seconds >= self._setup.limits.seconds

    @contextlib.contextmanager
    def _changing_model(self) -> Iterator[None]:
        with self._changing:
            try:
                yield
            except BaseException as failure:
                self._failure = failure  # what is left of a dataset that failed is not to be saved
                raise

    @property
    def train_step(self) -> int:
        """Minibatch updates so far, those of earlier sessions included."""
        return self._trainer.train_step

    def publish(self) -> None:
        """Publish the weights; raises DivergedError instead if they are not finite."""
        self._publisher.publish(self._trainer.train_step)

    def report(self) -> None:
        """Send statistics since the last report to main; if main is behind, they go with the next."""
        trainer = self._trainer
        if not trainer.updates:
            return
        stats = TrainStats(
            policy=self._setup.policy,
            updates=trainer.updates,
            lag=self._lag.value(),
            replay_lag=self._replay_lag.value(),
            **trainer.statistics(),
        )
        if self._setup.to_main.try_put(stats):
            times = self.timings.message(self._setup.policy, trainer.updates)
            trainer.clear_statistics()
            self._lag.clear()
            self._replay_lag.clear()
            if self._setup.to_main.try_put(times):
                self.timings.clear()

    def finish(self, save: bool) -> None:
        """Last words, after which nothing is learned any more: statistics, and the final checkpoint if ``save``.

        Waits for what is being learned. If that fails, its failure is raised, and nothing is saved. That of a hook is
        raised, too, but what was learned before it is whole, and is saved first.
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
                self.checkpointer.finish()
            self._hooks.raise_failure()
            if self.over:
                self._row.set("state", State.DONE)
        finally:
            self._changing.release()

    def _write_row(self) -> None:
        row, progress = self._row, self.progress
        seconds, grew = progress.train_seconds, progress.run_env_steps != row.get("run_env_steps")
        row.set("env_steps", progress.env_steps)
        row.set("agent_steps", progress.agent_steps)
        row.set("run_env_steps", progress.run_env_steps)
        row.set("updates", self._trainer.train_step)
        row.set("train_seconds", seconds)
        if grew:  # after the steps: who reads this before them sees no fewer than it was written for
            row.set("counted_at", seconds)
        row.set("publications", self._setup.weights.publications)
        if self._trainer.target is not None:
            row.set("target_updates", int(self._trainer.target.moves))


def _lag_sums(lag: Tensor, which: Tensor) -> list[float]:
    """Least, greatest, sum and count of ``lag`` [T, R] where ``which`` [T, R] bool; waits for the device once."""
    lags = lag.double()
    least, greatest = torch.where(which, lags, math.inf).min(), torch.where(which, lags, -math.inf).max()
    sums: list[float] = torch.stack((least, greatest, torch.where(which, lags, 0.0).sum(), which.sum())).tolist()
    return sums
