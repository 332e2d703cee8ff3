"""Keeps torch's global settings, which environments may change, out of acting and learning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def _settings() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        _matmul_precision(),
    )


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for a backend, and has no name; setting one ends that
        return ""


def _set_matmul_precision(precision: str) -> None:
    if precision:
        torch.set_float32_matmul_precision(precision)


# In the order of ``_settings``.
_SETTERS: tuple[Callable[[Any], object], ...] = (
    torch.set_default_dtype,
    torch.set_grad_enabled,
    torch.set_num_threads,
    torch.set_deterministic_debug_mode,
    _set_matmul_precision,
)


def _change(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    for setter, old, new in zip(_SETTERS, found, wanted, strict=True):
        if old != new:
            setter(new)


class OwnTorchState:
    """A context in which torch has the settings that this package computes with; outside, those of the env's code.

    Covers the default dtype, whether gradients are recorded, the number of threads (1 where an env runs in the same
    process), the precision of matrix products and deterministic algorithms; inference mode, autocast and function modes
    (the default device is one) that the env's code has left on are off. Entering and leaving takes 2 to 3 microseconds,
    and 6 to 20 where something differs, so it stands around the acting of a split, not of an env. An instance is not
    to be nested in itself.
    """

    # The last two are the program's own choice, which this module reads before an env is made.
    _own = (torch.float32, True, 1, *_settings()[3:])

    @classmethod
    def set_matmul_precision(cls, precision: str) -> None:
        """Compute products of float32 matrices with ``precision``, as torch names it, inside and outside."""
        cls._own = (*cls._own[:-1], precision)
        torch.set_float32_matmul_precision(precision)

    def __enter__(self) -> None:
        self._undo: contextlib.ExitStack | None = None
        theirs, own = _settings(), self._own
        inference, autocast = torch.is_inference_mode_enabled(), torch._C._is_any_autocast_enabled()
        modes = torch._C._len_torch_function_stack()  # asking for the default device takes longer than all of this
        if theirs == own and not (inference or autocast or modes):
            return
        self._undo = undo = contextlib.ExitStack()
        if inference:
            undo.enter_context(torch.inference_mode(False))
        if autocast:
            for device in ("cpu", "cuda"):
                undo.enter_context(torch.autocast(device, enabled=False))
        for _ in range(modes):  # not only disabled, since torch.device as a context inside is a mode, too
            undo.callback(torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack())
        undo.callback(_change, own, theirs)
        _change(theirs, own)

    def __exit__(self, *_: object) -> None:
        if self._undo is not None:
            self._undo.close()
