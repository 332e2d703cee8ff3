"""Encodes observations that are choices, as Discrete ones: one-hot, or by learned vectors if there are many values."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.spec import TensorSpec


class ChoiceEncoder(nn.Module):
    """Features [B, out_size] of one leaf [B, *shape] with k elements, each one of finitely many values.

    One-hot vectors side by side if the values of all elements together are at most ``one_hot_max``. Otherwise a vector
    of ``embedding_size`` numbers for each element, from one table if all elements have equally many values (as the
    cells of a grid have), else from a table per element.
    """

    # [k] int64 each: the least and the largest value, and from a value to its place in the vector or row of the table
    _starts: Tensor
    _last: Tensor
    _offsets: Tensor

    def __init__(self, spec: TensorSpec, config: ModelConfig, dtype: torch.dtype) -> None:
        """``dtype``: of the features."""
        super().__init__()
        self._dtype = dtype
        elements = math.prod(spec.shape)
        sizes = spec.sizes * (elements // len(spec.sizes))
        starts = spec.starts * (elements // len(spec.starts))
        self._width = sum(sizes)
        embedded = self._width > config.one_hot_max
        shared = embedded and len(set(sizes)) == 1
        firsts = [0] * elements if shared else [0, *accumulate(sizes[:-1])]
        last = [start + size - 1 for start, size in zip(starts, sizes, strict=True)]
        offsets = [first - start for first, start in zip(firsts, starts, strict=True)]
        for name, values in (("_starts", starts), ("_last", last), ("_offsets", offsets)):
            # Not saved, since they follow from the spec.
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)
        self.table: nn.Embedding | None = None
        self.out_size = self._width
        if embedded:
            rows = sizes[0] if shared else self._width
            self.table = nn.Embedding(rows, config.obs_embedding_size)
            nn.init.normal_(self.table.weight, std=config.obs_embedding_size**-0.5)
            self.out_size = elements * config.obs_embedding_size

    def forward(self, leaf: Tensor) -> Tensor:
        """[B, out_size] of leaf [B, *shape], any integer dtype. Values out of range, as in padding, are clamped."""
        values = leaf.reshape(leaf.shape[0], -1).long()
        places = torch.minimum(torch.maximum(values, self._starts), self._last) + self._offsets
        if self.table is not None:
            return self.table(places).flatten(1).to(self._dtype)
        features = torch.zeros(leaf.shape[0], self._width, dtype=self._dtype, device=leaf.device)
        return features.scatter_(1, places, 1.0)
