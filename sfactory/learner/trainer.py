"""Room: gradient steps. In: batches. Out: changed weights, statistics, and the count of updates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.learner.batch import Batch
from sfactory.learner.coefficients import Coefficients
from sfactory.learner.minibatches import Minibatch, Minibatches
from sfactory.learner.objective import Objective
from sfactory.learner.record import UpdateRecord, mean_policy_loss, on_host, row_of, steps_learned
from sfactory.learner.updater import Updater
from sfactory.model.actor_critic import ActorCritic
from sfactory.seeds import Branch, seed_at


class Trainer:
    """Model and optimiser, and what they do to a dataset. ``train_step``: see NOTE [Train step]."""

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
    ) -> None:
        """``seed`` and ``policy`` decide how minibatches are shuffled; ``total_env_steps``: where linear decay ends."""
        self.model = model
        self.coefficients = Coefficients(optim, algo, total_env_steps)
        self.updater = Updater(model, optim)
        self._objective = Objective(model, algo)
        self._learner = learner
        self._seed, self._policy = seed, policy
        self._record = UpdateRecord()

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
        """Means over these updates (there must be some), by the names in STATISTICS and "grad_norm"."""
        return self._record.means()

    def clear_statistics(self) -> None:
        """Begin new means."""
        self._record.clear()

    def train(self, batch: Batch, stopping: Callable[[], bool] = lambda: False) -> int:
        """All epochs and minibatches of one dataset, or as many as there are before ``stopping()`` is true.

        Returns how many valid steps have been learned from, each counted once. Raises DivergedError.
        """
        first = not self.train_step
        if first:
            # Without any statistics the first weights would be made for inputs of another size.
            self._observe(batch)
        targets = self._objective.gae_targets(batch)
        if targets is not None:
            self.model.value_head.observe(targets.returns, batch.valid)
        minibatches = Minibatches(batch, targets, self._learner.num_batches_per_epoch, self._shuffling())
        learned = self._epochs(minibatches, stopping)
        if not first:
            # Not before: the policy that is learned from would see other inputs than when it acted.
            self._observe(batch)
        return learned

    def _observe(self, batch: Batch) -> None:
        self.model.observe({key: obs[:-1] for key, obs in batch.obs.items()}, batch.valid)

    def _epochs(self, minibatches: Minibatches, stopping: Callable[[], bool]) -> int:
        """Epoch after epoch until all are done or there is nothing more to gain; returns the steps learned from."""
        learned, last_loss = 0, float("nan")
        for epoch in range(self._learner.num_epochs):
            rows: list[Tensor] = []
            for minibatch in minibatches.epoch():
                if stopping():
                    break
                rows.append(self._learn(minibatch, first=epoch == 0))
            done = on_host(rows)
            self._record.add(done)
            learned = max(learned, steps_learned(done))
            if len(rows) < self._learner.num_batches_per_epoch:
                break
            self.coefficients.after_epoch()
            loss = mean_policy_loss(done)
            if abs(loss - last_loss) < self._learner.early_stop_loss_change:
                break
            last_loss = loss
        return learned

    def _learn(self, minibatch: Minibatch, first: bool) -> Tensor:
        """Learn from one minibatch; returns what became of it, see ``row_of``."""
        batch = minibatch.batch
        valid_steps = batch.valid.sum()
        loss = self._objective(batch, minibatch.targets)
        # Adam's momentum would move the weights even where no step of the minibatch is valid.
        applied = self.updater.apply(loss.total, self.coefficients.rates, wanted=valid_steps > 0)
        if first and minibatch.targets is None:
            # V-trace makes its targets per minibatch; every step's is observed once.
            self.model.value_head.observe(loss.returns, batch.valid & applied.taken)
        if self.coefficients.looks_at_updates and bool(applied.taken):
            self.coefficients.after_update(self._objective.divergence(batch))
        return row_of(valid_steps, loss, applied)

    def _shuffling(self) -> torch.Generator | None:
        """What draws the minibatches of the present dataset: the same again if the run is resumed here."""
        if not self._learner.shuffle_minibatches:
            return None
        return torch.Generator().manual_seed(seed_at(self._seed, Branch.SHUFFLE, self._policy, self.train_step))
