"""Stands for CUDA graphs on a CPU: records operations with the tensors they read and write, and computes them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

R = TypeVar("R")

_aten = torch.ops.aten
# A capture refuses to read the device, and to copy from the host without pinned memory, as torch.tensor() does.
_REFUSED = {
    _aten._local_scalar_dense.default,
    _aten.lift_fresh.default,
    _aten.nonzero.default,
    _aten.is_nonzero.default,
}


class _Recording(TorchDispatchMode):
    """Computes operations, and keeps them: function, arguments, and results that have memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _REFUSED:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        of_its_own = [leaf for leaf in results if _memory(leaf) not in given]
        if of_its_own or func._schema.is_mutable:
            self.operations.append((func, args, kwargs, of_its_own))
        return result


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class OperationRecorder:
    """A Recorder whose recordings know tensors, but no Python: numbers, branches and attributes stay as recorded.

    recorded: how many there are. warmed: how many runs were warm-ups. memories: how often others were asked for.
    """

    def __init__(self) -> None:
        self.recorded = self.warmed = self.memories = 0

    def warm_up(self, work: Callable[[], R]) -> R:
        """Run ``work``."""
        self.warmed += 1
        return work()

    def record(self, work: Callable[[], R]) -> Callable[[], R]:
        """A capture computes nothing: what is computed here counts as the first replay, which must come next."""
        with _Recording() as recording:
            result = work()
        self.recorded += 1
        is_first = True

        @torch.no_grad()
        def replay() -> R:
            nonlocal is_first
            if is_first:
                is_first = False
                return result
            for func, args, kwargs, of_its_own in recording.operations:
                again = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
                if of_its_own and len(again) == len(of_its_own):
                    for to, of in zip(of_its_own, again, strict=True):
                        to.detach().copy_(of)
                else:
                    assert not of_its_own, f"{func} gives both views and other tensors"
            return result

        return replay

    def use_other_memory(self) -> None:
        """Count it."""
        self.memories += 1
