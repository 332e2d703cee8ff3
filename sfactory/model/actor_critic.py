"""The actor-critic network: observation normalization, towers, policy head and value head."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead
from sfactory.config.schema import ModelConfig
from sfactory.model.action_mask import ActionMask
from sfactory.model.distributions import ActionDistribution, Actions, first_columns, num_params
from sfactory.model.encoders import MLPEncoder
from sfactory.model.layers import SpectralLinear, initialize
from sfactory.model.normalizer import ObsNormalizer, RunningNormalizer
from sfactory.model.tower import Tower, WholeModel
from sfactory.ranks.ranks import Sum
from sfactory.spec import EnvSpec
from sfactory.system.gpu import HostCopies

_POLICY_GAIN = 0.01  # nearly uniform at the start (Andrychowicz et al. 2021, "What matters in on-policy RL?")
_VALUE_GAIN = 1.0


class ValueHead(nn.Module):
    """One linear layer that predicts returns, normalized if ``normalize_returns`` is set.

    Losses compare the layer's normalized output with normalized targets; ``denormalize`` converts it to the unit of
    rewards, which everything else uses (see RunningNormalizer).
    """

    def __init__(self, in_size: int, config: ModelConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(in_size, 1)
        initialize(self.linear, config.policy_initialization, _VALUE_GAIN)
        self.returns = RunningNormalizer((), clip=None) if config.normalize_returns else None

    def forward(self, features: Tensor) -> Tensor:
        """Values [B] of features [B, H], normalized."""
        return F.linear(features, self.linear.weight, self.linear.bias).squeeze(-1)

    def denormalize(self, values: Tensor) -> Tensor:
        """Outputs of ``forward``, of any shape, converted to the unit of rewards."""
        return values if self.returns is None else self.returns.denormalize(values)

    def normalize(self, values: Tensor) -> Tensor:
        """Values in the unit of rewards, of any shape, as ``forward`` should predict them."""
        return values if self.returns is None else self.returns.forward(values)

    @torch.no_grad()
    def observe(self, returns: Tensor, valid: Tensor, add_up: Sum | None = None) -> None:
        """Add returns [T, B], of all ranks, to the statistics where ``valid``; denormalized values do not change.

        Source: van Hasselt et al. 2016, "Learning values across many orders of magnitude" (Pop-Art), eq. 9.
        """
        if self.returns is None:
            return
        # Before: v = (y - shift) / scale of the layer's output y. After: the same v wants y' = v scale' + shift'.
        scale, shift = self.returns.scale.clone(), self.returns.shift.clone()
        self.returns.update(returns, valid, add_up)
        factor = self.returns.scale / scale
        self.linear.weight.mul_(factor)
        self.linear.bias.sub_(shift).mul_(factor).add_(self.returns.shift)

    @torch.no_grad()
    def denormalizing(self) -> list[Tensor]:
        """Weight and bias of a layer that would give values in the unit of rewards."""
        weight, bias = self.linear.weight.clone(), self.linear.bias.clone()
        return [weight, bias] if self.returns is None else [weight / self.returns.scale, self.denormalize(bias)]

    @torch.no_grad()
    def add_denormalizing(self, weight: Tensor, bias: Tensor) -> None:
        """Change what ``denormalizing`` returns by so much."""
        scale = 1.0 if self.returns is None else self.returns.scale
        self.linear.weight.add_(weight * scale)
        self.linear.bias.add_(bias * scale)


class LastColumnValue(ValueHead):
    """The value of a WholeModel: its last feature, in the unit of returns or, while these are normalized, in theirs."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(1, config)
        nn.init.ones_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """See ValueHead."""
        return super().forward(features[:, -1:])


