"""The GPU as a process sees it: the one that it uses, and why torch finds none."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_FIRST_GPU = Path("/dev/nvidia0")


def use_device(device: str | torch.device) -> None:
    """Make ``device`` the current GPU of this thread, which torch uses where it is given no device; "cpu" does nothing.

    Call it first in every process and every thread that works on a GPU: torch begins each of them with number 0.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)


def why_unused() -> str:
    """Why torch finds no GPU, although this machine has one; "" if it has none, or if the user has hidden it."""
    if not _FIRST_GPU.exists() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # the first is of a torch without CUDA
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""
