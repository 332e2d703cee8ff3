"""Room: what became of updates. In: one row of numbers for each, from the device. Out: counts, means, an alarm."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.statistics import GRADIENT, NAMES
from sfactory.learner.updater import Applied

log = logging.getLogger(__name__)

_VALID_STEPS, _FRESH_STEPS, _ENV_STEPS, _RUN_STEPS, _TAKEN, _EXCUSED, _FIRST = range(7)
_NAMES = (*NAMES, *GRADIENT)

Rows = npt.NDArray[np.float64]


def row_of(batch: Batch, statistics: Tensor, applied: Applied) -> Tensor:
    """One update as a row of numbers on its device. statistics: [len(NAMES)], as ``statistics_of`` gives them."""
    fresh = batch.fresh
    counted = [fresh.sum() if marked is None else (fresh & marked).sum() for marked in (batch.env_step, batch.run_step)]
    head = torch.stack((batch.valid.sum(), fresh.sum(), *counted, applied.taken, applied.excused))
    return torch.cat((head.double(), statistics.double(), applied.norm.reshape(1).double()))


def on_host(rows: Sequence[Tensor]) -> Rows:
    """The rows of some updates, by one transfer."""
    return torch.stack(list(rows)).cpu().numpy() if rows else np.zeros((0, _FIRST + len(_NAMES)))


class Learned(NamedTuple):
    """Steps that were learned from. fresh: in no dataset before; replayed: the others.

    env_steps, run_steps: fresh ones that count as env steps, of the policy and of the run.
    """

    fresh: int = 0
    replayed: int = 0
    env_steps: int = 0
    run_steps: int = 0


def steps_learned(rows: Rows) -> Learned:
    """Steps of the updates that were made."""
    made = rows[rows[:, _TAKEN] > 0]
    fresh = int(made[:, _FRESH_STEPS].sum())
    replayed = int(made[:, _VALID_STEPS].sum()) - fresh
    return Learned(fresh, replayed, int(made[:, _ENV_STEPS].sum()), int(made[:, _RUN_STEPS].sum()))


def mean_of(name: str, rows: Rows) -> float:
    """Of a statistic, over the updates that were made and have it; NaN if none has."""
    numbers = rows[rows[:, _TAKEN] > 0, _FIRST + _NAMES.index(name)]
    numbers = numbers[~np.isnan(numbers)]
    return float(numbers.mean()) if numbers.size else float("nan")


class Means:
    """Means of what updates tell, each over those that tell it: NaN is left out. ``updates``: how many were made."""

    def __init__(self) -> None:
        self._sums, self._counts = np.zeros(len(_NAMES)), np.zeros(len(_NAMES))
        self.updates = 0

    def add(self, rows: Rows) -> None:
        """Take in those of some updates that were made."""
        statistics = rows[rows[:, _TAKEN] > 0, _FIRST:]
        self._sums += np.nansum(statistics, axis=0)
        self._counts += (~np.isnan(statistics)).sum(axis=0)
        self.updates += len(statistics)

    def value(self) -> dict[str, float]:
        """By name; NaN where no update has told it."""
        means = np.divide(self._sums, self._counts, out=np.full(len(_NAMES), np.nan), where=self._counts > 0)
        return dict(zip(_NAMES, means.tolist(), strict=True))


class UpdateRecord:
    """Counts of all updates and means since they were last cleared.

    NOTE [Train step]: ``train_step`` counts minibatch updates, skipped ones included, those without a valid step not.
    It is the policy version that weights are published under, and what policy lag is measured in.
    """

    def __init__(self, max_bad_steps: int) -> None:
        """``max_bad_steps``: so many updates in a row that were skipped end the run."""
        self.train_step = 0
        self._max_bad = max_bad_steps
        self.skipped = 0
        self._bad_in_a_row = 0
        self.clear()

    def clear(self) -> None:
        """Begin new means."""
        self._means = Means()

    @property
    def updates(self) -> int:
        """Updates that were made since ``clear``."""
        return self._means.updates

    def add(self, rows: Rows) -> None:
        """Take in updates, in order; raises DivergedError if too many in a row were skipped."""
        self._means.add(rows)
        for row in rows:
            if row[_TAKEN]:
                self.train_step += 1
                self._bad_in_a_row = 0
            elif row[_VALID_STEPS]:
                self.train_step += 1
                self._skip(excused=bool(row[_EXCUSED]))

    def means(self) -> dict[str, float]:
        """By name, over those of ``updates`` that have the statistic; NaN where none has."""
        return self._means.value()

    def _skip(self, excused: bool) -> None:
        """A loss or gradient that is not finite changed nothing; too many in a row end the run.

        ``excused``: its format may have been to blame, which has been seen to.
        """
        self.skipped += 1
        self._bad_in_a_row += not excused
        log.warning("update %d skipped: its loss or gradient is not finite (%d so far)", self.train_step, self.skipped)
        if self._bad_in_a_row >= self._max_bad:
            raise DivergedError(
                f"{self._bad_in_a_row} updates in a row had a loss or gradient that is not finite (update "
                f"{self.train_step}); lower --learning_rate or --reward_scale, or look for NaN in the env's data"
            )
