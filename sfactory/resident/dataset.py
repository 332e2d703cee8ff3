"""The dataset that a collector fills and a learner reads, on the device of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sfactory.action_heads import BoxHead
from sfactory.env.conversion import LARGEST_READ
from sfactory.layout import Layout
from sfactory.learner.staging import Columns
from sfactory.spec import EnvSpec


class ResidentDataset(Columns):
    """R rows of T steps, which are filled N at a time. rows_of_env: N."""

    def __init__(self, spec: EnvSpec, layout: Layout, device: torch.device) -> None:
        super().__init__(spec, layout, device, pin=False, replay=False)
        self.rows_of_env = layout.rows

    @property
    def next_rows(self) -> slice:
        """The rows that are filled next."""
        return slice(self.filled, self.filled + self.rows_of_env)


class Rollout(NamedTuple):
    """T steps of N envs beside those in ``rows`` of a dataset, valid until the next rollout.

    stepped: [T, N] bool - the env was stepped, and not reset. ended: [T, N] bool - an episode ended with the step.
    bad_final: [T, N] bool - the final observation of a truncated step has numbers that are wrong, see DataChecks.
    stats: {name: [T, N]} - of the env. unvalued: [T+1, N] bool - the row shows the final observation of a terminated
    episode, on which no value and no action depends; None where no row does.
    """

    rows: slice
    stepped: Tensor
    ended: Tensor
    bad_final: Tensor
    stats: dict[str, Tensor]
    unvalued: Tensor | None = None


class DataChecks:
    """Counts what no env and no policy may give in a rollout, on the device.

    names: what is counted, in the order of ``counts``.
    """

    def __init__(self, spec: EnvSpec, device: torch.device) -> None:
        self._real = [key for key, leaf in spec.obs if leaf.dtype.startswith("float")]
        self._choices = [
            (key, torch.as_tensor(limits[0], device=device), torch.as_tensor(limits[1], device=device))
            for key, leaf in spec.obs
            if (limits := leaf.limits) is not None
        ]
        self._masks = [(key, list(mask.heads)) for key, mask in spec.masks]
        self._actions = [head.key for head in spec.actions if isinstance(head, BoxHead)]
        self.names = [
            "rewards that are not finite",
            *(f"numbers of observation {key!r} that are not finite" for key in self._real),
            *(f"choices of observation {key!r} that its space does not have" for key, _, _ in self._choices),
            *(f"action masks {key!r} that allow no action" for key, _ in self._masks),
            *(f"numbers of action {key!r} that are not finite" for key in self._actions),
            "final observations with numbers that are not finite, or choices that their space does not have",
        ]

    def counts(self, dataset: Columns, rollout: Rollout) -> Tensor:
        """[len(names)] int64 - how many there are in ``rollout`` and its rows of ``dataset``."""
        return torch.stack([wrong.sum() for wrong in self._wrong(dataset, rollout)])

    def described(self, counts: list[int], dataset: Columns, rollout: Rollout) -> str:
        """What ``counts`` are of, and the first env that has it. Waits for the device."""
        places = [wrong.transpose(0, 1).flatten(1).any(1) for wrong in self._wrong(dataset, rollout)]
        firsts = torch.stack(places).int().argmax(1).tolist()
        found = zip(self.names, counts, firsts, strict=True)
        return ", ".join(f"{count} {name} (first in env {env})" for name, count, env in found if count)

    def read(self, dataset: Columns, rollout: Rollout) -> tuple[int, list[int]]:
        """The number of valid steps in ``rollout``, and its counts. Waits for the device.

        If there are wrong numbers, those that may be any are replaced, and do not count.
        """
        valid = dataset.scalars["valid"][:, rollout.rows].sum()
        steps, *counts = torch.cat((valid.view(1), self.counts(dataset, rollout))).tolist()
        if any(counts) and rollout.unvalued is not None:
            self._clean(dataset, rollout.rows, rollout.unvalued)
            counts = self.counts(dataset, rollout).tolist()
        return steps, counts

    def _clean(self, dataset: Columns, rows: slice, unvalued: Tensor) -> None:
        """Replace wrong numbers of ``unvalued`` observations, and what the policy has made of them."""
        obs = {key: block[:, rows] for key, block in dataset.obs.items()}
        legal: list[tuple[str, Tensor | float]] = [(key, 0.0) for key in self._real]
        legal += [(key, least) for key, least, _ in self._choices]
        for (key, instead), wrong in zip(legal, self._wrong_obs(obs), strict=True):
            _replace(obs[key], wrong, unvalued, instead)
        actions = [dataset.actions[key] for key in self._actions]
        for block in (dataset.scalars["log_prob"], dataset.scalars["value"], *actions):
            _replace(block[:, rows], ~torch.isfinite(block[:, rows]), unvalued[:-1], 0.0)

    def bad(self, obs: Mapping[str, Tensor]) -> Tensor:
        """[N] bool - which of observations {key: [N, ...]} have numbers that are wrong."""
        some = next(iter(obs.values()))
        found = some.new_zeros(len(some), dtype=torch.bool)
        for wrong in self._wrong_obs(obs):
            found |= wrong.view(len(some), -1).any(1)
        return found

    def _wrong_obs(self, obs: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """As ``obs``, bool - where numbers are not finite, or choices not of their space; in the order of ``names``."""
        for key in self._real:
            wide = obs[key].dtype is torch.float64
            yield ~(obs[key].abs() <= LARGEST_READ) if wide else ~torch.isfinite(obs[key])
        for key, least, largest in self._choices:
            yield (obs[key] < least) | (obs[key] > largest)

    def _wrong(self, dataset: Columns, rollout: Rollout) -> Iterator[Tensor]:
        """[T or T+1, N, ...] bool - where there is one, in the order of ``names``."""
        rows = rollout.rows
        yield ~torch.isfinite(dataset.scalars["reward"][:, rows])
        yield from self._wrong_obs({key: block[:, rows] for key, block in dataset.obs.items()})
        for key, heads in self._masks:  # where an action was taken: after the last step none was
            legal = torch.split(dataset.obs[key][:-1, rows].flatten(2) != 0, heads, dim=2)
            yield rollout.stepped & ~torch.stack([choices.any(2) for choices in legal]).all(0)
        for key in self._actions:
            yield ~torch.isfinite(dataset.actions[key][:, rows])
        yield rollout.bad_final


def _replace(block: Tensor, wrong: Tensor, where: Tensor, instead: Tensor | float) -> None:
    """Put ``instead`` into ``block`` [T, N, ...] where it is ``wrong``, as its shape, in the rows ``where`` [T, N]."""
    where = where.view(*where.shape, *[1] * (block.dim() - 2))
    block.copy_(torch.where(wrong & where, instead, block))
