"""Layers that compute in a short format (``--amp``), and the copy of a model that acts with cached weights.

Encoders and decoders, which do nearly all of the arithmetic, may compute in bfloat16 or float16. Their weights are
kept, learned, saved and published in float32, and cast when they are used. Sensitive parts stay in float32: the first
layer over plain numbers, memory, heads, distributions, targets and losses.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfactory.config.schema import Config, ModelConfig
from sfactory.model.torch_state import OwnTorchState

_log = logging.getLogger(__name__)

Amp = Literal["off", "bf16", "fp16", "auto"]

_DTYPES = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_AMPERE = 8  # the first CUDA architecture with bfloat16 units
_CPU_FLAGS = frozenset(("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


@cache
def cpu_has_bf16() -> bool:
    """Whether the processor is known to multiply bfloat16. Others emulate it, slower than float32."""
    lines: list[str] = []
    with contextlib.suppress(OSError):  # Linux alone tells
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not _CPU_FLAGS.isdisjoint(flags.split())


def compute_dtype(amp: Amp, device: torch.device) -> torch.dtype:
    """The dtype of encoders' computation on ``device``: ``auto`` is bfloat16 if the device has units for it."""
    if amp != "auto":
        return _DTYPES[amp]
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device)[0] >= _AMPERE
    else:
        fast = device.type == "cpu" and cpu_has_bf16()
    return torch.bfloat16 if fast else torch.float32


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype around layers that compute in ``dtype``: float32, or float64 if they use it."""
    return torch.promote_types(dtype, torch.float32)


def warn_of_emulation(config: ModelConfig, device: str) -> None:
    """Warn if ``amp`` names a format for which the CPU has no units, and built-in layers compute in it."""
    amp = config.amp
    if config.model or (config.encoder and not config.decoder_mlp_layers):
        return
    if device == "cpu" and (amp == "fp16" or (amp == "bf16" and not cpu_has_bf16())):
        _log.warning("--amp=%s: this processor emulates the format, slower than float32; --amp=auto avoids that", amp)


def allow_tf32(amp: Amp, device: torch.device) -> None:
    """Let a GPU multiply float32 matrices as TF32, unless ``amp`` is off. Convolutions do so by torch's default."""
    if amp != "off" and device.type == "cuda":
        OwnTorchState.set_matmul_precision("high")


def times_convolutions(config: Config, device: torch.device) -> bool:
    """Whether cuDNN tries its algorithms for each new shape of a convolution (``cudnn.benchmark``).

    Not in serial mode, nor where this process has asked torch for determinism: other algorithms round otherwise, and
    the choice depends on time.
    """
    repeatable = torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
    return device.type == "cuda" and not (config.run.serial_mode or repeatable)


def time_convolutions(config: Config, device: torch.device) -> None:
    """For this process, which works on a few shapes: each new one costs a moment. See ``times_convolutions``."""
    if times_convolutions(config, device):
        torch.backends.cudnn.benchmark = True


class Linear(nn.Linear):
    """A linear layer that computes in ``dtype``, for inputs and weights of any dtype.

    is_final: ``weight`` is another layer's ``multiplied_with()``, and is used unchanged.
    """

    def __init__(self, in_size: int, out_size: int, dtype: torch.dtype) -> None:
        super().__init__(in_size, out_size)
        self.compute_dtype = dtype
        self.is_final = False

    def multiplied_with(self) -> Tensor:
        """[out_size, in_size] float32 - the matrix that multiplies inputs, before the cast."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        """[B, out_size] ``dtype`` of x: [B, in_size]."""
        dtype = self.compute_dtype
        if dtype is torch.float32:  # unnecessary casts cost as much as the smallest layers
            return F.linear(x, self.weight, self.bias)
        return F.linear(x.to(dtype), self.weight.to(dtype), self.bias.to(dtype))


class Conv2d(nn.Conv2d):
    """A convolution that computes in ``dtype``, for inputs and weights of any dtype."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, padding: int, dtype: torch.dtype
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, padding)
        self.compute_dtype = dtype

    def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
        """[B, C', H', W'] ``dtype``: the convolution of ``factor`` times x: [B, C, H, W]."""
        dtype, weight, bias = self.compute_dtype, self.weight, self.bias
        assert bias is not None
        if dtype is not torch.float32:
            # Cast, then scale, in learner and twin alike: the other way round, only one of them would round twice.
            x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        if factor != 1.0:
            weight = weight * factor  # far fewer numbers than the images
        return F.conv2d(x, weight, bias, self.stride, self.padding)


Model = TypeVar("Model", bound=nn.Module)


class ActingTwin(Generic[Model]):
    """A copy of a model for acting, ``model``: its layers' weights are cast (and normalized) once, not at every step.

    It shares all other tensors with the original model.
    """

    def __init__(self, model: Model) -> None:
        self._kept: list[tuple[Tensor, Callable[[], Tensor]]] = []  # cached weight, its float32 source
        self.model = copy.deepcopy(model)
        for mine, theirs in zip(self.model.modules(), model.modules(), strict=True):
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
        self.refresh()

    def refresh(self) -> None:
        """Recompute the cached weights from the original model."""
        with torch.inference_mode():
            for mine, theirs in self._kept:
                mine.copy_(theirs())


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that numpy calls ``name``."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def attributes_at_hand(model: nn.Module) -> None:
    """Make parameters, buffers and submodules of all modules in ``model`` plain Python attributes.

    Otherwise torch's ``__getattr__``, written in Python, looks them up at every use, which takes a fifth of a small
    network's pass. Afterwards the ``data`` of a tensor may be replaced, but not the tensor, as moving to a device does.
    """
    for module in model.modules():
        for parts in (module._parameters, module._buffers, module._modules):
            module.__dict__.update(parts)
