"""Room: the actor-critic network: encoder, then (room for a core), then heads.

In: a batch of observations, one row per agent step. Out: parameters of the action distribution and
values; or, on top of these, actions (for sampling) and log-probabilities (for learning).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import ModelConfig
from sfactory.model.distributions import ActionDistribution, Actions, num_params
from sfactory.model.encoders import init_orthogonal
from sfactory.model.multi_encoder import make_encoder
from sfactory.spec import ActionHead, BoxHead, DiscreteHead, EnvSpec

_POLICY_GAIN = 0.01  # nearly uniform at the start (Andrychowicz et al. 2021, "What matters in on-policy RL?")
_VALUE_GAIN = 1.0


class Features(NamedTuple):
    """What the heads read. actor, critic: [B, H] float32 - one and the same tensor if weights are shared."""

    actor: Tensor
    critic: Tensor


class Output(NamedTuple):
    """dist_params: [B, P] float32 - see ActionDistribution. value: [B] float32 - V(obs)."""

    dist_params: Tensor
    value: Tensor


class Acted(NamedTuple):
    """actions: {key: [B] int64 or [B, size] float32}. log_prob: [B] float32 - of them. value: [B] float32."""

    actions: Actions
    log_prob: Tensor
    value: Tensor


class Evaluated(NamedTuple):
    """log_prob: [B] float32 - of given actions. entropy: [B] float32. value: [B] float32."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class PolicyHead(nn.Module):
    """Features to distribution parameters [B, P]. The standard deviation of Box heads comes from the network
    (``adaptive_stddev``) or from parameters of its own, the same in every state."""

    def __init__(self, in_size: int, heads: tuple[ActionHead, ...], config: ModelConfig) -> None:
        super().__init__()
        self._heads = heads
        box_size = sum(head.size for head in heads if isinstance(head, BoxHead))
        log_stddev = math.log(config.initial_stddev)
        self.log_stddev: nn.Parameter | None = None
        width = num_params(heads)
        if box_size and not config.adaptive_stddev:
            self.log_stddev = nn.Parameter(torch.full((box_size,), log_stddev))
            width -= box_size
        self.linear = nn.Linear(in_size, width)
        if config.policy_initialization == "orthogonal":
            init_orthogonal(self.linear, _POLICY_GAIN)
        if self.log_stddev is None:
            self._init_stddev_bias(log_stddev)

    def forward(self, features: Tensor) -> Tensor:
        """dist_params [B, P] of features [B, H]."""
        outputs = F.linear(features, self.linear.weight, self.linear.bias)
        return outputs if self.log_stddev is None else self._with_stddev(outputs, self.log_stddev)

    def _with_stddev(self, outputs: Tensor, log_stddev: Tensor) -> Tensor:
        """Put each Box head's own log standard deviations behind its means."""
        log_stddev = log_stddev.expand(outputs.shape[0], -1)
        pieces, column, box_column = [], 0, 0
        for head in self._heads:
            width = head.n if isinstance(head, DiscreteHead) else head.size
            pieces.append(outputs[:, column : column + width])
            column += width
            if isinstance(head, BoxHead):
                pieces.append(log_stddev[:, box_column : box_column + width])
                box_column += width
        return torch.cat(pieces, dim=1)

    @torch.no_grad()
    def _init_stddev_bias(self, log_stddev: float) -> None:
        column = 0
        for head in self._heads:
            if isinstance(head, BoxHead):
                self.linear.bias[column + head.size : column + 2 * head.size] = log_stddev
            column += num_params((head,))


class ActorCritic(nn.Module):
    """Policy and value function over one EnvSpec, with a shared encoder or one each."""

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        super().__init__()
        self.heads = spec.actions
        self.encoder = make_encoder(spec.obs, config)
        self.critic_encoder = None if config.actor_critic_share_weights else make_encoder(spec.obs, config)
        self.policy_head = PolicyHead(self.encoder.out_size, spec.actions, config)
        self.value_head = nn.Linear(self.encoder.out_size, 1)
        if config.policy_initialization == "orthogonal":
            init_orthogonal(self.value_head, _VALUE_GAIN)

    def encode(self, obs: dict[str, Tensor]) -> Features:
        """Features of obs {path: [B, *shape]}: first stage of ``forward``."""
        actor = self.encoder.forward(obs)
        return Features(actor, actor if self.critic_encoder is None else self.critic_encoder.forward(obs))

    def apply_heads(self, features: Features) -> Output:
        """Distribution parameters and values of features: last stage of ``forward``."""
        # forward() instead of a call, here and in encode: see MLPEncoder on the cost of calling modules.
        return Output(self.policy_head.forward(features.actor), self._value_of(features.critic))

    def forward(self, obs: dict[str, Tensor]) -> Output:
        """Distribution parameters [B, P] and values [B] of obs {path: [B, *shape] any numeric dtype}."""
        return self.apply_heads(self.encode(obs))

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Values [B] alone, as for bootstrapping."""
        features = self.encoder(obs) if self.critic_encoder is None else self.critic_encoder(obs)
        return self._value_of(features)

    def _value_of(self, features: Tensor) -> Tensor:
        head = self.value_head
        return F.linear(features, head.weight, head.bias).squeeze(-1)

    def distribution(self, params: Tensor) -> ActionDistribution:
        """The action distribution of dist_params [B, P]."""
        return ActionDistribution(self.heads, params)

    def act(self, obs: dict[str, Tensor], deterministic: bool = False) -> Acted:
        """Actions for obs {path: [B, *shape]}: random, or the mode. Call it under torch.inference_mode()."""
        params, value = self.forward(obs)
        distribution = self.distribution(params)
        if deterministic:
            actions = distribution.mode()
            return Acted(actions, distribution.log_prob(actions), value)
        actions, log_prob = distribution.sample_with_log_prob()
        return Acted(actions, log_prob, value)

    def evaluate(self, obs: dict[str, Tensor], actions: Actions) -> Evaluated:
        """Judge recorded actions with the present weights; with gradients. [T, B] data comes flattened to [T * B]."""
        params, value = self.forward(obs)
        distribution = self.distribution(params)
        return Evaluated(distribution.log_prob(actions), distribution.entropy(), value)
