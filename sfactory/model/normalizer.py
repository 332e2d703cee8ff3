"""Running normalization of observations and returns to mean 0 and deviation 1.

Statistics are buffers of the model: they are saved, published and adopted with the weights, so that acting and learning
normalize alike at the same version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfactory.ranks.ranks import Sum
from sfactory.tensor_spec import TensorSpec, presence_of

EPS = 1e-5  # added to the variance
CLIP = 5.0

# Rows per block of the float64 statistics. On a CPU a block fits the cache, which is several times as fast as one pass
# over a large batch; elsewhere it bounds the memory of the conversion.
_CPU_BLOCK = 2**18
_DEVICE_BLOCK = 2**24
WIDE = frozenset({torch.float64, torch.int64, torch.int32})


class RunningNormalizer(nn.Module):
    """Normalizes by mean and variance of all valid rows seen.

    shape: of one row; each element has its own statistics. clip: normalized values are clipped to [-clip, clip]; None
    is off. Before the first valid row, mean is 0 and variance 1.

    mean, var: [*shape] float64, population variance. count: [] float64 - valid rows seen.
    scale, shift: [*shape] float32 - factor and summand of ``forward``; derived from mean and variance.

    Returns use shape () without a clip, since clipped targets would bias the values of rare, large returns:
    1. Acting records ``denormalize(head's output)`` as behavior value, which keeps its meaning as statistics change.
    2. GAE and V-trace use denormalized values and raw rewards: r + d V' - V needs the unit of rewards.
    3. ``update`` gets the targets (vs, or returns) of valid rows, once per dataset.
    4. The value loss compares the head's output with ``forward(targets)``, and clips around ``forward(recorded)``.
    Advantages stay in the unit of rewards.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, shape: Sequence[int], clip: float | None = CLIP) -> None:
        super().__init__()
        self._shape = tuple(shape)
        self.clip = clip
        self._row_size = math.prod(self._shape)
        self._has_counted = False  # as far as the host knows
        self.register_buffer("mean", torch.zeros(self._shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(self._shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.full(self._shape, (1.0 + EPS) ** -0.5))
        self.register_buffer("shift", torch.zeros(self._shape, dtype=torch.float32))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._has_counted = False
        super()._load_from_state_dict(*args, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        """Clipped (x - mean) / sqrt(var + 1e-5) in a new float32 tensor. x: [..., *shape] any numeric dtype; NaN stays.

        One multiplication and addition; its rounding is no larger than that of float32 inputs with small variance.
        Wider dtypes are centered in float64 first, since large numbers may differ by less than float32 resolves.
        """
        if x.dtype in WIDE:
            y = (x - self.mean).to(torch.float32).mul_(self.scale)
        else:
            y = torch.addcmul(self.shift, x if x.dtype is torch.float32 else x.to(torch.float32), self.scale)
        return y if self.clip is None else y.clamp_(-self.clip, self.clip)

    def denormalize(self, y: Tensor) -> Tensor:
        """y * sqrt(var + 1e-5) + mean: the inverse of ``forward`` within its clip. y: [..., *shape] float32."""
        return (y - self.shift) / self.scale

    @torch.no_grad()
    def update(self, x: Tensor, valid: Tensor, add_up: Sum | None = None) -> None:
        """Add the rows of ``x`` where ``valid`` to the statistics, in place; equal to statistics of all rows at once.

        x: [..., *shape] any numeric dtype; invalid rows may hold anything. valid: [...] bool. Ignores a batch with a
        valid NaN or inf as a whole, since statistics could never recover from it. No host sync, but with ``add_up``,
        which adds the rows of all ranks. Raises ValueError for wrong shapes.

        Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm", with the sums taken
        about the present mean.
        """
        if tuple(x.shape) != (*valid.shape, *self._shape):
            raise ValueError(f"rows {tuple(x.shape)} do not fit valid {tuple(valid.shape)} and shape {self._shape}")
        if x.dtype is torch.bool:
            x = x.to(torch.uint8)  # torch subtracts no bools
        x, valid = x.reshape(-1, self._row_size), valid.reshape(-1)
        center, new = self._center(x, valid), valid.sum()
        if add_up is not None and not self._has_counted:
            self._has_counted = bool(self.count)  # waits for a GPU
            if not self._has_counted:
                center = self._mean_of_centers(center, valid, add_up)
        total, squares = self._sums_about(center, x, valid)
        if add_up is not None:
            sums = add_up(torch.cat((total, squares, new.double().reshape(1))))
            total, squares, new = sums[: self._row_size], sums[self._row_size : -1], sums[-1]
        # A sum of squares is finite only if all its terms are.
        finite = torch.isfinite(squares).all()
        total, squares = torch.where(finite, total, 0.0), torch.where(finite, squares, 0.0)
        count = self.count + torch.where(finite, new, 0.0)
        rows = count.clamp(min=1.0)
        squared_deviations = self.var.view(-1) * self.count + squares - total.square() / rows
        seen = count > 0.0
        self.mean.copy_(torch.where(seen, center + total / rows, self.mean.view(-1)).view(self._shape))
        self.var.copy_(torch.where(seen, squared_deviations / rows, self.var.view(-1)).view(self._shape))
        self.count.copy_(count)
        self.derive()

    @torch.no_grad()
    def derive(self) -> None:
        """Compute ``scale`` and ``shift`` from mean and variance, once these have changed."""
        # Rounding may leave the tiniest negative variance where all rows are equal, see also Averaging.
        self.var.clamp_(min=0.0)
        scale = (self.var + EPS).rsqrt()
        self.scale.copy_(scale)
        self.shift.copy_(-self.mean * scale)

    def _center(self, x: Tensor, valid: Tensor) -> Tensor:
        """[row size] float64 - the center of sums: the mean, or at first any valid row, so that squares stay small."""
        first = x.index_select(0, valid.to(torch.uint8).argmax().unsqueeze(0)).squeeze(0).to(torch.float64)
        usable = (self.count == 0.0) & valid.any() & torch.isfinite(first).all()
        return torch.where(usable, first, self.mean.view(-1))

    def _mean_of_centers(self, center: Tensor, valid: Tensor, add_up: Sum) -> Tensor:
        """One center for all ranks: the mean of those of the ranks that have a valid row."""
        has_rows = valid.any().double().reshape(1)
        sums = add_up(torch.cat((center * has_rows, has_rows)))
        return sums[:-1] / sums[-1].clamp(min=1.0)

    def _sums_about(self, center: Tensor, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of x - center and of its square over the valid rows: [row size] float64 each."""
        total, squares = torch.zeros_like(center), torch.zeros_like(center)
        block = _CPU_BLOCK if x.device.type == "cpu" else _DEVICE_BLOCK
        rows = max(1, block // max(1, self._row_size))
        for some, are_valid in zip(x.split(rows), valid.split(rows), strict=True):
            deviations = torch.where(are_valid.unsqueeze(-1), some - center, 0.0)
            total += deviations.sum(0)
            squares += deviations.square_().sum(0)
        return total, squares


class UnknownKeys(ValueError):
    """``normalize_input_keys`` names observations that the spec does not have."""


class ObsNormalizer(nn.Module):
    """A RunningNormalizer that clips at ``clip`` for each leaf in ``keys`` (None: all). May raise UnknownKeys.

    All entities of a set share their statistics, of those that are present (see ``present``).
    """

    def __init__(
        self, obs: tuple[tuple[str, TensorSpec], ...], keys: Sequence[str] | None = None, clip: float = CLIP
    ) -> None:
        super().__init__()
        self._sets = frozenset(path for path, spec in obs if spec.layout == "entities")
        shapes = {path: spec.shape[1:] if path in self._sets else spec.shape for path, spec in obs}
        unknown = [key for key in keys or () if key not in shapes]
        if unknown:
            raise UnknownKeys(f"no observation {', '.join(map(repr, unknown))} to normalize: there are {list(shapes)}")
        self.keys = tuple(path for path in shapes if keys is None or path in keys)
        # A list, in the order of the spec: paths may hold characters that names of modules may not.
        self.by_key = {path: RunningNormalizer(shapes[path], clip) for path in self.keys}
        self.normalizers = nn.ModuleList(self.by_key.values())

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """A copy of ``obs`` {path: [..., *shape]} with the chosen leaves normalized, in float32."""
        normalized = dict(obs)
        for path, normalizer in self.by_key.items():
            # forward() instead of a call: calling a module costs as much as a small operation.
            normalized[path] = normalizer.forward(obs[path])
            if path in self._sets:
                normalized[presence_of(path)] = present(obs, path)  # which normalized numbers do not show
        return normalized

    def update(self, obs: dict[str, Tensor], valid: Tensor, add_up: Sum | None = None) -> None:
        """See RunningNormalizer.update."""
        for path, normalizer in self.by_key.items():
            rows = valid.unsqueeze(-1) & present(obs, path) if path in self._sets else valid
            normalizer.update(obs[path], rows, add_up)


def present(obs: dict[str, Tensor], path: str) -> Tensor:
    """[..., N] bool - which entities of obs[path] [..., N, F] there are.

    Those of which the mask beside them is not 0; without a mask, those with a number that is not 0.
    """
    mask = obs.get(presence_of(path))
    return (obs[path] != 0).any(-1) if mask is None else mask != 0
