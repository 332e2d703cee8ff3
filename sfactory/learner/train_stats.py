"""Statistics of updates: computed on the device as one row of numbers, then averaged over updates on the host.

All are means over fresh steps (valid and not replayed), except those named after replay. A number that an update does
not have, as the divergence of replayed steps where there are none, is NaN: means leave it out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfactory.algo import losses
from sfactory.errors import DivergedError
from sfactory.learner.batch import Batch
from sfactory.learner.gradient_step import Applied
from sfactory.learner.staging import REPLAYED
from sfactory.messages import TRAIN_STATISTICS, PolicyLag
from sfactory.ranks.ranks import Sum
from sfactory.shared.timing_stats import LagStats
from sfactory.system.gpu import HostCopies

# Not computed here: of ``Coefficients``, and of ``Applied``.
COEFFICIENTS = ("learning_rate", "value_learning_rate", "exploration_coeff", "kl_coeff")
GRADIENT = ("grad_norm",)
INTRINSIC = ("rnd_reward", "rnd_return")  # of ``Exploration``
# Results of ``statistics_of``, in their order.
NAMES = tuple(name for name in TRAIN_STATISTICS if name not in (*COEFFICIENTS, *GRADIENT, *INTRINSIC))


class LossTerms(NamedTuple):
    """Terms of the loss for each cell of a minibatch, or of a part of it; each [T, R], without gradients.

    policy_loss, value_loss, entropy: float - before their coefficients.
    log_ratio: float - log of pi / mu. surrogate: float - log of the ratio that the policy loss clips, which differs
    from pi / mu with a target network.
    value, target, advantage: float - in the unit of rewards; value before the update.
    valid, replayed, reward_clipped: bool - as in Batch.
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
    reward_clipped: Tensor

    @property
    def fresh(self) -> Tensor:
        """[T, R] bool - as Batch.fresh."""
        return self.valid & ~self.replayed

    @staticmethod
    def joined(parts: Sequence[LossTerms]) -> LossTerms:
        """The whole minibatch of its parts."""
        if len(parts) == 1:
            return parts[0]
        return LossTerms(*(torch.cat(pieces, dim=1) for pieces in zip(*parts, strict=True)))


class Sums(NamedTuple):
    """Sums over a minibatch that statistics are made of; all 0-dim, but for totals and squares.

    fresh, replayed: numbers of steps. cells: valid steps and others. replay_kl: over replayed steps. auxiliary: over
    parts, of the auxiliary loss times valid steps.
    totals: [len(_AVERAGED) + 3] - over fresh steps, of each of _AVERAGED, advantages, targets and errors of values.
    means: of the same. squares: [3] - of the last three about their means. Those of several minibatches have a further
    dimension.
    """

    fresh: Tensor
    replayed: Tensor
    cells: int | Tensor
    replay_kl: Tensor
    auxiliary: Tensor
    totals: Tensor
    means: Tensor
    squares: Tensor

    def about_zero(self) -> Tensor:
        """[n] float64: all of them, with squares about 0, so that those of several ranks can be added up."""
        cells = self.cells if isinstance(self.cells, Tensor) else torch.full_like(self.fresh, self.cells)
        counts = torch.stack((self.fresh, self.replayed, cells)).double()
        sums = torch.stack((self.replay_kl, self.auxiliary)).double()
        totals = self.totals.double()
        squares = self.squares.double() + totals[-3:].square() / self.fresh.clamp(min=1)
        return torch.cat((counts, sums, totals, squares))

    @staticmethod
    def of(about_zero: Tensor) -> Sums:
        """From what ``about_zero`` gives, or a sum of it: [n, ...]."""
        fresh, replayed, cells, replay_kl, auxiliary = about_zero[:5].unbind()
        totals = about_zero[5:-3]
        means = totals / fresh
        squares = about_zero[-3:] - totals[-3:].square() / fresh.clamp(min=1.0)
        return Sums(fresh, replayed, cells, replay_kl, auxiliary, totals, means, squares.clamp(min=0.0))


