"""The dataset that a collector fills and a learner reads, on the device of both."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sfactory.action_heads import BoxHead
from sfactory.layout import Layout
from sfactory.learner.staging import Columns
from sfactory.spec import EnvSpec


class ResidentDataset(Columns):
    """R rows of T steps, which are filled N at a time.

    rows_of_env: N. filled: rows filled so far. valid_steps: those that were counted in them.
    """

    def __init__(self, spec: EnvSpec, layout: Layout, device: torch.device) -> None:
        super().__init__(spec, layout, device, pin=False, replay=False)
        self.rows_of_env = layout.rows
        self.clear()

    def clear(self) -> None:
        """Start over; old contents stay until they are overwritten."""
        self.filled = self.valid_steps = 0

    @property
    def full(self) -> bool:
        """True when all R rows are filled."""
        return self.filled == self.rows

    @property
    def next_rows(self) -> slice:
        """The rows that are filled next."""
        return slice(self.filled, self.filled + self.rows_of_env)


class DataChecks:
    """Counts numbers of a rollout that no env and no policy may give, on the device.

    names: what is counted, in the order of ``counts``.
    """

    def __init__(self, spec: EnvSpec, device: torch.device) -> None:
        self._real = [key for key, leaf in spec.obs if leaf.dtype.startswith("float")]
        self._choices = [
            (key, torch.as_tensor(limits[0], device=device), torch.as_tensor(limits[1], device=device))
            for key, leaf in spec.obs
            if (limits := leaf.limits) is not None
        ]
        self._actions = [head.key for head in spec.actions if isinstance(head, BoxHead)]
        self.names = [
            "rewards that are not finite",
            *(f"numbers of observation {key!r} that are not finite" for key in self._real),
            *(f"choices of observation {key!r} that its space does not have" for key, _, _ in self._choices),
            *(f"numbers of action {key!r} that are not finite" for key in self._actions),
        ]

    def counts(self, dataset: Columns, rows: slice) -> Tensor:
        """[len(names)] int64 - how many there are in ``rows`` of ``dataset``."""
        return torch.stack(list(self._counts(dataset, rows)))

    def _counts(self, dataset: Columns, rows: slice) -> Iterator[Tensor]:
        reals = [dataset.scalars["reward"], *(dataset.obs[key] for key in self._real)]
        for block in reals:
            yield (~torch.isfinite(block[:, rows])).sum()
        for key, least, largest in self._choices:
            block = dataset.obs[key][:, rows]
            yield ((block < least) | (block > largest)).sum()
        for key in self._actions:
            yield (~torch.isfinite(dataset.actions[key][:, rows])).sum()
