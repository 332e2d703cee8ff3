"""Random network distillation: a bonus for observations that a network has not learned to predict yet.

Source: Burda et al. 2019, "Exploration by random network distillation" (arXiv 1810.12894), sections 2.2 to 2.4. A
target network with fixed random weights maps an observation to a vector, and a predictor learns to give the same one.
Its error is large where observations are new. Observations are normalized by statistics of their own, and clipped to
[-5, 5]. That only the first visit of an observation pays is from Zhang et al. 2021, "NovelD: A simple yet effective
exploration criterion", section 3; there it holds for a whole episode, here within a rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.actor_critic import ValueHead
from sfactory.model.custom import paths_seen
from sfactory.model.encoders import make_encoder
from sfactory.model.layers import ACTIVATIONS, linear_layers
from sfactory.model.normalizer import ObsNormalizer
from sfactory.tensor_spec import ObsSpec

_SIZE = 256  # of the vectors that are predicted
_FACTORS = (0x5851F42D4C957F2D, 0x369DEA0F31A53F85)  # odd, and their bits are irregular


class _Vectors(nn.Module):
    """A built-in encoder as the flags describe it, and ``depth`` layers after it: [N, _SIZE]."""

    def __init__(self, obs: ObsSpec, config: ModelConfig, normalized: frozenset[str], depth: int) -> None:
        super().__init__()
        self.encoder = make_encoder(obs, config, normalized)
        self.layers = nn.ModuleList(linear_layers([self.encoder.out_size] + [_SIZE] * depth, config))
        self._activation = ACTIVATIONS[config.nonlinearity]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """[N, _SIZE] of obs {path: [N, ...]}; no activation after the last layer."""
        x = self.encoder.forward(obs)
        for layer in self.layers[:-1]:
            x = self._activation(layer(x))
        return self.layers[-1](x)


class Rnd(nn.Module):
    """Predictor, fixed target, normalizer of observations, and the value head of intrinsic returns.

    The predictor has two layers more than the target. value: reads the features of the policy's critic; its
    ``returns`` hold the statistics that intrinsic returns are normalized by. seen: the paths of the observations that
    the bonus is for, without action masks and what the core alone reads.
    """

    def __init__(self, obs: ObsSpec, feature_size: int, config: ModelConfig) -> None:
        """``feature_size``: of the critic's features."""
        super().__init__()
        config = replace(config, normalize_returns=True, use_spectral_norm=False, use_layer_norm=False)
        self.seen = paths_seen(obs)
        self.normalizer = ObsNormalizer(tuple(leaf for leaf in obs if leaf[1].is_number))
        normalized = frozenset(self.normalizer.keys)
        self.target = _Vectors(obs, config, normalized, depth=1).requires_grad_(False)
        self.predictor = _Vectors(obs, config, normalized, depth=3)
        self.value = ValueHead(feature_size, config)

    def error(self, obs: dict[str, Tensor]) -> Tensor:
        """[T, B] mean squared error of the predictor at obs {path: [T, B, ...]}, with gradients."""
        steps, rows = next(iter(obs.values())).shape[:2]
        seen = self.normalizer.forward({path: leaf.flatten(0, 1) for path, leaf in obs.items()})
        with torch.no_grad():
            wanted = self.target.forward(seen)
        return (self.predictor.forward(seen) - wanted).square().mean(-1).view(steps, rows)


def first_visits(obs: Mapping[str, Tensor], is_first: Tensor) -> Tensor:
    """[T, B] bool of obs {path: [T, B, ...]}: whether no earlier row of the same episode in its column is equal to it.

    is_first: [T, B] bool - an episode begins. Rows are equal if their bytes are, so 0.0 and -0.0 differ; they are
    compared by fingerprints of 64 bits.
    """
    prints = _fingerprints(torch.cat([_bytes(leaf) for leaf in obs.values()], dim=-1))
    ordered, order = (prints + is_first.cumsum(0) * _FACTORS[0]).sort(dim=0, stable=True)
    differs = torch.ones_like(is_first)
    differs[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(is_first).scatter_(0, order, differs)


def _bytes(leaf: Tensor) -> Tensor:
    """[T, B, N] uint8 - the bytes of each leaf[t, b]."""
    return (leaf.flatten(2).contiguous() if leaf.dim() > 2 else leaf.unsqueeze(-1).contiguous()).view(torch.uint8)


def _fingerprints(rows: Tensor) -> Tensor:
    """[T, B] int64 of rows [T, B, N] uint8: different for different rows but for rare chance."""
    words = nn.functional.pad(rows, (0, -rows.shape[-1] % 8)).view(torch.int64)
    places = torch.arange(1, words.shape[-1] + 1, device=rows.device)
    first, second = _scrambled(places) | 1, _scrambled(-places) | 1  # made on the device, without a wait for it
    mixed = words * first
    mixed ^= mixed >> 32  # brings what differs in the high bits, which a product keeps there, to all bits
    return (mixed * second).sum(-1)


def _scrambled(numbers: Tensor) -> Tensor:
    """Irregular int64 of different int64."""
    for factor in _FACTORS:
        numbers = numbers * factor
        numbers = numbers ^ (numbers >> 32)
    return numbers