_AVERAGED = (
    *("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "ratio_mean", "value_mean"),
    "reward_clipped",
)


@torch.no_grad()
def sums_of(cells: LossTerms, clip: tuple[float, float], auxiliary: Tensor) -> Sums:
    """The sums of a minibatch, without waiting for the device.

    clip: range of the ratio, see ``losses.clip_range``. auxiliary: as in Sums.
    """
    kl = losses.approx_kl(log_ratios=cells.log_ratio)
    averaged = {
        "policy_loss": cells.policy_loss,
        "value_loss": cells.value_loss,
        "entropy": cells.entropy,
        "kl": kl,
        "clip_fraction": losses.outside_clip(log_ratios=cells.surrogate, clip=clip),
        "ratio_mean": cells.surrogate.exp(),
        "value_mean": cells.value,
        "reward_clipped": cells.reward_clipped.to(kl.dtype),
    }
    values = [averaged[name] for name in _AVERAGED]
    numbers = torch.stack((*values, cells.advantage, cells.target, cells.target - cells.value))
    fresh, again = cells.fresh, cells.valid & cells.replayed
    steps = fresh.sum()
    # No matrix product: on a GPU it may be computed in fewer bits.
    totals = _total(numbers, fresh)
    means = totals / steps
    squares = _total((numbers[-3:] - means[-3:, None, None]).square(), fresh)
    return Sums(steps, again.sum(), cells.valid.numel(), _total(kl, again), auxiliary, totals, means, squares)


@torch.no_grad()
def statistics_of(sums: Sums) -> Tensor:
    """[len(NAMES), ...], in the order of NAMES; without waiting for the device. With no step at all, 0 / 0 is NaN."""
    fresh, replayed = sums.fresh, sums.replayed
    advantage, target, error = (sums.squares / fresh).unbind()
    named = dict(zip(_AVERAGED, sums.means[:-3], strict=True)) | {
        "replay_kl": sums.replay_kl / replayed,
        "advantage_std": advantage.sqrt(),
        "explained_variance": torch.where(target > 0.0, 1.0 - error / target, torch.nan),
        "valid_fraction": (fresh + replayed) / sums.cells,
        "replayed_fraction": replayed / (fresh + replayed),
        "aux_loss": sums.auxiliary / (fresh + replayed),
    }
    return torch.stack([named[name] for name in NAMES])


def _total(numbers: Tensor, where: Tensor) -> Tensor:
    """Sums of numbers [..., T, R] over the cells ``where`` [T, R]: [...]."""
    return torch.where(where, numbers, 0.0).sum((-2, -1))


log = logging.getLogger(__name__)

_VALID_STEPS, _FRESH_STEPS, _ENV_STEPS, _RUN_STEPS, _TAKEN, _EXCUSED, _FIRST = range(7)
_NAMES = (*NAMES, *GRADIENT)
_DIVERGENCE = _FIRST + len(_NAMES)  # only in rows with one
_OF_ALL = NAMES.index("valid_fraction")  # counts for updates that were not taken, too

Rows = npt.NDArray[np.float64]


def row_of(batch: Batch, statistics: Tensor, applied: Applied) -> Tensor:
    """One update as a row of numbers on its device. statistics: [len(NAMES)], of ``statistics_of``."""
    fresh = batch.fresh
    counted = [fresh.sum() if marked is None else (fresh & marked).sum() for marked in (batch.env_step, batch.run_step)]
    head = torch.stack((batch.valid.sum(), fresh.sum(), *counted, applied.taken, applied.excused))
    return torch.cat((head.double(), statistics.double(), applied.norm.reshape(1).double()))


def with_divergence(row: Tensor, kl: Tensor) -> Tensor:
    """A row with a further number: ``kl`` [] float32, the divergence after the update, or NaN if it was not taken."""
    return torch.cat((row, torch.where(row[_TAKEN] > 0.0, kl, torch.nan).double().reshape(1)))


def over_all_ranks(rows: Sequence[Tensor], sums: Sequence[Tensor], add_up: Sum) -> list[Tensor]:
    """``rows`` of some updates, with the steps and statistics of all ranks. sums: ``Sums.about_zero`` of each.

    Whether an update was taken, its gradient and its divergence are the same on all ranks already.
    """
    table = torch.stack(list(rows))
    total = add_up(torch.cat((table[:, :_TAKEN], torch.stack(list(sums))), dim=1))
    statistics = statistics_of(Sums.of(total[:, _TAKEN:].T)).T
    return [*torch.cat((total[:, :_TAKEN], table[:, _TAKEN:_FIRST], statistics, table[:, _FIRST + len(NAMES) :]), 1)]


def on_host(rows: Sequence[Tensor]) -> Rows:
    """The rows of some updates, by one transfer; waits for the device."""
    return HostCopies(torch.stack(list(rows))).wait()[0].numpy() if rows else np.zeros((0, _DIVERGENCE))


def divergences_of(rows: Rows) -> list[float]:
    """Of updates that were taken and have a fresh step; none in rows without."""
    divergences = rows[:, _DIVERGENCE:].ravel()
    return divergences[~np.isnan(divergences)].tolist()  # type: ignore[no-any-return]


class Learned(NamedTuple):
    """Steps that were learned from. env_steps, run_steps: fresh ones that are env steps of the policy, of the run."""

    fresh: int = 0
    replayed: int = 0
    env_steps: int = 0
    run_steps: int = 0


def steps_learned(rows: Rows) -> Learned:
    """Steps of the updates that were taken."""
    made = rows[rows[:, _TAKEN] > 0]
    fresh = int(made[:, _FRESH_STEPS].sum())
    replayed = int(made[:, _VALID_STEPS].sum()) - fresh
    return Learned(fresh, replayed, int(made[:, _ENV_STEPS].sum()), int(made[:, _RUN_STEPS].sum()))


class Means:
    """Means of statistics over updates that were taken, without NaN. ``updates``: how many."""

    def __init__(self, rows: Rows | None = None) -> None:
        self._sums, self._counts = np.zeros(len(_NAMES)), np.zeros(len(_NAMES))
        self.updates = 0
        if rows is not None:
            self.add(rows)

    def add(self, rows: Rows) -> None:
        """Count the updates among ``rows`` that were taken; the valid fraction is of all."""
        taken, found = rows[:, _TAKEN] > 0, rows[:, _FIRST:_DIVERGENCE]
        statistics = np.where(taken[:, None], found, np.nan)
        statistics[:, _OF_ALL] = found[:, _OF_ALL]
        self._sums += np.nansum(statistics, axis=0)
        self._counts += (~np.isnan(statistics)).sum(axis=0)
        self.updates += int(taken.sum())

    def value(self) -> dict[str, float]:
        """By name; NaN where no update has the statistic."""
        means = np.divide(self._sums, self._counts, out=np.full(len(_NAMES), np.nan), where=self._counts > 0)
        return dict(zip(_NAMES, means.tolist(), strict=True))


class UpdateStats:
    """Counts of all updates, and means since the last ``clear``.

    NOTE [Train step]: ``train_step`` counts minibatch updates, skipped ones included, but not those without a valid
    step. It is the policy version of published weights, and the unit of policy lag.
    """

    def __init__(self, max_bad_steps: int) -> None:
        """``max_bad_steps``: number of skipped updates in a row that ends the run."""
        self.train_step = 0
        self._max_bad = max_bad_steps
        self.skipped = 0
        self._bad_in_a_row = 0
        self._clip_reported = False
        self.clear()

    def clear(self) -> None:
        """Begin new means."""
        self.means = Means()

    def add(self, rows: Rows) -> None:
        """Count updates, in order; raises DivergedError if too many in a row were skipped."""
        self.means.add(rows)
        if not self._clip_reported and (clipped := self.means.value()["reward_clipped"]) > 0.0:
            self._clip_reported = True
            log.warning(
                "--reward_clip clips rewards (%.2g%% of the steps), which then count the same; the metric "
                "train/reward_clipped follows the share, --reward_clip=none turns it off",
                100.0 * clipped,
            )
        for row in rows:
            if not row[_VALID_STEPS]:
                continue
            self.train_step += 1
            if row[_TAKEN]:
                self._bad_in_a_row = 0
                continue
            self.skipped += 1
            self._bad_in_a_row += not row[_EXCUSED]
            text = "update %d skipped: its loss or gradient is not finite (%d so far)"
            log.warning(text, self.train_step, self.skipped)
            if self._bad_in_a_row >= self._max_bad:
                raise DivergedError(
                    f"{self._bad_in_a_row} updates in a row had a loss or gradient that is not finite (update "
                    f"{self.train_step}); lower --learning_rate or --reward_scale, or look for NaN in the env's data"
                )


class Lags:
    """Policy lags of new and of replayed steps since the last ``clear``, also of those that are masked for it."""

    def __init__(self) -> None:
        self._new, self._replayed = LagStats(), LagStats()
        self._unread: list[tuple[LagStats, HostCopies]] = []  # sums, in order

    def count(self, scalars: Mapping[str, Tensor], train_step: int) -> None:
        """Count the steps of a dataset that a learner opens at ``train_step``. scalars: see ``Columns``."""
        lag, taken = train_step - scalars["policy_version"], scalars["valid"]
        if REPLAYED in scalars:
            self._unread.append((self._replayed, _lag_sums(lag, taken & scalars[REPLAYED])))
            taken = taken & ~scalars[REPLAYED]
        self._unread.append((self._new, _lag_sums(lag, taken)))

    def value(self) -> tuple[PolicyLag, PolicyLag]:
        """Of new and of replayed steps; waits for the device."""
        for stats, sums in self._unread:
            stats.add_sums(*sums.wait()[0].tolist())
        self._unread.clear()
        return self._new.value(), self._replayed.value()

    def clear(self) -> None:
        """Forget all that ``value`` has read."""
        self._new.clear()
        self._replayed.clear()


def _lag_sums(lag: Tensor, which: Tensor) -> HostCopies:
    """[4]: least, greatest, sum and count of ``lag`` [T, R] where ``which`` [T, R] bool."""
    lags = lag.double()
    least, greatest = torch.where(which, lags, math.inf).min(), torch.where(which, lags, -math.inf).max()
    return HostCopies(torch.stack((least, greatest, torch.where(which, lags, 0.0).sum(), which.sum())))
