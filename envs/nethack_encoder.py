"""Encodes NetHack's map: glyphs embedded, seen by convolutions as a whole and around the hero (Kuettler et al. 2020).

``--encoder=nethack``, which is the default of NetHack's tasks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

_X, _Y = 0, 1  # places of the hero's column and row in blstats
_CHARACTERS = 256
_DARK = 2359  # the glyph of places that were not seen yet, nine tenths of a map
_GAIN = 2**0.5


class NetHackEncoder(nn.Module):
    """Features of ``glyphs`` [B, H, W] and ``blstats`` [B, n], and of ``message`` [B, m] if it is observed.

    The network of the paper has five convolutions that keep the size of the map; here the map is halved three times,
    which takes a tenth of the operations. blstats are counts of any size, so their logarithms are taken. What is not
    seen, or beyond the map, and the end of a message are zeros that are not learned: their gradients would be most of
    the embedding's work. With units of ReLU, most were the same for all observations after 300,000 steps.
    """

    def __init__(
        self, observation_space: spaces.Dict, embedding: int = 32, channels: int = 16, crop: int = 9, hidden: int = 256
    ) -> None:
        """embedding: numbers for a glyph. crop: side of the square around the hero. hidden: width of the features."""
        super().__init__()
        glyphs: Any = observation_space["glyphs"]
        height, width = glyphs.shape
        self._crop = crop
        self.table = nn.Embedding(int(glyphs.high.max()) + 1, embedding, padding_idx=_DARK)
        self.map = _convolutions(embedding, channels, stride=2)
        self.near = _convolutions(embedding, channels, stride=1)
        size = channels * (-(-height // 8) * -(-width // 8) + crop * crop)
        size += _length(observation_space["blstats"])
        self.letters: nn.Module | None = None
        if "message" in observation_space.spaces:
            length = _length(observation_space["message"])
            self.letters = nn.Sequential(
                nn.Embedding(_CHARACTERS, 8, padding_idx=0), nn.Flatten(1), nn.Linear(8 * length, 64), nn.ELU()
            )
            size += 64
        layers = nn.Linear(size, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.ELU()
        self.joined = nn.Sequential(*layers)
        self.out_size = hidden
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, _GAIN)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """[B, hidden] of obs {path: [B, ...] any integer dtype}."""
        glyphs, stats = obs["glyphs"].long(), obs["blstats"].float()
        seen = self.table(glyphs).permute(0, 3, 1, 2)  # [B, embedding, H, W]
        around = self.table(self._around_hero(glyphs, obs["blstats"].long())).permute(0, 3, 1, 2)
        parts = [self.map(seen), self.near(around), torch.sign(stats) * torch.log1p(stats.abs())]
        if self.letters is not None:
            parts.append(self.letters(obs["message"].long()))
        features: Tensor = self.joined(torch.cat(parts, dim=1))
        return features

    def _around_hero(self, glyphs: Tensor, stats: Tensor) -> Tensor:
        """[B, crop, crop] - glyphs around the hero; as if not seen beyond the map."""
        _, height, width = glyphs.shape
        side = self._crop
        padded = F.pad(glyphs, (side // 2,) * 4, value=_DARK)
        steps = torch.arange(side, device=glyphs.device)
        rows = stats[:, _Y].clamp(0, height - 1)[:, None, None] + steps[None, :, None]
        columns = stats[:, _X].clamp(0, width - 1)[:, None, None] + steps[None, None, :]
        return padded[torch.arange(len(glyphs), device=glyphs.device)[:, None, None], rows, columns]


def _length(space: spaces.Space[Any]) -> int:
    shape = space.shape
    assert shape is not None
    return shape[0]


def _convolutions(inputs: int, channels: int, stride: int) -> nn.Sequential:
    """Three layers of 3x3, padded, each with ``stride``; then flat."""
    layers: list[nn.Module] = []
    for size in (inputs, channels, channels):
        layers += [nn.Conv2d(size, channels, 3, stride, padding=1), nn.ELU()]
    return nn.Sequential(*layers, nn.Flatten(1))
