"""Room: the encoder that suits an observation. In: the observation leaves of a spec. Out: one encoder of all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.conv_encoders import ConvEncoder
from sfactory.model.encoders import MLPEncoder, ObsSpec

_IMAGE_DIMENSIONS = 3


class MultiEncoder(nn.Module):
    """A ConvEncoder for each image leaf and one MLPEncoder for all other leaves; their features side by side.

    Images come first, in the order of the spec. ``out_size`` is the number of features.
    """

    def __init__(
        self, obs: ObsSpec, config: ModelConfig, normalized: frozenset[str], dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        images = [leaf for leaf in obs if len(leaf[1].shape) == _IMAGE_DIMENSIONS]
        others = tuple(leaf for leaf in obs if len(leaf[1].shape) != _IMAGE_DIMENSIONS)
        parts: list[ConvEncoder | MLPEncoder] = [
            ConvEncoder(path, spec, config, path in normalized, dtype) for path, spec in images
        ]
        if others:
            parts.append(MLPEncoder(others, config, normalized, dtype))
        self._parts = tuple(parts)
        self.parts = nn.ModuleList(parts)
        self.out_size = sum(part.out_size for part in parts)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features [B, out_size] of obs {path: [B, *shape] any numeric dtype}; ``obs`` is left as it is."""
        return torch.cat([part.forward(obs) for part in self._parts], dim=1)


Encoder = MLPEncoder | ConvEncoder | MultiEncoder


def make_encoder(
    obs: ObsSpec, config: ModelConfig, normalized: frozenset[str] = frozenset(), dtype: torch.dtype = torch.float32
) -> Encoder:
    """The simplest encoder that can read ``obs``; a leaf of three dimensions is an image.

    ``normalized``: paths of the leaves that come normalized. ``dtype``: what it computes in.
    Raises EnvError if an image is too small for the convolutions.
    """
    if all(len(spec.shape) != _IMAGE_DIMENSIONS for _, spec in obs):
        return MLPEncoder(obs, config, normalized, dtype)
    if len(obs) == 1:
        path, spec = obs[0]
        return ConvEncoder(path, spec, config, path in normalized, dtype)
    return MultiEncoder(obs, config, normalized, dtype)
