"""Room: how soon a module finds its parts. In: a module whose parts stay what they are. Out: the same, faster."""

from __future__ import annotations

from torch import nn


def attributes_at_hand(model: nn.Module) -> None:
    """Let ``model`` and all modules in it find their parameters, buffers and modules as Python finds plain attributes.

    Otherwise a function of torch's, written in Python, looks them up in dictionaries of its own, each time they are
    used, which takes a fifth of a small network's pass. The tensors are the same; their ``data`` may be exchanged. But
    whoever calls this replaces none of them by another object afterwards, as moving buffers to another device does.
    """
    for module in model.modules():
        for parts in (module._parameters, module._buffers, module._modules):
            module.__dict__.update(parts)
