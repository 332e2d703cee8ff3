"""Copies of weights, and comparisons bit by bit."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def copied(module: nn.Module) -> dict[str, Tensor]:
    """The present weights and buffers of ``module``, by name."""
    return copy.deepcopy(module.state_dict())


def changed(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Names of the weights and buffers that differ from those of ``before``."""
    return {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal bit by bit, in type, keys and length; of nested dicts, lists and tensors."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(mine, other, f"{where}[{index}]")
    elif isinstance(ours, Tensor):
        assert ours.dtype == theirs.dtype, where
        assert torch.equal(ours, theirs), where
    else:
        assert ours == theirs, where
