"""Room: gradient steps. In: batches. Out: changed weights, statistics, and the count of updates.

NOTE [Train step]: ``train_step`` counts minibatch updates, skipped ones included. It is the policy version
that weights are published under, and what policy lag is measured in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.objective import STATISTICS, Objective
from sfactory.model.actor_critic import ActorCritic

log = logging.getLogger(__name__)

_MAX_BAD_IN_A_ROW = 10


class Trainer:
    """Model and optimiser, and what they do to a dataset."""

    def __init__(self, model: ActorCritic, algo: AlgoConfig, optim: OptimConfig, learner: LearnerConfig) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(
            model.parameters(),
            lr=optim.learning_rate,
            betas=(optim.adam_beta1, optim.adam_beta2),
            eps=optim.adam_eps,
            fused=True,
        )
        self._objective = Objective(model, algo)
        self._optim, self._learner = optim, learner
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

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use ``learning_rate`` from the next step on."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    @property
    def learning_rate(self) -> float:
        """The rate in force."""
        return float(self.optimizer.param_groups[0]["lr"])

    def train(self, batch: Batch, stopping: Callable[[], bool] = lambda: False) -> int:
        """All epochs and minibatches of one dataset, or as many as there are before ``stopping()`` is true.

        Returns how many valid steps have been learned from, each counted once.
        """
        targets = self._objective.gae_targets(batch)
        width = batch.rows // self._learner.num_batches_per_epoch
        learned: dict[int, int] = {}
        for _ in range(self._learner.num_epochs):
            for start in range(0, batch.rows, width):
                if stopping():
                    return sum(learned.values())
                stop = start + width
                minibatch = batch.columns(start, stop)
                valid_steps = int(minibatch.valid.sum())
                # Adam's momentum would move the weights even where no step of the minibatch is valid.
                if not valid_steps:
                    continue
                part = None if targets is None else targets.columns(start, stop)
                loss = self._objective(minibatch, part)
                if self._step(loss.total, loss.statistics):
                    learned[start] = valid_steps
        return sum(learned.values())

    def _step(self, total: Tensor, statistics: Tensor) -> bool:
        """One update; False if it was skipped."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        max_norm = self._optim.max_grad_norm or torch.inf
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, max_norm)
        self.train_step += 1
        if not torch.isfinite(norm):
            self._skip()
            return False
        self._bad_in_a_row = 0
        self.optimizer.step()
        self._sums += torch.cat((statistics, norm.reshape(1))).double().cpu()
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
