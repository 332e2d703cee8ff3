"""Turns datasets into gradient steps: passes, minibatches, updates, and what follows each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError, named
from sfactory.learner.auxiliary import Exploration, task_of
from sfactory.learner.batch import Batch
from sfactory.learner.coefficients import Coefficients, InForce
from sfactory.learner.diagnostics import keep_evidence
from sfactory.learner.gradient_step import GradientStep
from sfactory.learner.loss import LossFunction
from sfactory.learner.minibatches import Dataset, Minibatch, Selection, epoch_of
from sfactory.learner.recorded_updates import RecordedUpdates
from sfactory.learner.targets import TargetNetwork
from sfactory.learner.train_stats import (
    INTRINSIC,
    Learned,
    LossTerms,
    Means,
    UpdateStats,
    divergences_of,
    on_host,
    over_all_ranks,
    row_of,
    statistics_of,
    steps_learned,
    sums_of,
    with_divergence,
)
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.averaging import Averaging
from sfactory.model.cpc import CpcAction
from sfactory.model.parts import Freezer
from sfactory.model.rnd import Rnd
from sfactory.ranks.ranks import ALONE, Ranks
from sfactory.ranks.sums import WholeState
from sfactory.seeds import Branch, seed_at
from sfactory.system.cuda_graphs import Recorder
from sfactory.system.gpu import HostCopies


class Trainer:
    """Model and optimizer, and what they do to datasets. ``train_step``: see NOTE [Train step].

    A dataset is opened, learned from in one pass or several, and closed; several may be open at once, and their passes
    may come in any order. ``train`` does all of it to one. ``algo``, ``learner``: the settings in force.
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
        auxiliary: CpcAction | Rnd | None = None,
        evidence: Path | None = None,
        recorder: Recorder | None = None,
        ranks: Ranks = ALONE,
        averaging: Averaging | None = None,
    ) -> None:
        """``total_env_steps``: where linear decay ends. ``evidence``: folder for the batch at which training fails.

        ``recorder``: updates are recorded by it and replayed; not where ``why_not_recorded`` has a reason, nor with
        several ``ranks``, see NOTE [Ranks]. ``averaging``: of the weights, apart from updates.
        """
        self.model, self.algo, self.learner = model, algo, learner
        self.coefficients = Coefficients(optim, algo, total_env_steps)
        beside = () if auxiliary is None else auxiliary.parameters()
        self.updater = GradientStep(model, optim, [parameter for parameter in beside if parameter.requires_grad])
        self.freezer = Freezer(model, optim.freeze, optim.freeze_until)
        every, tau = algo.target_update_interval, algo.target_tau
        self.target = TargetNetwork(model, every, tau) if algo.use_target_net else None
        self.auxiliary = auxiliary
        self._auxiliary_task = task_of(auxiliary, seed, policy)
        self.loss = LossFunction(model, algo, self.target, self._auxiliary_task, learner.torch_compile, ranks)
        self.stats = UpdateStats(learner.max_bad_steps)
        self._total_env_steps, self._seed, self._policy, self._evidence = total_env_steps, seed, policy, evidence
        self._recorded: RecordedUpdates | None = None
        if recorder is not None:
            self._recorded = RecordedUpdates(self._compute, recorder, model.value_head.linear.weight.device)
        self.averaging = averaging
        self._ranks, self._sums = ranks, list[Tensor]()  # of the updates of a pass, with several ranks
        self.whole = WholeState(ranks, lambda: _changing(self), self.updater.forget)
        self._oldest: int | None = None  # steps of older policy versions are masked

    def adopt(self, algo: AlgoConfig, optim: OptimConfig, learner: LearnerConfig, env_steps: int) -> None:
        """Use other settings from the next minibatch on; adaptive values restart if their initial value differs."""
        before = self.coefficients.state()
        self.coefficients = Coefficients(optim, algo, self._total_env_steps)
        self.coefficients.restore(before)
        self.coefficients.at(env_steps)
        self.updater.adopt(optim)
        self.loss.config = self.algo = algo
        self.learner = learner

    def mask_sampled(self) -> None:
        """After the weights were replaced: mask all steps that were sampled before. Counts as an update."""
        self.train_step += 1
        self._oldest = self.train_step

    def _since_replacement(self, batch: Batch) -> Batch:
        """``batch`` without the steps that were sampled before the weights were replaced."""
        return batch if self._oldest is None else batch.since(self._oldest)

    @property
    def _policy_stands_still(self) -> bool:
        """Whether updates change no action now: its divergence is 0 then, and its loss constant."""
        return self.freezer.keeps_policy or not self.coefficients.rates.policy

    @property
    def train_step(self) -> int:
        """Updates, those before a resume included."""
        return self.stats.train_step

    @train_step.setter
    def train_step(self, value: int) -> None:
        self.stats.train_step = value

    def statistics(self) -> dict[str, float]:
        """By the names in TRAIN_STATISTICS: means since ``clear()``, NaN without any, and coefficients."""
        task = self._auxiliary_task
        intrinsic = task.statistics() if isinstance(task, Exploration) else dict.fromkeys(INTRINSIC, math.nan)
        return self.stats.means.value() | self.coefficients.by_name() | intrinsic

    def clear(self) -> None:
        """Start new means."""
        self.stats.clear()
        if isinstance(self._auxiliary_task, Exploration):
            self._auxiliary_task.clear()

    def train(self, batch: Batch) -> int:
        """All passes over one dataset; returns how many fresh steps were learned from, each counted once."""
        dataset = self.open(batch)
        while self.learn(dataset) and dataset.passes < self.learner.num_epochs:
            pass
        return self.close(dataset)

    def open(self, batch: Batch) -> Dataset:
        """Prepare a dataset before any pass. Uses no random numbers."""
        first, batch = not self.train_step, self._since_replacement(batch)
        self.whole.keep_first()
        if first:
            # Without any statistics the first weights would be made for inputs of another size.
            self._observe(batch)
            if self.target is not None:
                self.target.copy()
        if isinstance(self._auxiliary_task, Exploration):
            parts = self.learner.num_batches_per_epoch
            batch = self._auxiliary_task.add_returns(self.model, batch, self.algo, parts)
        targets = self.loss.gae_targets(batch)
        if targets is not None:
            self.model.value_head.observe(targets.returns, batch.fresh, self._ranks.sum_of("returns"))
        return Dataset(batch, targets, observed=first)

    def learn(
        self,
        dataset: Dataset,
        stopping: Callable[[], bool] = lambda: False,
        before_waiting: Callable[[int], None] = lambda updates: None,
    ) -> bool:
        """One pass over the minibatches of a dataset; ``stopping`` is asked before each.

        before_waiting: is called with the number of updates before the host waits for the device, which it does once.
        Steps sampled before the weights were replaced are masked. True if another pass makes sense: this one was whole,
        the loss has changed by ``early_stop_loss_change`` or more if the policy can change, and the divergence is not
        above ``early_stop_kl``. Raises DivergedError, or the error of a failed pass, after the batch was saved.
        """
        first, count = dataset.passes == 0, self.learner.num_batches_per_epoch
        dataset.passes += 1
        if first and self.learner.shuffle_minibatches:
            # The same if the run is resumed here.
            seed = seed_at(self._seed, Branch.SHUFFLE, self._policy, self.train_step)
            dataset.generator = torch.Generator().manual_seed(seed)
        if self._auxiliary_task is not None:
            self._auxiliary_task.begin(self.train_step)
        rows: list[Tensor] = []
        try:
            whole = Minibatch(self._since_replacement(dataset.batch), dataset.targets)
            for selection in epoch_of(whole, count, dataset.generator):
                if stopping():
                    break
                rows.append(self._update(selection, first))
            before_waiting(len(rows))
            done = on_host(self._over_all_ranks(rows))
            self.whole.keep()
            dataset.means.add(done)
            self.stats.add(done)
        except (DivergedError, RuntimeError) as error:
            # A batch that is too large for the device says nothing that its size does not.
            if self._evidence is not None and not isinstance(error, torch.OutOfMemoryError):
                where = keep_evidence(self._evidence, dataset.batch, self.model, self.train_step, named(error))
                error.args = (f"{error}; {where}",)
            raise
        if not (self.coefficients.adapts_at_once or self._policy_stands_still):
            for kl in divergences_of(done):
                self.coefficients.after_update(kl)
        # A pass that was stopped, or before which the weights were replaced, learns from fewer steps.
        dataset.learned = Learned(*map(max, dataset.learned, steps_learned(done)))
        if len(rows) < count:
            return False
        self.coefficients.after_epoch()
        means, last_loss = Means(done).value(), dataset.last_loss
        dataset.last_loss = loss = means["policy_loss"]
        too_far = bool(self.learner.early_stop_kl) and means["kl"] > self.learner.early_stop_kl
        constant = abs(loss - last_loss) < self.learner.early_stop_loss_change and not self._policy_stands_still
        return not (too_far or constant)

    def close(self, dataset: Dataset) -> int:
        """Finish a dataset after its last pass; returns how many fresh steps were learned from."""
        if dataset.learned.fresh and self.coefficients.looks_at_datasets:
            size = self.learner.microbatch_size or self.learner.batch_size
            divergence = self.loss.divergence(Minibatch(self._since_replacement(dataset.batch), dataset.targets), size)
            kl = HostCopies(divergence).wait()[0].item()
            self.whole.confirm()
            if not (math.isnan(kl) or self._policy_stands_still):
                self.coefficients.after_dataset(kl)
        if not dataset.observed:
            # Not before: the policy that is learned from, and measured, would see other inputs than when it acted.
            self._observe(dataset.batch)
            dataset.observed = True
        return dataset.learned.fresh

    def _observe(self, batch: Batch) -> None:
        if not self.freezer.keeps_statistics:
            obs = {key: leaf[:-1] for key, leaf in batch.obs.items()}
            self.model.observe(obs, batch.fresh, self._ranks.sum_of("observations"))

    def _over_all_ranks(self, rows: list[Tensor]) -> list[Tensor]:
        """The results of a pass, as if one rank had learned from the data of all."""
        if (add_up := self._ranks.sum_of("results")) is None or not rows:
            return rows
        sums, self._sums = self._sums, []
        return over_all_ranks(rows, sums, add_up)

    def _update(self, selection: Selection, first: bool) -> Tensor:
        """Learn from one minibatch; returns its results, see ``row_of``. ``first``: in the first pass."""
        coefficients = self.coefficients
        minibatch: Minibatch | None = None
        # V-trace has its targets per minibatch; those of every step are observed once.
        observes = first and selection.whole.targets is None
        if self._recorded is None:
            minibatch = selection.minibatch()
            row = self._compute(minibatch, coefficients.in_force, observes)
        else:
            settings = self.updater.replaced, self.updater.trains
            row = self._recorded.run(selection, coefficients.in_force, observes, settings)
            self.updater.begin()  # gradients are in memory that graphs use again
        if coefficients.looks_at_updates:
            minibatch = minibatch or selection.minibatch()
            row = with_divergence(row, self.loss.divergence(minibatch, self.learner.microbatch_size))
            if coefficients.adapts_at_once and not self._policy_stands_still:
                divergences = divergences_of(on_host([row]))
                self.whole.confirm()
                for kl in divergences:
                    coefficients.after_update(kl)
        return row

    def _compute(self, minibatch: Minibatch, numbers: InForce, observes: bool) -> Tensor:
        """``_update`` as far as it is computed on the device; waits for nothing, see NOTE [Recorded update]."""
        batch, size = minibatch.batch, self.learner.microbatch_size
        parts, auxiliary = [], torch.zeros((), device=batch.valid.device)
        self.updater.begin()
        for part in self.loss.parts(minibatch, size, exploration=numbers.exploration, kl=numbers.kl):
            self.updater.backward(part.loss)
            parts.append(part.cells)
            auxiliary = auxiliary + part.auxiliary
        # Adam's momentum would move the weights even where no step of the minibatch is valid.
        wanted = batch.valid.any()
        if (over_ranks := self._ranks.sum_of("gradients")) is not None:
            wanted = self.updater.add_up(batch.valid.sum(), self.algo.loss_reduction == "mean", over_ranks)
        applied = self.updater.step(numbers.rates, wanted)
        self.model.follow_update(applied.taken)
        if self.target is not None:
            self.target.after_update(applied.taken)
        cells = LossTerms.joined(parts)
        if observes:
            observed = cells.fresh & applied.taken
            self.model.value_head.observe(cells.target, observed, self._ranks.sum_of("returns"))
        sums = sums_of(cells, self.loss.clip, auxiliary)
        if self._ranks.world > 1:
            self._sums.append(sums.about_zero())
        return row_of(batch, statistics_of(sums), applied)


def _changing(trainer: Trainer) -> list[Tensor]:
    """All tensors that updates change, and checkpoints hold."""
    target, auxiliary = trainer.target, trainer.auxiliary
    modules = [trainer.model, *([] if target is None else [target.model]), *([] if auxiliary is None else [auxiliary])]
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return [*tensors, *([] if target is None else target.counters), *trainer.updater.moments()]
