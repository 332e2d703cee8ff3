"""Room: how old the policies were that acted. In: the lags of datasets. Out: their least, mean and greatest."""

from __future__ import annotations

import math

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
        lags = lag[which].double()
        if lags.numel():
            self._minimum = min(self._minimum, float(lags.min()))
            self._maximum = max(self._maximum, float(lags.max()))
            self._total += float(lags.sum())
            self._count += lags.numel()

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
