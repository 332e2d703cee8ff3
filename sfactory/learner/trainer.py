"""Room: gradient steps. In: batches. Out: changed weights, statistics, and the count of updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.coefficients import Coefficients
from sfactory.learner.diagnostics import keep_evidence
from sfactory.learner.gradient_step import GradientStep
from sfactory.learner.loss import AuxiliaryTask, LossFunction, Weights
from sfactory.learner.minibatches import Dataset, Minibatch, Minibatches
from sfactory.learner.targets import TargetNetwork
from sfactory.learner.train_stats import (
    Learned,
    LossTerms,
    Means,
    Rows,
    UpdateStats,
    mean_of,
    on_host,
    row_of,
    statistics_of,
    steps_learned,
)
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.cpc import Auxiliary
from sfactory.seeds import Branch, seed_at


class Trainer:
    """Model and optimiser, and what they do to datasets. ``train_step``: see NOTE [Train step].

    A dataset is opened, learned from in one pass or several, and closed; several may be open at once, and their passes
    may come in any order. ``train`` does all of it to one.
    """

    def __init__(
        self,
        model: ActorCritic,
        algo: AlgoConfig,
        optim: OptimConfig,
        learner: LearnerConfig,
        *,
        seed: int,
        policy: int,
        total_env_steps: int,
        auxiliary: Auxiliary | None = None,
        evidence: Path | None = None,
    ) -> None:
        """``seed`` and ``policy`` decide how minibatches are shuffled; ``total_env_steps``: where linear decay ends.

        ``evidence``: the folder in which a batch is kept that training failed at; None: it is not kept.
        """
        self.model = model
        self.coefficients = Coefficients(optim, algo, total_env_steps)
        self.updater = GradientStep(model, optim, () if auxiliary is None else auxiliary.parameters())
        self.target: TargetNetwork | None = None
        if algo.use_target_net:
            self.target = TargetNetwork(model, algo.target_update_interval, algo.target_tau)
        self._auxiliary = None if auxiliary is None else AuxiliaryTask(auxiliary, seed, policy)
        self._objective = LossFunction(model, algo, self.target, self._auxiliary)
        self._algo, self._learner, self._total_env_steps = algo, learner, total_env_steps
        self._seed, self._policy, self._evidence = seed, policy, evidence
        self._record = UpdateStats(learner.max_bad_steps)
        self._oldest: int | None = None  # no step of an older policy version is learned from
        self._closed = Means()  # of the dataset that was closed last

    def adopt(self, algo: AlgoConfig, optim: OptimConfig, learner: LearnerConfig, env_steps: int) -> None:
        """Learn on, from the next minibatch, under other values of what may change in mid-run.

        What adapts itself begins anew from a value that has changed, and goes on otherwise.
        """
        before = self.coefficients.state()
        self.coefficients = Coefficients(optim, algo, self._total_env_steps)
        self.coefficients.restore(before)
        self.coefficients.at(env_steps)
        self.updater.adopt(optim)
        self._objective.config = self._algo = algo
        self._learner = learner

    def forget_what_was_sampled(self) -> None:
        """The weights are others now: what was sampled before is not learned from. Counts as an update."""
        self.train_step += 1
        self._oldest = self.train_step

    def aged(self, batch: Batch) -> Batch:
        """``batch`` at the present train step: valid is what may still teach."""
        return batch.aged(self.train_step, *self._limits())

    def _limits(self) -> tuple[int, int]:
        """Below which lag a step is valid, and a replayed one."""
        limits = self._learner.max_policy_lag, self._learner.max_replay_lag
        if self._oldest is None:
            return limits
        since = self.train_step - self._oldest + 1
        return min(limits[0], since), min(limits[1], since)

    @property
    def auxiliary(self) -> Auxiliary | None:
        """The auxiliary loss, whose weights are saved with the model's."""
        return None if self._auxiliary is None else self._auxiliary.module

    @property
    def train_step(self) -> int:
        """Updates, those of earlier sessions included."""
        return self._record.train_step

    @train_step.setter
    def train_step(self, value: int) -> None:
        self._record.train_step = value

    @property
    def skipped(self) -> int:
        """Updates that changed nothing, because their loss or gradient was not finite."""
        return self._record.skipped

    @property
    def updates(self) -> int:
        """Updates made since ``clear_statistics``."""
        return self._record.updates

    def statistics(self) -> dict[str, float]:
        """By the names in TRAIN_STATISTICS: means over these updates, NaN without any, and coefficients of now."""
        return self._record.means() | self.coefficients.by_name()

    def dataset_statistics(self) -> dict[str, float]:
        """As ``statistics``, over the updates of the dataset that was closed last; empty if it had none."""
        return self._closed.value() | self.coefficients.by_name() if self._closed.updates else {}

    def clear_statistics(self) -> None:
        """Begin new means."""
        self._record.clear()

    def train(self, batch: Batch, stopping: Callable[[], bool] = lambda: False) -> int:
        """All epochs and minibatches of one dataset, or as many as there are before ``stopping()`` is true.

        Returns how many fresh steps have been learned from, each counted once. Raises DivergedError.
        """
        dataset = self.open(batch)
        while self.learn(dataset, stopping) and dataset.passes < self._learner.num_epochs:
            pass
        return self.close(dataset)

    def open(self, batch: Batch) -> Dataset:
        """Begin with a dataset: what is made of it once, before any pass. Nothing random is drawn."""
        first = not self.train_step
        if first:
            # Without any statistics the first weights would be made for inputs of another size.
            self._observe(batch)
            if self.target is not None:
                self.target.copy()
        targets = self._objective.gae_targets(batch)
        if targets is not None:
            self.model.value_head.observe(targets.returns, batch.fresh)
        return Dataset(batch, targets, observed=first)

    def learn(self, dataset: Dataset, stopping: Callable[[], bool] = lambda: False) -> bool:
        """One pass over the minibatches of a dataset, with the weights of now; ``stopping`` is asked before each.

        Steps whose policy has become too old since the last pass are masked. True if another pass makes sense: it was a
        whole one, and neither ``early_stop_loss_change`` nor ``early_stop_kl`` says that enough is learned. Raises
        DivergedError, or what a pass fails with, after the batch was kept as evidence.
        """
        try:
            return self._learn(dataset, stopping)
        except (DivergedError, RuntimeError) as error:
            if self._evidence is not None:
                kept = keep_evidence(
                    self._evidence,
                    batch=dataset.batch,
                    model=self.model,
                    train_step=self.train_step,
                    reason=f"{type(error).__name__}: {error}",
                )
                error.args = (f"{error}; {kept}",)
            raise

    def close(self, dataset: Dataset) -> int:
        """Do what is due after the last pass over a dataset; returns how many fresh steps were learned from."""
        if dataset.learned.fresh and self.coefficients.looks_at_datasets:
            learner = self._learner
            batch = self.aged(dataset.batch)
            size = learner.microbatch_size or learner.batch_size
            kl = self._objective.divergence(Minibatch(batch, dataset.targets), size)
            if not math.isnan(kl):
                self.coefficients.after_dataset(kl)
        if not dataset.observed:
            # Not before: the policy that is learned from, and measured, would see other inputs than when it acted.
            self._observe(dataset.batch)
            dataset.observed = True
        self._closed = dataset.means
        return dataset.learned.fresh

    def _observe(self, batch: Batch) -> None:
        self.model.observe({key: obs[:-1] for key, obs in batch.obs.items()}, batch.fresh)

    def _learn(self, dataset: Dataset, stopping: Callable[[], bool]) -> bool:
        learner = self._learner
        first = dataset.passes == 0
        dataset.passes += 1
        minibatches = self._minibatches(dataset)
        minibatches.age(self.train_step, *self._limits())
        if self._auxiliary is not None:
            self._auxiliary.begin(self.train_step)
        rows: list[Tensor] = []
        for minibatch in minibatches.epoch():
            if stopping():
                break
            rows.append(self._update(minibatch, first))
        done = on_host(rows)
        dataset.means.add(done)
        self._record.add(done)
        # A pass that is broken off, or in which steps have grown too old, learns from fewer of them.
        dataset.learned = Learned(*map(max, dataset.learned, steps_learned(done)))
        if len(rows) < learner.num_batches_per_epoch:
            return False
        self.coefficients.after_epoch()
        return not self._is_enough(dataset, done)

    def _is_enough(self, dataset: Dataset, done: Rows) -> bool:
        """Whether the updates of a whole pass say that there is nothing more to gain, or nothing more to risk."""
        learner = self._learner
        loss, last_loss = mean_of("policy_loss", done), dataset.last_loss
        dataset.last_loss = loss
        too_far = bool(learner.early_stop_kl) and mean_of("kl", done) > learner.early_stop_kl
        return too_far or abs(loss - last_loss) < learner.early_stop_loss_change

    def _update(self, minibatch: Minibatch, first: bool) -> Tensor:
        """Learn from one minibatch; returns what became of it, see ``row_of``. ``first``: in the first pass."""
        batch, size = minibatch.batch, self._learner.microbatch_size
        weights = Weights(self.coefficients.exploration, self.coefficients.kl)
        parts, auxiliary = [], torch.zeros((), device=batch.valid.device)
        self.updater.begin()
        for part in self._objective.parts(minibatch, size, weights):
            self.updater.backward(part.loss)
            parts.append(part.cells)
            auxiliary = auxiliary + part.auxiliary
        # Adam's momentum would move the weights even where no step of the minibatch is valid.
        applied = self.updater.step(self.coefficients.rates, wanted=batch.valid.any())
        self.model.follow_update(applied.taken)
        if self.target is not None:
            self.target.after_update(applied.taken)
        cells = LossTerms.joined(parts)
        if first and minibatch.targets is None:
            # V-trace makes its targets per minibatch; every step's is observed once.
            self.model.value_head.observe(cells.target, cells.fresh & applied.taken)
        if self.coefficients.looks_at_updates and bool(applied.taken):
            kl = self._objective.divergence(minibatch, size)
            if not math.isnan(kl):
                self.coefficients.after_update(kl)
        return row_of(batch, statistics_of(cells, self._algo.ppo_clip_ratio, auxiliary), applied)

    def _minibatches(self, dataset: Dataset) -> Minibatches:
        """Those of the dataset, drawn the same again if the run is resumed where its first pass begins."""
        if dataset.minibatches is None:
            generator = None
            if self._learner.shuffle_minibatches:
                place = seed_at(self._seed, Branch.SHUFFLE, self._policy, self.train_step)
                generator = torch.Generator().manual_seed(place)
            count = self._learner.num_batches_per_epoch
            dataset.minibatches = Minibatches(dataset.batch, dataset.targets, count, generator)
        return dataset.minibatches
