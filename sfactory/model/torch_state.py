"""Keeps torch's global settings, which environments may change, out of acting and learning."""

from __future__ import annotations

from typing import Any

import torch


class OwnTorchState:
    """A context in which torch has the settings that this package computes with; outside, those of the env's code.

    Covers the default dtype, whether gradients are recorded, and the number of threads (1 where an env runs in the same
    process). Entering and leaving takes about a microsecond, so it stands around the acting of a split, not of an env.
    An instance is not to be nested in itself.
    """

    _OWN = (torch.float32, True, 1)

    def __enter__(self) -> None:
        self._theirs = self._present()
        if self._theirs != self._OWN:
            self._set(self._OWN)

    def __exit__(self, *_: object) -> None:
        if self._theirs != self._OWN:
            self._set(self._theirs)

    @staticmethod
    def _present() -> tuple[Any, bool, int]:
        return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()

    @staticmethod
    def _set(state: tuple[Any, bool, int]) -> None:
        dtype, grad, threads = state
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
