"""Moves all parameters and buffers of a model into one block of bytes.

The module's tensors become views of the block, so that publishing or adopting weights is one copy.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfactory.system.gpu import HostCopies

_ALIGN = 64


def _stretches(module: nn.Module) -> Iterator[tuple[list[str], Tensor, int, int]]:
    """(names, tensor, first byte, byte after it, aligned) of all tensors: by dtype, then by name, so that each dtype is
    one contiguous stretch. A tensor has several names where layers share it, as tied weights do."""
    start = 0
    tensors: dict[int, tuple[list[str], Tensor]] = {}  # by identity
    for name, tensor in sorted(module.state_dict(keep_vars=True).items()):
        tensors.setdefault(id(tensor), ([], tensor))[0].append(name)
    for names, tensor in sorted(tensors.values(), key=lambda item: (str(item[1].dtype), item[0])):
        end = start + -(-tensor.nbytes // _ALIGN) * _ALIGN
        yield names, tensor, start, end
        start = end


def flat_bytes(module: nn.Module) -> int:
    """Bytes of the module's flat state; works on meta tensors, too."""
    return max((end for *_, end in _stretches(module)), default=_ALIGN)


class FlatState:
    """A module's parameters and buffers as one uint8 tensor, ``block``, on the module's device.

    floats: the floating-point part of the block, views [n] of each dtype. Constants, such as masks, that hold NaN or
    infinity when this is made are not in it.
    """

    def __init__(self, module: nn.Module) -> None:
        device = next(module.parameters()).device
        self.block = torch.zeros(flat_bytes(module), dtype=torch.uint8, device=device)
        self._views: dict[str, tuple[int, Tensor]] = {}  # with the first byte of each
        self._stretches: list[tuple[torch.dtype, int, int]] = []  # of ``floats``: first byte, byte after it
        with torch.no_grad():
            for names, tensor, start, end in list(_stretches(module)):
                view = self.block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                view.copy_(tensor)
                tensor.data = view
                self._views |= dict.fromkeys(names, (start, view))
                if tensor.is_floating_point() and (tensor.requires_grad or tensor.is_meta or view.isfinite().all()):
                    self._add_floats(tensor.dtype, start, end)
        self._host: Tensor | None = None  # of a block on a GPU: pinned memory that it is copied to
        self.floats = self._floats_of(self.block)

    def _add_floats(self, dtype: torch.dtype, start: int, end: int) -> None:
        """Make the last stretch longer, or begin another one."""
        if self._stretches and self._stretches[-1][::2] == (dtype, start):
            start = self._stretches.pop()[1]
        self._stretches.append((dtype, start, end))

    def sum(self) -> Tensor:
        """0-dim float64 on the device - of all numbers of ``floats``, for ``is_finite``."""
        return torch.stack([stretch.sum().double() for stretch in self.floats]).sum()

    def is_finite(self, total: float) -> bool:
        """True if no number of ``floats`` is NaN or infinite. total: the present ``sum``."""
        # A finite sum proves it in one pass; the sum of huge finite weights may overflow and needs a second check.
        return math.isfinite(total) or all(bool(torch.isfinite(stretch).all()) for stretch in self.floats)

    def host_copy(self) -> HostCopies:
        """Begins ``to_host``: the only copy is the block."""
        if self.block.device.type == "cpu":
            return HostCopies(self.block)
        if self._host is None:
            self._host = torch.empty_like(self.block, device="cpu").pin_memory()
        return HostCopies(self.block, to=[self._host])

    def to_host(self) -> npt.NDArray[np.uint8]:
        """[nbytes] uint8 - the block in host memory; a view that the module or the next call overwrites."""
        return self.host_copy().wait()[0].numpy()

    def state_dict(self, host: Tensor) -> dict[str, Tensor]:
        """The module's state_dict with the values of ``host`` [nbytes] uint8, of which its tensors are views."""
        return {
            name: host[start : start + view.nbytes].view(view.dtype).view(view.shape)
            for name, (start, view) in self._views.items()
        }

    def filled(self, names: Container[str], value: float) -> list[Tensor]:
        """Tensors like ``floats``, with ``value`` where the module has the tensors ``names``, and 0 elsewhere."""
        block = torch.zeros_like(self.block)
        for name, tensor in self.state_dict(block).items():
            if name in names:
                tensor.fill_(value)
        return self._floats_of(block)

    def _floats_of(self, block: Tensor) -> list[Tensor]:
        return [block[start:end].view(dtype) for dtype, start, end in self._stretches]

    def adopt(self, host: Tensor) -> None:
        """Overwrite the module's state with ``host`` [nbytes] uint8."""
        self.block.copy_(host, non_blocking=True)