class FirstColumns(nn.Module):
    """The distribution parameters of a WholeModel: its first features."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def forward(self, features: Tensor) -> Tensor:
        """[B, size] of features [B, H]."""
        return features[:, : self._size]


class Output(NamedTuple):
    """dist_params: [B, P] float32 - see ActionDistribution. value: [B] float32 - V(obs), in the unit of rewards.
    state: [B, S] float32 - after the step."""

    dist_params: Tensor
    value: Tensor
    state: Tensor


class Unrolled(NamedTuple):
    """Of a rollout of T steps. dist_params: [T * B, P]. values: [T or T+1, B] - outputs of ValueHead.
    embeddings, memory: [T or T+1, B, ...] - outputs of the actor's encoder and core, see Stages.
    features: [T or T+1, B, F] - what the value head reads."""

    dist_params: Tensor
    values: Tensor
    embeddings: Tensor
    memory: Tensor
    features: Tensor


class Acted(NamedTuple):
    """actions: {key: [B] int64 or [B, size] float32}. log_prob: [B] float32 - of them. value: [B] float32, in the
    unit of rewards. state: [B, S] float32 - after the step."""

    actions: Actions
    log_prob: Tensor
    value: Tensor
    state: Tensor

    def on_host(self) -> Acted:
        """The same in host memory; waits for the device."""
        if self.value.device.type == "cpu":
            return self
        log_prob, value, state, *actions = HostCopies(*self[1:], *self.actions.values()).wait()
        return Acted(dict(zip(self.actions, actions, strict=True)), log_prob, value, state)


class PolicyHead(nn.Module):
    """Maps features to distribution parameters [B, P]. Standard deviations of Box heads come from the features
    (``adaptive_stddev``) or are parameters, the same in every state."""

    def __init__(self, in_size: int, heads: tuple[ActionHead, ...], config: ModelConfig) -> None:
        super().__init__()
        self._heads = heads
        self._tanh_scale = config.continuous_tanh_scale
        box_size = sum(head.size for head in heads if isinstance(head, BoxHead))
        log_stddev = math.log(config.initial_stddev)
        self.log_stddev: nn.Parameter | None = None
        width = num_params(heads)
        if box_size and not config.adaptive_stddev:
            self.log_stddev = nn.Parameter(torch.full((box_size,), log_stddev))
            width -= box_size
        self.linear = nn.Linear(in_size, width)
        initialize(self.linear, config.policy_initialization, _POLICY_GAIN)
        if self.log_stddev is None:
            for head, column in zip(heads, first_columns(heads).values(), strict=True):
                if isinstance(head, BoxHead):
                    nn.init.constant_(self.linear.bias[column + head.size : column + 2 * head.size], log_stddev)

    def forward(self, features: Tensor) -> Tensor:
        """dist_params [B, P] of features [B, H]."""
        outputs = F.linear(features, self.linear.weight, self.linear.bias)
        if self.log_stddev is None:
            return outputs
        # Squash each Box head's means, if configured, and append its log standard deviations.
        bound = self._tanh_scale
        log_stddev = self.log_stddev.expand(outputs.shape[0], -1)
        pieces, column, box_column = [], 0, 0
        for head in self._heads:
            width = head.n if isinstance(head, DiscreteHead) else head.size
            piece = outputs[:, column : column + width]
            column += width
            if isinstance(head, DiscreteHead):
                pieces.append(piece)
            else:
                pieces.append(bound * torch.tanh(piece / bound) if bound else piece)
                pieces.append(log_stddev[:, box_column : box_column + width])
                box_column += width
        return torch.cat(pieces, dim=1)


class ActorCritic(nn.Module):
    """Policy and value function over one EnvSpec, with one tower for both or one each.

    state_size: S, the memory of one row as one flat vector (the actor's, then the critic's); 0 without memory.
    computes_in: the dtype of encoders and decoders.
    """

    def __init__(self, spec: EnvSpec, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        """``dtype``: of the computation in encoders and decoders, see precision.py; parameters are float32.

        Raises ValueError if ``normalize_input_keys`` names an observation that the spec does not have.
        """
        super().__init__()
        self.spec, self.heads = spec, spec.actions
        self.computes_in = dtype
        keys = config.normalize_input_keys or None
        # Those of the critic alone come last, so that the actor's have the same names without them.
        ordered = sorted(spec.obs, key=lambda leaf: leaf[1].sole_reader == "critic")
        numbers = tuple((path, leaf) for path, leaf in ordered if leaf.is_number)
        self.obs_normalizer = (
            ObsNormalizer(numbers, keys, config.normalize_input_clip) if config.normalize_input else None
        )
        normalized = frozenset(() if self.obs_normalizer is None else self.obs_normalizer.keys)
        self.noise: torch.Generator | None = None  # draws actions in ``act``; None: torch's global one
        self.critic_tower: Tower | None = None
        if config.model:  # it has the methods of a tower, and its features are the outputs of heads
            outputs = num_params(spec.actions)
            self.tower = cast(Tower, WholeModel(spec.obs, outputs, config, normalized, dtype, spec.plain_spaces))
            self.policy_head = cast(PolicyHead, FirstColumns(outputs))
            self.value_head: ValueHead = LastColumnValue(config)
        else:
            self.tower = Tower(spec.read_by("actor"), config, normalized, dtype, spec.plain_spaces)
            if not config.actor_critic_share_weights:
                self.critic_tower = Tower(spec.read_by("critic"), config, normalized, dtype, spec.plain_spaces)
            self.policy_head = PolicyHead(self.tower.out_size, spec.actions, config)
            self.value_head = ValueHead((self.critic_tower or self.tower).out_size, config)
        self.action_mask = ActionMask(spec) if spec.masks else None
        self._state_sizes = [tower.state_size for tower in (self.tower, self.critic_tower) if tower is not None]
        self.state_size = sum(self._state_sizes)
        self._reads_apart = spec.reads_apart
        self._trunk = self.tower, self.policy_head, self.value_head  # a plain attribute, as in Tower
        self._spectral = tuple(module for module in self.modules() if isinstance(module, SpectralLinear))

    def draw_privately(self) -> None:
        """Draw actions by an own generator on the CPU, seeded by torch's global one, which an env may seed again."""
        self.noise = torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))

    def normalizes(self, path: str) -> bool:
        """Whether the observation of that path is normalized."""
        return self.obs_normalizer is not None and path in self.obs_normalizer.keys

    def critic_parameters(self) -> list[nn.Parameter]:
        """Weights of the value function alone: its head and, if nothing is shared, its tower."""
        tower = [] if self.critic_tower is None else list(self.critic_tower.parameters())
        return [*tower, *self.value_head.parameters()]

    def actor_parameters(self) -> list[nn.Parameter]:
        """All other weights."""
        critic = set(self.critic_parameters())
        return [parameter for parameter in self.parameters() if parameter not in critic]

    def hidden_matrices(self) -> list[nn.Parameter]:
        """Matrices and kernels of the towers; no biases, no head, and none of which a step uses only a few rows."""
        towers = [tower for tower in (self.tower, self.critic_tower) if tower is not None]
        encoders = [part for tower in towers for part in tower.modules() if isinstance(part, MLPEncoder)]
        few = {weight for encoder in encoders for weight in encoder.weights_of_choices()}
        return [each for tower in towers for each in tower.parameters() if each.ndim >= 2 and each not in few]

    def fresh_state(self, rows: int) -> Tensor:
        """[rows, S] zeros on the model's device: the state at the start of an episode."""
        device = self.value_head.linear.weight.device
        return torch.zeros(rows, self.state_size, dtype=torch.float32, device=device)

    def forward(self, obs: dict[str, Tensor], state: Tensor | None = None) -> Output:
        """One step for obs {path: [B, *shape] any numeric dtype} and state [B, S] (None: zeros)."""
        # forward() instead of a call, here and below: see MLPEncoder on the cost of calling modules.
        if state is None:
            state = self.fresh_state(len(next(iter(obs.values()))))
        if self.obs_normalizer is not None:
            obs = self.obs_normalizer.forward(obs)
        tower, policy_head, value_head = self._trunk
        if self.critic_tower is None:
            features, state = tower.step(obs, state)
            critic_features = features
        else:
            actor_state, critic_state = state.split(self._state_sizes, dim=1)
            critic_obs = obs
            if self._reads_apart:
                obs, critic_obs = tower.read(obs), self.critic_tower.read(obs)
            features, actor_state = tower.step(obs, actor_state)
            critic_features, critic_state = self.critic_tower.step(critic_obs, critic_state)
            state = torch.cat((actor_state, critic_state), dim=1)
        value = value_head.denormalize(value_head.forward(critic_features))
        params = policy_head.forward(features)
        if self.action_mask is not None:
            params = self.action_mask.forward(params, obs)
        return Output(params, value, state)

    def act(self, obs: dict[str, Tensor], state: Tensor | None = None, deterministic: bool = False) -> Acted:
        """Random or most probable actions for obs and state as in ``forward``. Needs torch.inference_mode()."""
        params, value, state = self.forward(obs, state)
        distribution = self.distribution(params)
        if deterministic:
            actions = distribution.mode()
            return Acted(actions, distribution.log_prob(actions), value, state)
        actions, log_prob = distribution.sample_with_log_prob(self.noise)
        return Acted(actions, log_prob, value, state)

    def unroll(
        self, obs: dict[str, Tensor], states: Tensor, is_first: Tensor, recurrence: int, held: Tensor | None = None
    ) -> Unrolled:
        """Distribution parameters and values of a rollout of T = K x ``recurrence`` steps, with gradients.

        obs: {path: [T, B, ...] or, with the value after the rollout, [T+1, B, ...]}.
        is_first: [T or T+1, B] bool - the state is zeroed before the step.
        states: [K, B, S] float32 - as recorded before each chunk of ``recurrence`` steps; gradients stop there.
        held: [T, B] bool - steps without action, which keep the memory unchanged; None: none.
        """
        steps = states.shape[0] * recurrence
        rows = is_first.shape[1]
        if self.obs_normalizer is not None:
            obs = self.obs_normalizer.forward(obs)
        if self.critic_tower is None:
            stages = self.tower.unroll(obs, states, is_first, recurrence, held)
            critic_features = stages.features
        else:
            actor_states, critic_states = states.split(self._state_sizes, dim=2)
            critic_obs = obs
            if self._reads_apart:
                obs, critic_obs = self.tower.read(obs), self.critic_tower.read(obs)
            stages = self.tower.unroll(obs, actor_states, is_first, recurrence, held)
            critic_features = self.critic_tower.unroll(critic_obs, critic_states, is_first, recurrence, held).features
        # Cut after the head: the gradient of a cut is as large as its input, and parameters are smaller than features.
        params = self.policy_head.forward(stages.features)[: steps * rows]
        if self.action_mask is not None:
            params = self.action_mask.forward(
                params, {path: obs[path][:steps].flatten(0, 1) for path, _ in self.spec.masks}
            )
        values = self.value_head.forward(critic_features).view(-1, rows)
        outputs = (stages.embeddings, stages.memory, critic_features)
        return Unrolled(params, values, *(stage.unflatten(0, (-1, rows)) for stage in outputs))

    def distribution(self, params: Tensor) -> ActionDistribution:
        return ActionDistribution(self.heads, params)

    def follow_update(self, taken: Tensor) -> None:
        """Update the spectral vectors after an update of the weights; see SpectralLinear.follow."""
        for layer in self._spectral:
            layer.follow(taken)

    def observe(self, obs: dict[str, Tensor], valid: Tensor, add_up: Sum | None = None) -> None:
        """Add obs {path: [..., *shape]}, of all ranks, to the statistics of their normalization.

        valid: [...] bool - where.
        """
        if self.obs_normalizer is not None:
            self.obs_normalizer.update(obs, valid, add_up)
