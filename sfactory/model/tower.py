"""A tower maps observations to features: encoder, core (the memory, if any), decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.encoders import linear_layers, make_encoder
from sfactory.model.layers import ACTIVATIONS
from sfactory.model.precision import wide
from sfactory.model.rnn import RecurrentCore
from sfactory.tensor_spec import ObsSpec


class Stages(NamedTuple):
    """Outputs for a rollout, one row per step: [T * B, ...], or [(T+1) * B, ...] with one more step.

    embeddings: [..., E] - of the encoder, in its dtype. memory: [..., H] - of the core; without one, the embeddings.
    features: [..., F] float32 (float64 if the tower computes in it) - of the decoder.
    """

    embeddings: Tensor
    memory: Tensor
    features: Tensor


class Tower(nn.Module):
    """Encoder, core and decoder. Actor and critic share one tower, or have one each.

    out_size, memory_size: of features and of the core's output (without memory, of the encoder's).
    state_size: S, 0 without memory.
    """

    def __init__(
        self, obs: ObsSpec, config: ModelConfig, normalized: frozenset[str], dtype: torch.dtype = torch.float32
    ) -> None:
        """``normalized``: paths of the leaves that come normalized. ``dtype``: of the computation in encoder and
        decoder. Core and heads use float32, or float64 with it, which is for checking numbers.
        """
        super().__init__()
        self.encoder = make_encoder(obs, config, normalized, dtype)
        self.core: RecurrentCore | None = None
        self.memory_size, self.state_size = self.encoder.out_size, 0
        if config.use_rnn:
            sizes = self.encoder.out_size, config.rnn_size, config.rnn_num_layers
            self.core = RecurrentCore(config.rnn_type, *sizes, config.policy_initialization)
            self.memory_size, self.state_size = self.core.out_size, self.core.state_size
        self._activation = ACTIVATIONS[config.nonlinearity]
        self._wide = wide(dtype)
        self._decoders = linear_layers([self.memory_size, *config.decoder_mlp_layers], config, dtype)
        self.decoder = nn.ModuleList(self._decoders)
        self.out_size = self._decoders[-1].out_features if self._decoders else self.memory_size
        # Looking up a module by its attribute costs as much as a small operation, so acting reads this tuple.
        self._stages = self.encoder, self.core

    def step(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, H] float32 of obs {path: [B, ...]}, and the state [B, S] after it.

        ``state`` [B, S] is zero in the rows that start an episode.
        """
        encoder, core = self._stages
        features = encoder.forward(obs)
        if core is not None:
            features, state = core.step(features.to(self._wide), state)
        return (self._decode(features) if self._decoders else features).to(self._wide), state

    def unroll(
        self, obs: dict[str, Tensor], states: Tensor, is_first: Tensor, recurrence: int, held: Tensor | None = None
    ) -> Stages:
        """All outputs for a rollout of T = K x ``recurrence`` steps, or one more. Arguments: see ActorCritic.unroll.

        The step after the rollout starts from the state that the present weights compute.
        """
        embeddings = memory = self.encoder.forward({path: leaf.flatten(0, 1) for path, leaf in obs.items()})
        if self.core is not None:
            features = embeddings.to(self._wide).unflatten(0, (-1, is_first.shape[1]))
            memory = self.core.rollout(features, states, is_first, recurrence, held).flatten(0, 1)
        return Stages(embeddings, memory, self._decode(memory).to(self._wide))

    def _decode(self, x: Tensor) -> Tensor:
        for layer in self._decoders:
            x = self._activation(layer.forward(x))
        return x
