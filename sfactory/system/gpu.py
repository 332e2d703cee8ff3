"""The GPU as a process sees it: the one that it uses, its free memory, and why torch finds none."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from sfactory.errors import ResourceError

_DEVICES = Path("/dev")
_MIB = 2**20


def use_device(device: str | torch.device) -> None:
    """Make ``device`` the current GPU of this thread, which torch uses where it is given no device; "cpu" does nothing.

    Call it first in every process and every thread that works on a GPU: torch begins each of them with number 0.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)


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
