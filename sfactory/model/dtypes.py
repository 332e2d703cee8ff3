"""Room: numpy's names of dtypes in torch. In: a name, as TensorSpec has it. Out: a torch dtype."""

from __future__ import annotations

import torch


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that numpy calls ``name``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), f"torch has no dtype {name}"
    return dtype
