"""Room: what is told of an update. In: the cells of a minibatch, as the loss saw them. Out: one number for each name.

All are of fresh steps: valid ones that were in no dataset before. What replayed steps tell is told apart. A number that
an update does not have, as the divergence of replayed steps where there are none, is NaN: means leave it out.

Room: what became of updates. In: one row of numbers for each, from the device. Out: counts, means, an alarm.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.algo import losses
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.gradient_step import Applied
from sfactory.messages import TRAIN_STATISTICS

# Of the coefficients in force, and of the gradient: who makes them knows them.
COEFFICIENTS = ("learning_rate", "value_learning_rate", "exploration_coeff", "kl_coeff")
GRADIENT = ("grad_norm",)
# What ``statistics_of`` gives, in its order.
NAMES = tuple(name for name in TRAIN_STATISTICS if name not in (*COEFFICIENTS, *GRADIENT))


class LossTerms(NamedTuple):
    """A minibatch, or a part of it, cell by cell; each [T, R], without gradients.

    policy_loss, value_loss, entropy: float - terms of the loss, before their coefficients.
    log_ratio: float - of the present policy and the one that acted. surrogate: float - log of the ratio that the policy
    loss clips, which is another with a target network.
    value, target, advantage: float - in the unit of rewards; the value is the one before the update.
    valid, replayed: bool - as in Batch.
    """

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    log_ratio: Tensor
    surrogate: Tensor
    value: Tensor
    target: Tensor
    advantage: Tensor
    valid: Tensor
    replayed: Tensor

    @property
    def fresh(self) -> Tensor:
        """[T, R] bool - as Batch.fresh."""
        return self.valid & ~self.replayed

    @staticmethod
    def joined(parts: Sequence[LossTerms]) -> LossTerms:
        """The parts of a minibatch as a whole."""
        return (
            parts[0]
            if len(parts) == 1
            else LossTerms(*(torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True)))
        )


@torch.no_grad()
def statistics_of(cells: LossTerms, clip_ratio: float, auxiliary: Tensor) -> Tensor:
    """[len(NAMES)], in the order of NAMES; without waiting for the device.

    clip_ratio: e, as in ``ppo_clip_loss``. auxiliary: 0-dim - the auxiliary loss of each part, times its valid steps,
    summed up.
    """
    kl = losses.approx_kl(log_ratios=cells.log_ratio)
    numbers = torch.stack(
        (
            cells.policy_loss,
            cells.value_loss,
            cells.entropy,
            kl,
            losses.outside_clip(log_ratios=cells.surrogate, clip_ratio=clip_ratio),
            cells.surrogate.exp(),
            cells.value,
            cells.advantage,
            cells.target,
            cells.target - cells.value,
        )
    )
    fresh, again = cells.fresh, cells.valid & cells.replayed
    fresh_steps, replayed_steps = fresh.sum(), again.sum()
    # No matrix product: on a GPU it may be computed in fewer bits. With no step at all, 0 / 0 is NaN.
    means = _total(numbers, fresh) / fresh_steps
    spread = _total((numbers[-3:] - means[-3:, None, None]).square(), fresh) / fresh_steps
    advantage, target, error = spread.unbind()
    named = {
        "policy_loss": means[0],
        "value_loss": means[1],
        "entropy": means[2],
        "kl": means[3],
        "replay_kl": _total(kl, again) / replayed_steps,
        "clip_fraction": means[4],
        "ratio_mean": means[5],
        "value_mean": means[6],
        "advantage_std": advantage.sqrt(),
        "explained_variance": torch.where(target > 0.0, 1.0 - error / target, torch.nan),
        "valid_fraction": (fresh_steps + replayed_steps) / cells.valid.numel(),
        "replayed_fraction": replayed_steps / (fresh_steps + replayed_steps),
        "aux_loss": auxiliary / (fresh_steps + replayed_steps),
    }
    return torch.stack([named[name] for name in NAMES])


def _total(numbers: Tensor, where: Tensor) -> Tensor:
    """Sums of numbers [..., T, R] over the cells ``where`` [T, R]: [...]."""
    return torch.where(where, numbers, 0.0).sum((-2, -1))


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


class UpdateStats:
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
        self.means = Means()

    @property
    def updates(self) -> int:
        """Updates taken since ``clear``."""
        return self.means.updates

    def add(self, rows: Rows) -> None:
        """Take in updates, in order; raises DivergedError if too many in a row were skipped."""
        self.means.add(rows)
        for row in rows:
            if row[_TAKEN]:
                self.train_step += 1
                self._bad_in_a_row = 0
            elif row[_VALID_STEPS]:
                self.train_step += 1
                self._skip(excused=bool(row[_EXCUSED]))

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
