"""Room: running normalization of observations and returns.

In: batches of values and which of them are valid. Out: the same shifted and scaled to mean 0 and deviation 1
over all valid values ever seen. Statistics are buffers of the model: they are saved, published and adopted
with the weights, so that acting and learning normalize alike at the same version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sfactory.spec import TensorSpec

EPS = 1e-5  # added to the variance
CLIP = 5.0

# Statistics are taken in float64. On a CPU by blocks that fit its cache, which is several times as fast as by
# one pass over a large batch; elsewhere by blocks that bound the memory of the conversion.
_CPU_BLOCK = 2**18
_DEVICE_BLOCK = 2**24


class RunningNormalizer(nn.Module):
    """Mean and variance of all valid rows seen, and normalization by them.

    shape: of one row; every element has statistics of its own. clip: normalized values are kept within
    [-clip, clip]; None is off. Before the first valid row, mean is 0 and variance 1.

    mean, var: [*shape] float64, population variance. count: [] float64 - valid rows seen.
    scale, shift: [*shape] float32 - what ``forward`` multiplies and adds; derived from mean and variance.

    For returns, use shape () without a clip: clipped targets would bias the values of rare, large returns.
    The value head then predicts normalized returns, and:
    1. When acting, and at the start of learning, values are ``denormalize(head's output)``. What is recorded as
       the behavior value is the denormalized one: its meaning does not change as statistics do.
    2. GAE or V-trace run on denormalized values, recorded and new ones alike, and unchanged rewards: r + d V' - V
       makes sense only in the unit of the rewards.
    3. ``update`` with the targets (vs, or returns) at valid rows, once per dataset.
    4. The value loss compares the head's output with ``forward(targets)``; the recorded values that its clip is
       centered on pass through ``forward``, too.
    Advantages stay in the unit of the rewards (and are normalized by themselves, if at all).
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, shape: Sequence[int], clip: float | None = CLIP) -> None:
        super().__init__()
        self._shape = tuple(shape)
        self._clip = clip
        self._row_size = math.prod(self._shape)
        self.register_buffer("mean", torch.zeros(self._shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(self._shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale", torch.full(self._shape, (1.0 + EPS) ** -0.5))
        self.register_buffer("shift", torch.zeros(self._shape, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Clipped (x - mean) / sqrt(var + 1e-5) in float32: a new tensor; ``x`` is left as it is.

        x: [..., *shape] any numeric dtype. NaN stays NaN, to be noticed.

        One multiplication and addition: its rounding is of the size of the rounding that large float32 inputs
        of small variance carry already.
        """
        if x.dtype != torch.float32:
            x = x.to(torch.float32)
        y = torch.addcmul(self.shift, x, self.scale)
        return y if self._clip is None else y.clamp_(-self._clip, self._clip)

    def denormalize(self, y: Tensor) -> Tensor:
        """y * sqrt(var + 1e-5) + mean, the inverse of ``forward`` inside its clip. y: [..., *shape] float32."""
        return (y - self.shift) / self.scale

    @torch.no_grad()
    def update(self, x: Tensor, valid: Tensor) -> None:
        """Take the rows of ``x`` where ``valid`` into the statistics, in place; equal to statistics of all at once.

        x: [..., *shape] any numeric dtype; rows that are not valid may hold anything. valid: [...] bool.
        A batch with a valid NaN or inf is left out as a whole, since statistics could never recover from it.
        No host sync. Raises ValueError for wrong shapes.

        Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm", with the sums taken
        about the present mean.
        """
        if tuple(x.shape) != (*valid.shape, *self._shape):
            raise ValueError(f"rows {tuple(x.shape)} do not fit valid {tuple(valid.shape)} and shape {self._shape}")
        x, valid = x.reshape(-1, self._row_size), valid.reshape(-1)
        center = self._center(x, valid)
        total, squares = self._sums_about(center, x, valid)
        # A sum of squares is finite only if all its terms are.
        finite = torch.isfinite(squares).all()
        total, squares = torch.where(finite, total, 0.0), torch.where(finite, squares, 0.0)
        count = self.count + torch.where(finite, valid.sum(), 0.0)
        rows = count.clamp(min=1.0)
        squared_deviations = self.var.view(-1) * self.count + squares - total.square() / rows
        seen = count > 0.0
        self.mean.copy_(torch.where(seen, center + total / rows, self.mean.view(-1)).view(self._shape))
        # Rounding may leave the tiniest negative variance where all rows are equal.
        var = torch.where(seen, squared_deviations / rows, self.var.view(-1)).clamp_(min=0.0)
        self.var.copy_(var.view(self._shape))
        self.count.copy_(count)
        scale = (self.var + EPS).rsqrt()
        self.scale.copy_(scale)
        self.shift.copy_(-self.mean * scale)

    def _center(self, x: Tensor, valid: Tensor) -> Tensor:
        """[row size] float64 to take sums about: the mean, or at first any valid row, so that squares stay small."""
        first = x.index_select(0, valid.to(torch.uint8).argmax().unsqueeze(0)).squeeze(0).to(torch.float64)
        usable = (self.count == 0.0) & valid.any() & torch.isfinite(first).all()
        return torch.where(usable, first, self.mean.view(-1))

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
    """Observations are to be normalized that the spec does not have."""


class ObsNormalizer(nn.Module):
    """A RunningNormalizer for each chosen leaf of the observation; other leaves pass as they are.

    obs: as in ``EnvSpec.obs``. keys: paths of the leaves to normalize, None for all. Raises UnknownKeys for a
    path that the spec does not have.
    """

    def __init__(self, obs: tuple[tuple[str, TensorSpec], ...], keys: Sequence[str] | None = None) -> None:
        super().__init__()
        shapes = {path: spec.shape for path, spec in obs}
        unknown = [key for key in keys or () if key not in shapes]
        if unknown:
            raise UnknownKeys(f"no observation {', '.join(map(repr, unknown))} to normalize: there are {list(shapes)}")
        self.keys = tuple(path for path in shapes if keys is None or path in keys)
        # A list, in the order of the spec: paths may hold what names of modules may not.
        self._by_key = {path: RunningNormalizer(shapes[path]) for path in self.keys}
        self.normalizers = nn.ModuleList(self._by_key.values())

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Observations {path: [..., *shape]} with the chosen leaves normalized, in float32.

        ``obs`` and its tensors are left as they are.
        """
        normalized = dict(obs)
        for path, normalizer in self._by_key.items():
            # forward() instead of a call: calling a module costs as much as a small operation.
            normalized[path] = normalizer.forward(obs[path])
        return normalized

    def update(self, obs: dict[str, Tensor], valid: Tensor) -> None:
        """Take observations {path: [..., *shape]} into the statistics where ``valid`` [...] bool."""
        for path, normalizer in self._by_key.items():
            normalizer.update(obs[path], valid)
