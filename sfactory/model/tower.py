"""A tower maps observations to features: encoder, core (the memory, if any), decoder."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.custom import make_part, paths_seen, space_of
from sfactory.model.encoders import Encoder, make_encoder
from sfactory.model.layers import ACTIVATIONS, linear_layers
from sfactory.model.min_gru import MinGruCore
from sfactory.model.precision import wide
from sfactory.model.rnn import Core, RecurrentCore, rollout
from sfactory.tensor_spec import ObsSpec, presence_of


class Stages(NamedTuple):
    """Outputs for a rollout, one row per step: [T * B, ...], or [(T+1) * B, ...] with one more step.

    embeddings: [..., E] - of the encoder, in its dtype. memory: [..., H] - of the core; without one, the embeddings.
    features: [..., F] float32 (float64 if the tower computes in it) - of the decoder.
    """

    embeddings: Tensor
    memory: Tensor
    features: Tensor


class Tower(nn.Module):
    """Encoder, core and decoder. Actor and critic share one tower, or have one each over what each reads.

    out_size, memory_size: of features and of the core's output (without memory, of the encoder's). core_in_size: of
    the core's input.
    state_size: S, 0 without memory.
    """

    def __init__(
        self,
        obs: ObsSpec,
        config: ModelConfig,
        normalized: frozenset[str],
        dtype: torch.dtype = torch.float32,
        plain_spaces: tuple[Any, ...] = (),
    ) -> None:
        """``normalized``: paths of the leaves that come normalized. ``dtype``: of the computation in encoder and
        decoder. Core and heads use float32, or float64 with it, which is for checking numbers. ``plain_spaces``: see
        EnvSpec.
        """
        super().__init__()
        sets = [presence_of(path) for path, leaf in obs if leaf.layout == "entities"]
        self._paths = tuple(dict.fromkeys([*(path for path, _ in obs), *sets]))
        self.encoder = (
            cast(Encoder, make_part("encoder", config, space_of(obs, normalized, plain_spaces)))
            if config.encoder
            else make_encoder(obs, config, normalized, dtype)
        )
        self._seen = paths_seen(obs) if config.encoder else ()
        self.core: Any = None  # a Core
        self.memory_size, self.state_size = self.encoder.out_size, 0
        core_inputs = {path: leaf.shape[0] for path, leaf in obs if leaf.is_core_input}
        self._core_inputs = tuple(core_inputs)
        self.core_in_size = self.encoder.out_size + sum(core_inputs.values())
        if config.use_rnn:
            self.core = make_core(self.core_in_size, config)
            self.memory_size, self.state_size = self.core.out_size, self.core.state_size
        self._activation = ACTIVATIONS[config.nonlinearity]
        self._wide = wide(dtype)
        self._decoders = linear_layers([self.memory_size, *config.decoder_mlp_layers], config, dtype)
        self.decoder: nn.Module = nn.ModuleList(self._decoders)
        self.out_size = self._decoders[-1].out_features if self._decoders else self.memory_size
        # What parts of the user's own give is made wide, as they may compute under autocast, or in float64.
        self._has_own_core, self._has_own_decoder = bool(config.core), bool(config.decoder)
        if self._has_own_decoder:
            self.decoder = make_part("decoder", config, self.memory_size)
            self.out_size = cast(int, self.decoder.out_size)
        self._decodes = self._has_own_decoder or bool(self._decoders)
        # Looking up a module by its attribute costs as much as a small operation, so acting reads this tuple.
        self._stages = self.encoder, self.core

    def read(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What this tower reads of ``obs``; which entities there are stands beside them once they are normalized."""
        return {path: obs[path] for path in self._paths if path in obs}

    def seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the encoder gets of ``obs``: one of the user's own what is in its space."""
        return {path: obs[path] for path in self._seen} if self._seen else obs

    def step(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, H] float32 of obs {path: [B, ...]}, and the state [B, S] after it.

        ``state`` [B, S] is zero in the rows that start an episode.
        """
        encoder, core = self._stages
        features = encoder.forward(self.seen(obs)).to(self._wide) if self._seen else encoder.forward(obs)
        if core is not None:
            features, state = core.step(self._joined(features.to(self._wide), obs), state)
            if self._has_own_core:
                features, state = features.to(self._wide), state.to(self._wide)
        return (self._decode(features) if self._decodes else features).to(self._wide), state

    def unroll(
        self, obs: dict[str, Tensor], states: Tensor, is_first: Tensor, recurrence: int, held: Tensor | None = None
    ) -> Stages:
        """All outputs for a rollout of T = K x ``recurrence`` steps, or one more. Arguments: see ActorCritic.unroll.

        The step after the rollout starts from the state that the present weights compute.
        """
        flat = {path: leaf.flatten(0, 1) for path, leaf in self.seen(obs).items()}
        embeddings = memory = self.encoder.forward(flat)
        if self._seen:
            embeddings = memory = embeddings.to(self._wide)
        if self.core is not None:
            features = self._joined(embeddings.to(self._wide).unflatten(0, (-1, is_first.shape[1])), obs)
            memory = rollout(self.core, features, states, is_first, recurrence, held).flatten(0, 1).to(self._wide)
        return Stages(embeddings, memory, self._decode(memory).to(self._wide))

    def _joined(self, features: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """The inputs [..., core_in_size] of the core: features [..., E] of the encoder, and what --core_inputs adds."""
        more = self._core_inputs
        return torch.cat((features, *(obs[path] for path in more)), dim=-1) if more else features

    def _decode(self, x: Tensor) -> Tensor:
        if self._has_own_decoder:
            return cast(Tensor, self.decoder(x.to(self._wide)))
        for layer in self._decoders:
            x = self._activation(layer.forward(x))
        return x


def make_core(in_size: int, config: ModelConfig) -> Core:
    """The memory that the flags describe, for inputs of ``in_size`` numbers."""
    if config.core:
        return cast(Core, make_part("core", config, in_size))
    sizes = in_size, config.rnn_size, config.rnn_num_layers
    if config.rnn_type == "mingru":
        return MinGruCore(*sizes, config.policy_initialization)
    return RecurrentCore(config.rnn_type, *sizes, config.policy_initialization)


class WholeModel(nn.Module):
    """An actor-critic of the user's own in the form of a tower: its features are the P outputs and the value.

    out_size, memory_size: P + 1. state_size: S. Features and state are made wide, see Tower.
    """

    def __init__(
        self,
        obs: ObsSpec,
        num_outputs: int,
        config: ModelConfig,
        normalized: frozenset[str],
        dtype: torch.dtype,
        plain_spaces: tuple[Any, ...],
    ) -> None:
        super().__init__()
        self._wide = wide(dtype)
        self.model = make_part("model", config, space_of(obs, normalized, plain_spaces), num_outputs)
        self._seen = paths_seen(obs)
        self.state_size: int = getattr(self.model, "state_size", 0)
        self.out_size = self.memory_size = num_outputs + 1

    def seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """As Tower.seen."""
        return {path: obs[path] for path in self._seen}

    def step(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """As Tower.step."""
        outputs, value, state = self.model(self.seen(obs), state)
        if isinstance(state, Tensor):  # the check before the run reports what is none
            state = state.to(self._wide)
        return torch.cat((outputs, value.unsqueeze(-1)), dim=-1).to(self._wide), state

    def sequence(
        self, obs: dict[str, Tensor], state: Tensor, is_first: Tensor, held: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As RecurrentCore.sequence, for obs {path: [T, B, ...]}."""
        more = () if held is None else (held,)
        outputs, values, state = cast(Any, self.model).unroll(self.seen(obs), state, is_first, *more)
        return torch.cat((outputs, values.unsqueeze(-1)), dim=-1).to(self._wide), state

    def unroll(
        self, obs: dict[str, Tensor], states: Tensor, is_first: Tensor, recurrence: int, held: Tensor | None = None
    ) -> Stages:
        """As Tower.unroll; all stages are the features."""
        if self.state_size:
            features = rollout(self, obs, states, is_first, recurrence, held).flatten(0, 1)
        else:
            flat = {path: leaf.flatten(0, 1) for path, leaf in obs.items()}
            features, _ = self.step(flat, states.new_zeros(is_first.numel(), 0))
        return Stages(features, features, features)
