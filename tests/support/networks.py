"""Networks as a user would write them: copies of built-in ones, one with attention, and broken ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _initialize(layer: nn.Module) -> None:
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    nn.init.orthogonal_(layer.weight, 2.0**0.5)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)


class Mlp(nn.Module):
    """The default encoder of numbers."""

    def __init__(self, observation_space: spaces.Box, hidden: tuple[int, ...] = (512, 512)) -> None:
        super().__init__()
        sizes = [observation_space.shape[0], *hidden]
        self.layers = nn.ModuleList()
        for pair in pairwise(sizes):
            self.layers.append(nn.Linear(*pair))
            _initialize(self.layers[-1])
        self.out_size = sizes[-1]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        x = obs["obs"]
        for layer in self.layers:
            x = F.elu(layer(x), inplace=True)
        return x


class NatureCnn(nn.Module):
    """The convolutions of convnet_atari with one hidden layer, over images [C, H, W] of bytes."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()
        shape = observation_space.shape
        sizes = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        convs, channels = [], shape[0]
        for out_channels, kernel, stride in sizes:
            convs.append(nn.Conv2d(channels, out_channels, kernel, stride))
            _initialize(convs[-1])
            channels = out_channels
        self.stack = nn.ModuleList(convs)
        size = self._convolved(torch.zeros(1, *shape)).flatten(1).shape[1]
        self.layers = nn.ModuleList([nn.Linear(size, 512)])
        _initialize(self.layers[0])
        self.out_size = 512

    def _convolved(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            x = x.contiguous(memory_format=torch.channels_last)
        for conv in self.stack:
            x = F.elu(conv(x), inplace=True)
        return x

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return F.elu(self.layers[0](self._convolved(obs["obs"].float()).flatten(1)), inplace=True)


class Attention(nn.Module):
    """One head of attention over the numbers of a vector, each embedded with its place."""

    def __init__(self, observation_space: spaces.Box, size: int = 16) -> None:
        super().__init__()
        count = observation_space.shape[0]
        self.place = nn.Parameter(torch.randn(count, size))
        self.value, self.mix = nn.Linear(1, size), nn.Linear(size, 3 * size)
        self.out_size = size

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        tokens = self.value(obs["obs"].unsqueeze(-1)) + self.place
        query, key, value = self.mix(tokens).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value).mean(1)


