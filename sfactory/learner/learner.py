"""A policy's model while it learns: training, publishing, saving and reporting, under one lock.

Published weights lie in shared memory, which every reader sees, see NOTE [Weights seqlock].
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from sfactory.clock import Every, now
from sfactory.config.task_defaults import why_not_recorded
from sfactory.errors import DivergedError, RankLost, SFactoryError
from sfactory.learner.auxiliary import make_auxiliary
from sfactory.learner.batch import Batch
from sfactory.learner.checkpointing import Checkpointer, Progress
from sfactory.learner.commands import CommandExecutor
from sfactory.learner.hooks import Hooks
from sfactory.learner.initial_weights import add_up, begin_with_weights, share
from sfactory.learner.minibatches import Dataset
from sfactory.learner.setup import LearnerSetup
from sfactory.learner.staging import Columns
from sfactory.learner.train_stats import Lags
from sfactory.learner.trainer import Trainer
from sfactory.messages import TrainStats
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.averaging import Averaging
from sfactory.model.flat_state import FlatState
from sfactory.model.precision import allow_tf32, compute_dtype, time_convolutions
from sfactory.ranks.agreement import Agreement, Apart
from sfactory.ranks.ranks import ALONE, Ranks
from sfactory.shared.control import Stop
from sfactory.shared.status import State, StatusRow
from sfactory.shared.timing_stats import Timings
from sfactory.shared.weights import COUNTS, SharedWeights
from sfactory.system.cuda_graphs import GraphRecorder
from sfactory.system.gpu import HostCopies

_log = logging.getLogger(__name__)

_STATS_EVERY_S = 0.25
_COMPILE_S = 30.0  # of an update that torch.compile compiles, at the most that a stop has to reckon with
_END_S = 600.0  # for a minibatch, or a save, that is under way at a limit; after a stop main waits for less

Begun = tuple[HostCopies | None, HostCopies]  # of the block, unless it stays on the device; of sums of weights


class Publisher:
    """Publishes the weights, every ``interval`` updates or at once, unless one is not finite.

    waits: collection waits for the learner, so no action is chosen until a dataset is closed. The weights are published
    then, with its observations in their statistics, so that the next one is learned from with those that it was acted
    with.
    version: policy version of the last publication. publications: their number in this session. timings: of them.
    copy: the block of weights as it was last published, on the device of the model; only without SharedWeights.
    """

    def __init__(
        self,
        flat: FlatState,
        weights: SharedWeights | None,
        interval: int,
        *unpublished: FlatState,
        waits: bool = False,
        confirm: Callable[[], None] = ALONE.confirm,
        counts: Callable[[], Sequence[float]] = lambda: (0.0,) * len(COUNTS),
    ) -> None:
        """weights: None where ``copy`` is read, in this process. unpublished: weights that are trained but not acted
        with; they have to be finite, too. confirm: of WholeState. counts: gives COUNTS of the weights."""
        self.copy = torch.empty_like(flat.block if weights is None else flat.block[:0])
        self._flat, self._weights, self._interval, self._trained = flat, weights, interval, (flat, *unpublished)
        self._waits, self._confirm, self._counts = waits, confirm, counts
        self.version = self.publications = 0
        self.timings = Timings()

    def begin(self) -> Begun:
        """Begin to publish the present weights: ``publish`` waits less if the host has waited for the device since."""
        block = None if self._weights is None else self._flat.host_copy()
        return block, self._sums()

    def publish(self, train_step: int, begun: Begun | None = None) -> None:
        """Publish now, as policy version ``train_step``; ``begun``: the present weights, if that is known. Raises
        DivergedError as ``check``."""
        with self.timings.stretch("publish"):
            block, sums = begun or self.begin()
            self._require_finite(sums, train_step)
            if self._weights is None or block is None:
                self.copy.copy_(self._flat.block)
            else:
                self._weights.publish(block.wait()[0].numpy(), train_step, self._counts())
        self.version = train_step
        self.publications += 1

    def is_due(self, train_step: int) -> bool:
        """Whether to publish within a dataset: the last version is ``interval`` updates old."""
        return not self._waits and train_step - self.version >= self._interval

    def publish_if_due(self, train_step: int, updates: int, begun: Begun | None = None) -> None:
        """As ``publish``, if it is due, or a pass made no ``updates``: weights so old that all steps are masked go."""
        is_stuck = not updates and not self._waits and self.version < train_step
        if is_stuck or self.is_due(train_step):
            self.publish(train_step, begun)

    def after_dataset(self, train_step: int) -> None:
        """As ``publish``, where collection waits."""
        if self._waits:
            self.publish(train_step)

    def check(self, train_step: int) -> None:
        """Raises DivergedError if a weight is not finite, so that it is neither published nor saved."""
        self._require_finite(self._sums(), train_step)

    def _sums(self) -> HostCopies:
        return HostCopies(torch.stack([flat.sum() for flat in self._trained]))

    def _require_finite(self, sums: HostCopies, train_step: int) -> None:
        totals = sums.wait()[0].tolist()
        self._confirm()
        if not all(flat.is_finite(total) for flat, total in zip(self._trained, totals, strict=True)):
            raise DivergedError(
                f"weights are not finite after update {train_step}; they were not published or saved; lower "
                "--learning_rate, or look for extreme rewards or observations"
            )


class Learner:
    """A model and everything that changes, publishes or saves it. One thread trains; any may call ``finish``.

    finished: nothing is learned any more. failure: raised while learning; nothing is saved after it.
    counts: ``progress``, or with NOTE [Local updates] that of this rank since the last meeting.
    """

    def __init__(self, setup: LearnerSetup, row: StatusRow, ranks: Ranks = ALONE) -> None:
        config, self._limits = setup.config, setup.limits
        self._setup, self._row, self.control = setup, row, setup.shared.control
        if config.learner.torch_compile:
            row.set("update_s", _COMPILE_S)
        self._device = torch.device(setup.device)
        dtype = compute_dtype(config.model.amp, self._device)
        allow_tf32(config.model.amp, self._device)
        time_convolutions(config, self._device)
        model = ActorCritic(setup.spec, config.model, dtype).to(self._device)
        auxiliary = make_auxiliary(model, config.algo, config.model)
        unpublished = [] if auxiliary is None else [FlatState(auxiliary.to(self._device))]
        flat = FlatState(model)
        weights = None if setup.layout.resident else setup.weights
        waits, interval = setup.layout.slots_until_trained, config.learner.publish_interval
        graphs = config.model.cuda_graphs and self._device.type == "cuda" and setup.trains
        averaging = None
        if ranks.world > 1 and config.learner.sync_every > 1:
            averaging = Averaging(model, flat, unpublished, config.learner.sync_momentum, ranks)
        adding = ranks if averaging is None else ALONE
        if graphs and (cause := why_not_recorded(config) or ("" if adding is ALONE else "ranks add up gradients")):
            graphs = False
            _log.warning("--cuda_graphs: updates are computed kernel by kernel, since %s", cause)
        self.trainer = Trainer(
            model,
            config.algo,
            setup.optim,
            config.learner,
            seed=setup.seed,
            policy=setup.policy,
            total_env_steps=self._limits.env_steps,
            auxiliary=auxiliary,
            evidence=None if setup.checkpoint_dir is None else Path(setup.checkpoint_dir),
            recorder=GraphRecorder(self._device) if graphs else None,
            ranks=adding,
            averaging=averaging,
        )
        self.progress = Progress(best_metric=config.checkpoint.save_best_metric)
        confirm, counts = self.trainer.whole.confirm, lambda: [getattr(self.progress, of) for of in COUNTS]
        self.publisher = Publisher(flat, weights, interval, *unpublished, waits=waits, confirm=confirm, counts=counts)
        self.checkpointer = Checkpointer(setup, self.trainer, self.progress, row, self.publisher.check, flat)
        self.counts = self.progress if averaging is None else Progress()  # of this rank since the last meeting
        self._ranks, self.agreement = ranks, _agreement_of(self, flat, ranks, waits)
        self.commands = CommandExecutor(self.checkpointer, self.publisher.publish)
        self.timings = self.publisher.timings
        self._to_main = setup.shared.learners_to_main[setup.policy]
        self.finished = False
        self.failure: BaseException | None = None
        self._hooks = Hooks.of(setup.after_train_step)
        self._lags, self._stats_due = Lags(), Every(_STATS_EVERY_S)
        self._lock = threading.Lock()
        self._open_datasets = 0

    def begin(self) -> None:
        """Load the checkpoint, or what a new run begins with, and publish the first weights."""
        if not self.checkpointer.load() and self._setup.checkpoint_dir is not None:
            begin_with_weights(self.trainer, self._setup.config, self._setup.policy)
        share(self.trainer, self.progress, self._ranks)
        self.checkpointer.fill_pool()
        self._write_row()
        self.publisher.publish(self.trainer.train_step)

    @property
    def wants_no_more(self) -> bool:
        """True once no further dataset is to be opened: a limit is reached, or a hook has failed."""
        ended = self._hooks.failure is not None if self.agreement is None else bool(self.agreement.end)
        return ended or self._limits.reached(self.progress.env_steps, self._train_seconds)

    @property
    def over(self) -> bool:
        """True once no more datasets are wanted and none is open; a limit of seconds waits for no pass."""
        out_of_time = self._train_seconds >= self._limits.seconds
        return out_of_time or (not self._open_datasets and self.wants_no_more)

    @property
    def must_stop(self) -> bool:
        """Whether to end now by order of main. With several ranks an order to save is one for all, between datasets."""
        control = self.control
        return control.stopping if self.agreement is None else control.stop is Stop.NOW

    @property
    def _train_seconds(self) -> float:
        return self.progress.train_seconds if self.agreement is None else self.agreement.train_seconds

    def may_open(self, is_ready: bool) -> bool:
        """Whether to open the next dataset, if one ``is_ready``. With several ranks, once all have one, and all do."""
        if self.agreement is None:
            return is_ready
        failure = self._hooks.failure
        return self.agreement.may_open(is_ready, "" if failure is None else failure.headline) and not self.wants_no_more

    def learn(self, columns: Columns) -> None:
        """Every pass over one dataset, from open to close."""
        dataset = self.open(columns)
        for _ in range(self.trainer.learner.num_epochs):
            if not self.one_pass(dataset):
                break
        self.close(dataset)

    def open(self, columns: Columns) -> Dataset:
        """Begin to learn from a dataset. ``columns`` must not change until it is closed."""
        with self._changing_model():
            self.checkpointer.save_choice_if_due()
            trainer = self.trainer
            batch = Batch.of(columns, trainer.algo, trainer.learner, trainer.train_step, self._device)
            self._lags.count(columns.scalars, trainer.train_step)
            trainer.coefficients.at(self.progress.env_steps)
            trainer.freezer.at(self.progress.env_steps)
            self._open_datasets += 1
            return trainer.open(batch)

    def one_pass(self, dataset: Dataset) -> bool:
        """Learn from every minibatch once, count new steps, publish if due; whether another pass makes sense."""
        with self._changing_model():
            if self.finished:
                return False
            trainer, before = self.trainer, dataset.learned
            updates, since = trainer.train_step, now()
            begun: list[Begun] = []

            def begin_if_due(most: int) -> None:
                if self.publisher.is_due(updates + most):
                    begun.append(self.publisher.begin())

            with self.timings.stretch("grad"):
                more = trainer.learn(dataset, self._stopping, begin_if_due)
            # A stop may have to wait for one update.
            took = (now() - since) / max(1, trainer.train_step - updates)
            self._row.set("update_s", max(took, self._row.get("update_s")))
            self.counts.add(dataset.learned, before)
            if dataset.passes == 1 and trainer.train_step > updates:  # the end of the time may have come first
                self._row.add("datasets", 1)
            self._row.add("replayed_steps", dataset.learned.replayed - before.replayed)
            self.publisher.publish_if_due(trainer.train_step, trainer.train_step - updates, *begun)
            self._write_row()
            return more

    def close(self, dataset: Dataset) -> None:
        """After the last pass over ``dataset``: statistics, weights, hooks, checkpoints and a command that waits."""
        with self._changing_model():
            self._open_datasets -= 1
            if self.finished:
                return
            self.trainer.close(dataset)
            self.publisher.after_dataset(self.trainer.train_step)
            self._write_row()
            self._hooks.after_dataset(self.trainer, dataset.means, self._setup.policy, self.progress.env_steps)
            if self._stats_due.due():
                self.report()
            if self.trainer.averaging is None:
                self.checkpointer.after_dataset()
            if self.commands.execute_waiting():
                self._write_row()

    def execute_command(self) -> None:
        """Execute a command that waits, and save if that is due; for the time in which no dataset comes."""
        if self.commands.is_due:
            with self._changing_model():
                self.checkpointer.save_choice_if_due()
                if not self.finished and self.commands.execute_waiting():
                    self._write_row()

    def report(self) -> None:
        """Send statistics since the last report to main; if its queue is full they are part of the next report."""
        lag, replay_lag = self._lags.value()
        if self.trainer.target is not None:
            self._row.set("target_updates", int(self.trainer.target.moves))  # waits for the device
        stats, to_main, policy = self.trainer.stats, self._to_main, self._setup.policy
        updates = stats.means.updates
        if not updates:
            return
        numbers = self.trainer.statistics()
        if to_main.try_put(TrainStats(policy=policy, updates=updates, lag=lag, replay_lag=replay_lag, **numbers)):
            times = self.timings.message(policy, updates)
            self.trainer.clear()
            self._lags.clear()
            if to_main.try_put(times):
                self.timings.clear()

    def finish(self, save: bool) -> None:
        """End learning after the pass under way: raise if it failed, else report, save, then raise a hook's failure."""
        if not self._lock.acquire(timeout=_END_S):
            raise SFactoryError(f"training did not come to a stop within {_END_S:.0f} s; nothing was saved")
        try:
            self.finished = True
            # Whatever another rank does, updates of this one are whole.
            if self.failure is not None and not isinstance(self.failure, RankLost):
                raise self.failure
            self.failure = self.trainer.whole.settle() or self.failure
            self.report()
            self._write_row()
            if save:
                self.checkpointer.finish()
                self._write_row()  # without updates that it has dropped
            for failure in (self.failure, self._hooks.failure):
                if failure is not None:
                    raise failure
            if self.agreement is not None:
                self.agreement.require_own_end()
            if self.over:
                self._row.set("state", State.DONE)
        finally:
            self._lock.release()

    def _stopping(self) -> bool:
        """Whether to break off a pass. A limit of env steps does not: open datasets are learned from to their end."""
        if self.agreement is not None:  # the others would wait for the rest of the pass
            return False
        return self.control.stopping or self.progress.train_seconds >= self._limits.seconds

    @contextlib.contextmanager
    def _changing_model(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except BaseException as failure:
                self.failure = failure  # nothing of a half-learned dataset may be saved
                raise

    def give(self, averaging: Averaging) -> Sequence[int]:
        """Keep weights for a meeting; returns their version, and steps since the last one. See NOTE [Local updates]."""
        with self._changing_model():
            self.publisher.check(self.trainer.train_step)  # no other rank gets weights that are not finite
            averaging.give()
            counts, self.counts = self.counts, Progress()
            return self.trainer.train_step, counts.agent_steps, counts.env_steps, counts.run_env_steps

    def join(self, averaging: Averaging, counts: Sequence[Sequence[int]]) -> None:
        """Take over the mean of all ranks, after a meeting; ``counts``: what each of them gave."""
        with self._changing_model():
            since = self.trainer.train_step - counts[self._ranks.rank][0]
            add_up(self.trainer, self.progress, counts)
            self.progress.write_to(self._row)  # not the updates, which are those of the mean until ``go_on``
            self.checkpointer.after_dataset()  # while the weights are the mean
            averaging.go_on()
            self.trainer.train_step += since
            self.publisher.publish(self.trainer.train_step)
            self._write_row()

    def _write_row(self) -> None:
        self._row.set("updates", self.trainer.train_step)
        self.progress.write_to(self._row)
        self._row.set("publications", self.publisher.publications)


def _agreement_of(learner: Learner, flat: FlatState, ranks: Ranks, waits: bool) -> Agreement | None:
    """``waits``: see Apart."""
    trainer, control = learner.trainer, learner.control
    stop, seconds, has_enough = lambda: control.stop, lambda: learner.progress.train_seconds, lambda: control.has_enough
    if ranks.world == 1:
        return None
    if (averaging := trainer.averaging) is None:
        return Agreement(ranks, stop, seconds, lambda: zlib.crc32(flat.to_host().data), None, has_enough)
    updates = trainer.learner.num_epochs * trainer.learner.num_batches_per_epoch
    datasets = math.ceil(trainer.learner.sync_every / updates)
    give, join = partial(learner.give, averaging), partial(learner.join, averaging)
    apart = Apart(datasets, give, averaging.exchange, join, waits)
    return Agreement(ranks, stop, seconds, averaging.checksum, apart, has_enough)
