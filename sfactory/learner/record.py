"""Room: what became of updates. In: one row of numbers for each, from the device. Out: counts, means, an alarm."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.errors import DivergedError
from sfactory.learner.objective import STATISTICS, Loss
from sfactory.learner.updater import Applied

log = logging.getLogger(__name__)

_MAX_BAD_IN_A_ROW = 10
_VALID_STEPS, _TAKEN, _EXCUSED, _FIRST = 0, 1, 2, 3
_POLICY_LOSS = _FIRST + STATISTICS.index("policy_loss")
_NAMES = (*STATISTICS, "grad_norm")

Rows = npt.NDArray[np.float64]


def row_of(valid_steps: Tensor, loss: Loss, applied: Applied) -> Tensor:
    """One update as a row of numbers on its device."""
    return torch.cat(
        (
            valid_steps.reshape(1).double(),
            applied.taken.reshape(1).double(),
            applied.excused.reshape(1).double(),
            loss.statistics.double(),
            applied.norm.reshape(1).double(),
        )
    )


def on_host(rows: Sequence[Tensor]) -> Rows:
    """The rows of some updates, by one transfer."""
    return torch.stack(list(rows)).cpu().numpy() if rows else np.zeros((0, _FIRST + len(_NAMES)))


def steps_learned(rows: Rows) -> int:
    """Valid steps of the updates that were made."""
    return int(rows[rows[:, _TAKEN] > 0, _VALID_STEPS].sum())


def mean_policy_loss(rows: Rows) -> float:
    """Of the updates that were made; NaN if none was."""
    made = rows[rows[:, _TAKEN] > 0, _POLICY_LOSS]
    return float(made.mean()) if made.size else float("nan")


class UpdateRecord:
    """Counts of all updates and means since they were last cleared.

    NOTE [Train step]: ``train_step`` counts minibatch updates, skipped ones included, those without a valid step not.
    It is the policy version that weights are published under, and what policy lag is measured in.
    """

    def __init__(self) -> None:
        self.train_step = 0
        self.skipped = 0
        self._bad_in_a_row = 0
        self.clear()

    def clear(self) -> None:
        """Begin new means."""
        self._sums = np.zeros(len(_NAMES))
        self.updates = 0

    def add(self, rows: Rows) -> None:
        """Take in updates, in order; raises DivergedError if too many in a row were skipped."""
        for row in rows:
            if row[_TAKEN]:
                self.train_step += 1
                self._bad_in_a_row = 0
                self._sums += row[_FIRST:]
                self.updates += 1
            elif row[_VALID_STEPS]:
                self.train_step += 1
                self._skip(excused=bool(row[_EXCUSED]))

    def means(self) -> dict[str, float]:
        """By the names in STATISTICS and "grad_norm", over ``updates``, of which there must be some."""
        return dict(zip(_NAMES, (self._sums / self.updates).tolist(), strict=True))

    def _skip(self, excused: bool) -> None:
        """A loss or gradient that is not finite changed nothing; too many in a row end the run.

        ``excused``: its format may have been to blame, which has been seen to.
        """
        self.skipped += 1
        self._bad_in_a_row += not excused
        log.warning("update %d skipped: its loss or gradient is not finite (%d so far)", self.train_step, self.skipped)
        if self._bad_in_a_row >= _MAX_BAD_IN_A_ROW:
            raise DivergedError(
                f"{self._bad_in_a_row} updates in a row had a loss or gradient that is not finite (update "
                f"{self.train_step}); lower --learning_rate or --reward_scale, or look for NaN in the env's data"
            )