class AllKeys(nn.Module):
    """Reads all numbers that it is given."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        super().__init__()
        self.out_size = spaces.flatdim(observation_space)
        self.linear = nn.Linear(self.out_size, self.out_size)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        numbers = [leaf.flatten(1).float() for leaf in obs.values()]
        return torch.tanh(self.linear(torch.cat(numbers, dim=1)))


class Alone(nn.Module):
    """An encoder, or a whole model with a memory, that fails if it gets what is not in its space."""

    def __init__(self, observation_space: spaces.Dict, num_outputs: int = 0) -> None:
        super().__init__()
        self.space, self.state_size, self.out_size = observation_space, 2, 4
        self.outputs, self.encode = num_outputs, AllKeys(observation_space)
        self.linear = nn.Linear(self.encode.out_size, num_outputs + 1 if num_outputs else self.out_size)

    def forward(self, obs: dict[str, Tensor], state: Tensor | None = None) -> Any:
        assert list(obs) == list(self.space)
        x = self.linear(self.encode(obs))
        return x if state is None else (x[:, :-1], x[:, -1], state)

    def unroll(self, obs: dict[str, Tensor], state: Tensor, is_first: Tensor, held: Tensor | None = None) -> Any:
        outputs, values, _ = self.forward({path: leaf.flatten(0, 1) for path, leaf in obs.items()}, state)
        steps = len(is_first)
        return outputs.unflatten(0, (steps, -1)), values.unflatten(0, (steps, -1)), torch.zeros_like(state)


class LeakyCore(nn.Module):
    """A memory that decays: s' = a s + W x."""

    def __init__(self, in_size: int, size: int = 8) -> None:
        super().__init__()
        self.out_size = self.state_size = size
        self.linear = nn.Linear(in_size, size)
        self.decay = nn.Parameter(torch.zeros(size))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = state * torch.sigmoid(self.decay) + self.linear(x)
        return torch.tanh(state), state

    def sequence(self, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs = []
        for t, inputs in enumerate(x):
            state = torch.where(is_first[t].unsqueeze(-1), 0.0, state)
            output, after = self.step(inputs, state)
            state = after if held is None else torch.where(held[t].unsqueeze(-1), state, after)
            outputs.append(output)
        return torch.stack(outputs), state


class AsWide(LeakyCore):
    """As wide as its input."""

    def __init__(self, in_size: int) -> None:
        super().__init__(in_size, in_size)


class Forgetful(LeakyCore):
    """Does not know resets when it sees all steps at once."""

    def sequence(self, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().sequence(x, state, torch.zeros_like(is_first), held)


class LosesState(LeakyCore):
    """Returns the state before the last of several steps."""

    def sequence(self, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, _ = super().sequence(x, state, is_first, held)
        return outputs, super().sequence(x[:-1], state, is_first[:-1], held)[1]


class CutsState(LeakyCore):
    """Returns a state of another size after several steps."""

    def sequence(self, x: Tensor, state: Tensor, is_first: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        outputs, state = super().sequence(x, state, is_first, held)
        return outputs, state[:, 1:]


class Halves(nn.Module):
    """A decoder."""

    def __init__(self, in_size: int) -> None:
        super().__init__()
        self.out_size = in_size // 2
        self.linear = nn.Linear(in_size, self.out_size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Whole(nn.Module):
    """A whole actor-critic, with a memory if ``size`` is not 0."""

    def __init__(self, observation_space: spaces.Box, num_outputs: int, size: int = 0) -> None:
        super().__init__()
        self.state_size = size
        self.body = nn.Linear(observation_space.shape[0], 32)
        self.core = LeakyCore(32, size) if size else None
        features = size or 32
        self.policy, self.value = nn.Linear(features, num_outputs), nn.Linear(features, 1)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(x), self.value(x).squeeze(-1)

    def forward(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.tanh(self.body(obs["obs"]))
        if self.core is not None:
            x, state = self.core.step(x, state)
        return *self._heads(x), state

    def unroll(
        self, obs: dict[str, Tensor], state: Tensor, is_first: Tensor, held: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert self.core is not None
        x, state = self.core.sequence(torch.tanh(self.body(obs["obs"])), state, is_first, held)
        return *self._heads(x), state


class LastSeen(Whole):
    """Remembers the last observation, as the tensor that it was given."""

    def __init__(self, observation_space: spaces.Box, num_outputs: int) -> None:
        super().__init__(observation_space, num_outputs)
        self.state_size = observation_space.shape[0]

    def forward(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs, value, _ = super().forward(obs, state)
        return outputs, value + state.sum(-1), obs["obs"]


class Constants(Mlp):
    """Has constants of all kinds that are the same in every process."""

    drawn: Tensor
    places: Tensor

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.register_buffer("drawn", torch.rand(self.out_size))
        self.register_buffer("places", torch.arange(float(self.out_size)), persistent=False)
        self.scale = torch.full((self.out_size,), 0.1)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return super().forward(obs) * self.drawn + self.places * self.scale


class LateBuffer(Mlp):
    """Makes a constant of its state in its first pass."""

    places: Tensor

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        if not hasattr(self, "places"):
            self.register_buffer("places", torch.arange(float(self.out_size)))
        return super().forward(obs) + self.places


class Masked(Mlp):
    """Mixes its inputs by a causal mask of torch, which holds infinities."""

    mask: Tensor

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(observation_space.shape[0]))

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        mixed = torch.softmax(self.mask, dim=-1) @ obs["obs"].unsqueeze(-1)
        return super().forward({"obs": mixed.squeeze(-1)})


class BriefMlp(Mlp):
    """Gives bfloat16, as the layers of torch do under autocast."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(obs)


class BriefCore(LeakyCore):
    """Gives bfloat16."""

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        output, state = super().step(x, state)
        return output.bfloat16(), state.bfloat16()


class BriefWhole(Whole):
    """Gives bfloat16, its memory included."""

    def __init__(self, observation_space: spaces.Box, num_outputs: int, size: int = 0) -> None:
        super().__init__(observation_space, num_outputs, size)
        self.core = BriefCore(32, size) if size else None

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return super()._heads(x)


class LongWhole(Whole):
    """Gives float64."""

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs, values = super()._heads(x)
        return outputs.double(), values.double()


class NoSize(Whole):
    """Does not know the size of its memory."""

    def __init__(self, observation_space: spaces.Box, num_outputs: int) -> None:
        super().__init__(observation_space, num_outputs)
        self.state_size = None  # type: ignore[assignment]


class KeepsNoState(Whole):
    """Returns no state after several steps."""

    def unroll(self, *given: Any) -> tuple[Tensor, Tensor, Any]:
        return *super().unroll(*given)[:2], None


class WrongSize(Mlp):
    """Says another size than it has."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.out_size = 7


class Noisy(Mlp):
    """Drops features at random."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return F.dropout(super().forward(obs), 0.5, training=True)


class RandomConstants(Mlp):
    """Draws constants that are not in its state."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.frequencies = torch.randn(observation_space.shape[0], self.out_size)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return super().forward(obs) + torch.sin(obs["obs"] @ self.frequencies)


class RandomBuffer(Mlp):
    """Draws constants in a buffer that is not in its state."""

    scales: Tensor

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.register_buffer("scales", torch.rand(self.out_size), persistent=False)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return super().forward(obs) * self.scales


class RandomDecay(LeakyCore):
    """Draws what its memory keeps."""

    def __init__(self, in_size: int) -> None:
        super().__init__(in_size)
        del self.decay
        self.decay = torch.rand(self.state_size)  # type: ignore[assignment]


class OverRows(Mlp):
    """Normalizes over the rows of a batch."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        x = super().forward(obs)
        return x - x.mean(0)


class Detached(Mlp):
    """Passes no gradients."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return super().forward(obs).detach().requires_grad_()


class Ungraded(Mlp):
    """Computes without gradients."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return super().forward(obs)


class Clips(Mlp):
    """Changes what it is given."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        obs["obs"].clamp_(-0.5, 0.5)
        return super().forward(obs)


class Overflows(Mlp):
    """Divides by zero."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return super().forward(obs) / 0.0


class Bare(nn.Module):
    """Does not call the constructor of its class."""

    def __init__(self, observation_space: Any) -> None:
        self.out_size = 3


class Negative(Mlp):
    """Has less than nothing."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.out_size = -1


class Raising(Mlp):
    """Reads an observation that there is not."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["camera"]


class Sizeless(nn.Module):
    """Does not say its size."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__()


class Extractor(Sizeless):
    """Says its size as Stable-Baselines3 asks for it."""

    features_dim = 8


class Lazy(nn.Module):
    """Finds its sizes with its first input."""

    out_size = 8

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(self.out_size)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        linear: Tensor = self.linear(obs["obs"])
        return linear


class ComplexWeight(Mlp):
    """Learns complex numbers."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.phases = nn.Parameter(torch.ones(self.out_size, dtype=torch.complex64))

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return (super().forward(obs) * self.phases).real


class Embeds(nn.Module):
    """Reads kinds, of which there are 10, as real numbers, and counts; its size is a number of numpy."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        super().__init__()
        self.kinds = nn.Embedding(10, 3)
        self.out_size = np.prod(observation_space["kinds"].shape) * 4  # type: ignore[arg-type]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.cat([self.kinds(obs["kinds"].long()).flatten(1), obs["count"].float()], dim=1)


class Frozen(nn.Module):
    """Has layers of a pretrained network."""

    out_size = 8

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).eval()

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layers(obs["obs"])
        return features


def no_module(observation_space: Any) -> str:
    """Returns text."""
    return "encoder"
