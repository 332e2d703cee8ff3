"""The GPU as a process sees it: the one that it uses, waits for it, its memory, and why torch finds none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sfactory.errors import ConfigError, ResourceError

_DEVICES = Path("/dev")
_MIB = 2**20


def use_device(device: str | torch.device) -> None:
    """Make ``device`` the current GPU of this thread, which torch uses where it is given no device; "cpu" does nothing.

    Call it first in every process and every thread that works on a GPU: torch begins each of them with number 0.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)


class HostCopies:
    """Copies of ``tensors`` in host memory, made once the device comes to them; on a CPU the tensors themselves.

    to: pinned memory that they are copied into. Nothing waits before ``wait``.
    """

    def __init__(self, *tensors: Tensor, to: Sequence[Tensor] = ()) -> None:
        device = tensors[0].device
        if to:
            self._copies = [mine.copy_(tensor, non_blocking=True) for mine, tensor in zip(to, tensors, strict=True)]
        else:  # torch pins the memory of such copies itself
            self._copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._made: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._made = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._made.record(torch.cuda.current_stream(device))

    def wait(self) -> list[Tensor]:
        """The copies, once they are made. Until then this thread sleeps: by itself torch would keep its core busy.

        What bounds the wait of a policy worker, and that of a learner after a stop, is main: see NOTE [Hangs]. That for
        other ranks ends by itself: see NOTE [Sums on a GPU].
        """
        if self._made is not None:
            self._made.synchronize()
        return self._copies


def why_unused() -> str:
    """Why torch finds no GPU, although this machine has one; "" if it has none, or if the user has hidden it."""
    # A container may have any one of the machine's GPUs.
    if not any(_DEVICES.glob("nvidia[0-9]*")) or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # the first is of a torch without CUDA
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""


def require_gpu(number: int, given: str, instead: str) -> None:
    """Raise ConfigError if torch finds no GPU of this ``number``. given: the flag that asks for it; instead: advice."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number < count:
        return
    if count:
        raise ConfigError([f"{given}: torch finds {count} CUDA devices here, numbered from 0"])
    why = f" ({why})" if (why := why_unused()) else ""
    raise ConfigError([f"{given}: torch finds no CUDA device here{why}; {instead}"])


def total_memory(device: str) -> int | None:
    """Bytes of a GPU's memory; None if torch does not know the GPU. Takes no CUDA context."""
    try:
        return int(torch.cuda.get_device_properties(device).total_memory)
    except (AssertionError, RuntimeError):  # the first is of a torch without CUDA
        return None


def require_device_memory(need: int, device: torch.device, purpose: str, lower: str) -> None:
    """Raise ResourceError if a GPU has less than ``need`` bytes free for this process; on a CPU do nothing.

    purpose: of the memory. lower: the flags that decide on it.
    """
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    # What torch holds and does not use is not free for others, but here.
    have = free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if need > have:
        raise ResourceError(
            f"{purpose} need {need / _MIB:,.0f} MiB on {device}, and {have / _MIB:,.0f} of its {total / _MIB:,.0f} MiB "
            f"are free; lower {lower}, or end what else runs there (nvidia-smi lists it)"
        )
