"""Encodes a set of entities, of which some may be absent, by attention among those that are present."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.layers import ACTIVATIONS, GAINS, initialize
from sfactory.model.normalizer import present
from sfactory.model.precision import Linear, wide
from sfactory.tensor_spec import TensorSpec


class EntityEncoder(nn.Module):
    """Features [B, out_size] of the set ``path``, [B, N, F]: up to N entities of F numbers each, in any order.

    Each entity is embedded, attends to all that are present in ``encoder_entity_layers`` layers (layer normalization
    before each part, and residuals), and the mean over those that are present is the result; zeros if none is. Absent
    ones have no influence, whatever they hold. Weights do not depend on N.

    Source: Vaswani et al. 2017, "Attention is all you need"; pooled as in Baker et al. 2020, "Emergent tool use from
    multi-agent autocurricula".
    """

    def __init__(self, path: str, spec: TensorSpec, config: ModelConfig, normalized: bool, dtype: torch.dtype) -> None:
        """``normalized``: the set comes normalized and is not scaled. ``dtype``: of the computation in all layers but
        the first, which reads numbers of any size."""
        super().__init__()
        self._path, self._wide = path, wide(dtype)
        self._subtract_mean, self._scale = (0.0, 1.0) if normalized else (config.obs_subtract_mean, config.obs_scale)
        self._heads = config.encoder_entity_heads
        self.out_size = size = config.encoder_entity_size
        self._activation = ACTIVATIONS[config.nonlinearity]
        self.embedding = _linear(spec.shape[1], size, config, GAINS[config.nonlinearity], self._wide)
        layers = range(config.encoder_entity_layers)
        self.mix = nn.ModuleList(_linear(size, 3 * size, config, 1.0, dtype) for _ in layers)
        self.attended = nn.ModuleList(_linear(size, size, config, 1.0, dtype) for _ in layers)
        self.hidden = nn.ModuleList(_linear(size, size, config, GAINS[config.nonlinearity], dtype) for _ in layers)
        self.output = nn.ModuleList(_linear(size, size, config, 1.0, dtype) for _ in layers)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """As MLPEncoder.forward."""
        there = present(obs, self._path)
        # Where no entity is present all attend to all, as there is nothing to divide by; the mean leaves them out.
        seen = (there | ~there.any(-1, keepdim=True)).unsqueeze(1).unsqueeze(1)  # [B, 1, 1, N]
        leaf = (obs[self._path].to(self._wide) - self._subtract_mean) / self._scale
        x = self._activation(self.embedding(leaf.masked_fill(~there.unsqueeze(-1), 0.0)))  # [B, N, size]
        for mix, attended, hidden, output in zip(self.mix, self.attended, self.hidden, self.output, strict=True):
            parts = mix(_normed(x)).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
            heads = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=seen)
            x = x + attended(heads.transpose(1, 2).flatten(2))
            x = x + output(self._activation(hidden(_normed(x))))
        weights = there.to(x.dtype).unsqueeze(-1)
        return (x * weights).sum(1) / weights.sum(1).clamp(min=1.0)


def _linear(in_size: int, out_size: int, config: ModelConfig, gain: float, dtype: torch.dtype) -> Linear:
    """A layer of its own, without the normalization that others may have."""
    layer = Linear(in_size, out_size, dtype)
    initialize(layer, config.policy_initialization, config.policy_init_gain * gain)
    return layer


def _normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])
