"""Sums up returns and lengths of episodes on the device, a whole rollout at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ended(NamedTuple):
    """Episodes that ended in a rollout, in the order in which they ended; on the host.

    rows: of the env. returns: sums of raw rewards. lengths: steps. stats: by name, a number for each.
    """

    rows: list[int]
    returns: list[float]
    lengths: list[int]
    stats: dict[str, list[float]]


class EpisodeSums:
    """Returns and lengths of the running episodes of N rows."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._returns = torch.zeros(size, dtype=torch.float64, device=device)
        self._lengths = torch.zeros(size, dtype=torch.int64, device=device)

    def add(self, rewards: Tensor, stepped: Tensor, ended: Tensor, stats: dict[str, Tensor]) -> Ended:
        """Add a rollout; returns the episodes that ended in it. Waits for the device.

        rewards: [T, N] float - raw. stepped: [T, N] bool - the env was stepped, and not reset. ended: [T, N] bool - an
        episode ended with the step. stats: {name: [T, N]} - looked at where one ended.
        """
        total = self._returns + rewards.double().cumsum(0)
        steps = self._lengths + stepped.cumsum(0)
        # The last step before each, in the rollout, with which an episode ended: what was summed up to it belongs to
        # earlier episodes. The first row of zeros stands for no such step.
        times = torch.arange(1, len(rewards) + 1, device=rewards.device).unsqueeze(1)
        last = torch.where(ended, times, 0).cummax(0).values
        zero = torch.zeros_like(last[:1])
        before = torch.cat((zero, last))
        totals, counts = torch.cat((zero.double(), total)), torch.cat((zero, steps))
        returns = total - totals.gather(0, before[:-1])
        lengths = steps - counts.gather(0, before[:-1])
        self._returns = total[-1] - totals.gather(0, before[-1:])[0]
        self._lengths = steps[-1] - counts.gather(0, before[-1:])[0]
        places = ended.nonzero()
        where = places[:, 0], places[:, 1]
        found = torch.stack([values[where].double() for values in (returns, lengths, *stats.values())])
        numbers = found.tolist()
        named = dict(zip(stats, numbers[2:], strict=True))
        return Ended(where[1].tolist(), numbers[0], [int(length) for length in numbers[1]], named)
