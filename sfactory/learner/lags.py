"""Room: how old the policies were that acted. In: the lags of datasets. Out: their least, mean and greatest."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Lags:
    """Of the steps of all datasets since the last ``clear``, in updates."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._minimum, self._maximum, self._total, self._count = math.inf, -math.inf, 0.0, 0

    def add(self, lag: Tensor, which: Tensor) -> None:
        """Take in a dataset. ``lag``: [T, R] int32, as in Batch; ``which``: [T, R] bool - the steps that are meant."""
        lags = lag.double()
        least, greatest = torch.where(which, lags, math.inf).min(), torch.where(which, lags, -math.inf).max()
        total, count = torch.where(which, lags, 0.0).sum(), which.sum()
        # A GPU is waited for once, not for each number.
        found: list[float] = torch.stack((least, greatest, total, count)).tolist()
        self._minimum, self._maximum = min(self._minimum, found[0]), max(self._maximum, found[1])
        self._total += found[2]
        self._count += int(found[3])

    @property
    def minimum(self) -> float:
        """NaN without any step, as the other two."""
        return self._minimum if self._count else math.nan

    @property
    def mean(self) -> float:
        """Over steps."""
        return self._total / self._count if self._count else math.nan

    @property
    def maximum(self) -> float:
        """Of any step."""
        return self._maximum if self._count else math.nan
