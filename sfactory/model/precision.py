"""Room: the precision of the network's large products. In: ``--amp``, a device. Out: layers that compute in it.

Encoders and decoders, where nearly all of the arithmetic is, compute in a short format where one is chosen. Their
weights are kept, learned, saved and published in float32, and cast when they are used. What is sensitive stays in
float32: the first layer over plain numbers, memory, heads, distributions, targets and losses. So do checkpoints.

Room: numpy's names of dtypes in torch. In: a name, as TensorSpec has it. Out: a torch dtype.

Room: how soon a module finds its parts. In: a module whose parts stay what they are. Out: the same, faster.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_log = logging.getLogger(__name__)

Amp = Literal["off", "bf16", "fp16", "auto"]

_DTYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_AMPERE = 8  # the first CUDA architecture with bfloat16 units
_CPU_FLAGS = frozenset(("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


@cache
def cpu_has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself. Elsewhere it is emulated, slower than float32."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not _CPU_FLAGS.isdisjoint(flags.split())


def compute_dtype(amp: Amp, device: torch.device) -> torch.dtype:
    """What encoders compute in on ``device``: ``auto`` is bfloat16 where the device has units for it."""
    if amp != "auto":
        return _DTYPES[amp]
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device)[0] >= _AMPERE
    else:
        fast = device.type == "cpu" and cpu_has_bf16()
    return torch.bfloat16 if fast else torch.float32


def wide(dtype: torch.dtype) -> torch.dtype:
    """What is computed around layers that compute in ``dtype``: float32, or float64 where they do."""
    return torch.promote_types(dtype, torch.float32)


def warn_of_emulation(amp: Amp, device: str) -> None:
    """Warn if ``amp`` names a format for which the CPU has no units."""
    if device == "cpu" and (amp == "fp16" or (amp == "bf16" and not cpu_has_bf16())):
        _log.warning("--amp=%s: this processor emulates the format, slower than float32; --amp=auto avoids that", amp)


def allow_tf32(amp: Amp, device: torch.device) -> None:
    """Let matrices that stay float32 on a GPU be multiplied in its 19-bit format, unless ``amp`` is off.

    Convolutions do so by torch's default, whatever ``amp`` is.
    """
    if amp != "off" and device.type == "cuda":
        torch.set_float32_matmul_precision("high")


class Linear(nn.Linear):
    """A linear layer that computes in ``dtype``, whatever it is given and whatever its weights are kept in.

    is_final: ``weight`` is what another such layer multiplies with, and nothing is to be done to it any more.
    """

    def __init__(self, in_size: int, out_size: int, dtype: torch.dtype) -> None:
        super().__init__(in_size, out_size)
        self.compute_dtype = dtype
        self.is_final = False

    def multiplied_with(self) -> Tensor:
        """[out_size, in_size] float32: what inputs are multiplied with, before it is cast."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        """[B, out_size] ``dtype`` of x: [B, in_size]."""
        dtype = self.compute_dtype
        if dtype is torch.float32:  # the rest, though it would do nothing, costs as much as the smallest layers
            return F.linear(x, self.weight, self.bias)
        return F.linear(x.to(dtype), self.weight.to(dtype), self.bias.to(dtype))


class Conv2d(nn.Conv2d):
    """A convolution that computes in ``dtype``, whatever it is given and whatever its weights are kept in."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, padding: int, dtype: torch.dtype
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, padding)
        self.compute_dtype = dtype

    def scaled(self, x: Tensor, factor: float) -> Tensor:
        """[B, C', H', W'] ``dtype``: the convolution of ``factor`` times x: [B, C, H, W]."""
        dtype, weight, bias = self.compute_dtype, self.weight, self.bias
        assert bias is not None
        if dtype is not torch.float32:
            # Cast, then scaled, by learner and twin alike: the other way round, only one of them rounds twice.
            x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        if factor != 1.0:
            weight = weight * factor  # far fewer numbers than the images
        return F.conv2d(x, weight, bias, self.stride, self.padding)

    def forward(self, x: Tensor) -> Tensor:
        """``scaled`` by 1."""
        return self.scaled(x, 1.0)


Model = TypeVar("Model", bound=nn.Module)


class ActingTwin(Generic[Model]):
    """A model as it acts: what its layers would make of their weights at every step is kept, made once.

    ``model`` acts; it shares everything else with the model it was made of.
    """

    def __init__(self, model: Model) -> None:
        self._kept: list[tuple[Tensor, Callable[[], Tensor]]] = []  # what is made, and what makes it, yet to be cast
        self.model = copy.deepcopy(model)
        for mine, theirs in zip(self.model.modules(), model.modules(), strict=True):
            self._adopt(mine, theirs)
        self.refresh()

    def _adopt(self, mine: nn.Module, theirs: nn.Module) -> None:
        for name, parameter in mine.named_parameters(recurse=False):
            source: Tensor = getattr(theirs, name)
            if isinstance(mine, Linear | Conv2d):
                parameter.data = torch.empty_like(source, dtype=mine.compute_dtype)
                made = theirs.multiplied_with if isinstance(theirs, Linear) and name == "weight" else source.detach
                self._kept.append((parameter.data, made))
            else:
                parameter.data = source.data
        for name, buffer in mine.named_buffers(recurse=False):
            buffer.data = getattr(theirs, name).data
        if isinstance(mine, Linear):
            mine.is_final = True

    def refresh(self) -> None:
        """Take over the weights that the other model has by now."""
        with torch.inference_mode():
            for mine, theirs in self._kept:
                mine.copy_(theirs())


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that numpy calls ``name``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), f"torch has no dtype {name}"
    return dtype


def attributes_at_hand(model: nn.Module) -> None:
    """Let ``model`` and all modules in it find their parameters, buffers and modules as Python finds plain attributes.

    Otherwise a function of torch's, written in Python, looks them up in dictionaries of its own, each time they are
    used, which takes a fifth of a small network's pass. The tensors are the same; their ``data`` may be exchanged. But
    whoever calls this replaces none of them by another object afterwards, as moving buffers to another device does.
    """
    for module in model.modules():
        for parts in (module._parameters, module._buffers, module._modules):
            module.__dict__.update(parts)
