"""Room: gradient steps. In: batches. Out: changed weights, statistics, and the count of updates.

NOTE [Train step]: ``train_step`` counts minibatch updates, skipped ones included. It is the policy version
that weights are published under, and what policy lag is measured in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.learning_rate import LearningRate
from sfactory.learner.minibatches import Minibatch, Minibatches
from sfactory.learner.objective import STATISTICS, Loss, Objective
from sfactory.model.actor_critic import ActorCritic
from sfactory.seeds import Branch, seed_at

log = logging.getLogger(__name__)

_MAX_BAD_IN_A_ROW = 10
_POLICY_LOSS = STATISTICS.index("policy_loss")


class _Epoch(NamedTuple):
    """steps: valid ones learned from. seen: statistics of each update. stopped: it was broken off."""

    steps: int
    seen: list[Tensor]
    stopped: bool


class Trainer:
    """Model and optimiser, and what they do to a dataset."""

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
        self.optimizer = torch.optim.Adam(
            model.parameters(),
            lr=optim.learning_rate,
            betas=(optim.adam_beta1, optim.adam_beta2),
            eps=optim.adam_eps,
            fused=True,
        )
        self.rate = LearningRate(optim, total_env_steps)
        self._objective = Objective(model, algo)
        self._optim, self._learner = optim, learner
        self._seed, self._policy = seed, policy
        self._parameters = list(model.parameters())
        self.train_step = 0
        self.skipped = 0
        self._bad_in_a_row = 0
        self._sums = torch.zeros(len(STATISTICS) + 1, dtype=torch.float64)
        self._updates = 0

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Continue with the saved moments, under the hyperparameters of this configuration, not the saved ones."""
        self.optimizer.load_state_dict(state)
        optim = self._optim
        for group in self.optimizer.param_groups:
            group.update(lr=optim.learning_rate, betas=(optim.adam_beta1, optim.adam_beta2), eps=optim.adam_eps)

    def train(self, batch: Batch, stopping: Callable[[], bool] = lambda: False) -> int:
        """All epochs and minibatches of one dataset, or as many as there are before ``stopping()`` is true.

        Returns how many valid steps have been learned from, each counted once.
        """
        first = not self.train_step
        if first:
            # Without any statistics the first weights would be made for inputs of another size.
            self._observe(batch)
        targets = self._objective.gae_targets(batch)
        if targets is not None:
            self.model.value_head.observe(targets.returns, batch.valid)
        minibatches = Minibatches(batch, targets, self._learner.num_batches_per_epoch, self._shuffling())
        learned, last_loss = 0, float("nan")
        for epoch in range(self._learner.num_epochs):
            done = self._epoch(minibatches, first=epoch == 0, stopping=stopping)
            learned = max(learned, done.steps)
            if done.stopped:
                break
            loss = self._after_epoch(done.seen)
            if abs(loss - last_loss) < self._learner.early_stop_loss_change:
                break
            last_loss = loss
        if not first:
            # Not before: the policy that is learned from would see other inputs than when it acted.
            self._observe(batch)
        return learned

    def _observe(self, batch: Batch) -> None:
        self.model.observe({key: obs[:-1] for key, obs in batch.obs.items()}, batch.valid)

    def _epoch(self, minibatches: Minibatches, first: bool, stopping: Callable[[], bool]) -> _Epoch:
        """One pass over the dataset, or a part of it before ``stopping()`` is true."""
        steps = 0
        seen: list[Tensor] = []
        for minibatch in minibatches.epoch():
            if stopping():
                return _Epoch(steps, seen, stopped=True)
            valid_steps = int(minibatch.batch.valid.sum())
            # Adam's momentum would move the weights even where no step of the minibatch is valid.
            loss = self._learn(minibatch, first) if valid_steps else None
            if loss is not None:
                seen.append(loss.statistics)
                steps += valid_steps
        return _Epoch(steps, seen, stopped=False)

    def _learn(self, minibatch: Minibatch, first: bool) -> Loss | None:
        """Learn from one minibatch; its loss, None if the update was skipped."""
        loss = self._objective(minibatch.batch, minibatch.targets)
        if not self._step(loss):
            return None
        if first and minibatch.targets is None:
            # V-trace makes its targets per minibatch; every step's is observed once.
            self.model.value_head.observe(loss.returns, minibatch.batch.valid)
        if self.rate.looks_at_updates:
            self.rate.after_update(self._objective.divergence(minibatch.batch))
        return loss

    def _after_epoch(self, seen: list[Tensor]) -> float:
        """Adapt the learning rate; returns the mean policy loss, NaN where nobody asks for it."""
        self.rate.after_epoch()
        if not seen or self._learner.num_epochs == 1:
            return float("nan")
        return float(torch.stack([statistics[_POLICY_LOSS] for statistics in seen]).mean())

    def _shuffling(self) -> torch.Generator | None:
        """What draws the minibatches of the present dataset: the same again if the run is resumed here."""
        if not self._learner.shuffle_minibatches:
            return None
        return torch.Generator().manual_seed(seed_at(self._seed, Branch.SHUFFLE, self._policy, self.train_step))

    def _step(self, loss: Loss) -> bool:
        """One update; False if it was skipped."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss.total)
        max_norm = self._optim.max_grad_norm or torch.inf
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, max_norm)
        self.train_step += 1
        if not torch.isfinite(norm):
            self._skip()
            return False
        self._bad_in_a_row = 0
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate.value
        self.optimizer.step()
        self._sums += torch.cat((loss.statistics, norm.reshape(1))).double().cpu()
        self._updates += 1
        return True

    def _skip(self) -> None:
        """A loss or gradient that is not finite changes nothing; too many in a row end the run."""
        self.skipped += 1
        self._bad_in_a_row += 1
        log.warning("update %d skipped: its loss or gradient is not finite (%d so far)", self.train_step, self.skipped)
        if self._bad_in_a_row >= _MAX_BAD_IN_A_ROW:
            raise DivergedError(
                f"{self._bad_in_a_row} updates in a row had a loss or gradient that is not finite (update "
                f"{self.train_step}); lower --learning_rate or --reward_scale, or look for NaN in the env's data"
            )

    @property
    def updates(self) -> int:
        """Updates made since ``clear_statistics``."""
        return self._updates

    def statistics(self) -> dict[str, float]:
        """Means over these updates (there must be some), by the names in STATISTICS and "grad_norm"."""
        means = (self._sums / self._updates).tolist()
        return dict(zip((*STATISTICS, "grad_norm"), means, strict=True))

    def clear_statistics(self) -> None:
        """Begin new means."""
        self._sums.zero_()
        self._updates = 0
