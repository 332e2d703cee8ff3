"""Recognizes makers of ``TensorEnv``s, and checks what they have made. Imports torch only where there is one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sfactory.config.env_families import NUM_ENVS
from sfactory.config.import_strings import described

DEVICE = "device"
_MODULE = "sfactory.env.tensor_env"


def says_tensors(factory: Callable[..., object]) -> bool:
    """Whether ``factory`` is a subclass of TensorEnv, or a function with the annotation that it returns one."""
    kind = _tensor_env()
    if not kind:
        return False
    try:
        said = factory if inspect.isclass(factory) else inspect.signature(factory, eval_str=True).return_annotation
    except (TypeError, ValueError, NameError, AttributeError, SyntaxError):  # an annotation may be any text
        return False
    return inspect.isclass(said) and issubclass(said, kind)


def lacks_parameters(parameters: Mapping[str, inspect.Parameter]) -> str:
    """Why a function or class with these parameters cannot make a TensorEnv; "" if it can."""
    missing = [name for name in (NUM_ENVS, DEVICE) if name not in parameters]
    return f"it makes a TensorEnv, so it must take the argument {missing[0]}" if missing else ""


def misfit(made: object, num_envs: object, device: object) -> str:
    """How ``made`` differs from the TensorEnv that was asked for; "" if it does not."""
    import torch

    if not isinstance(made, _tensor_env()):
        return f"it says that it returns a TensorEnv, and returned {described(made)}"
    if made.num_envs != num_envs:
        return f"it was asked for num_envs={num_envs}, and returned {made.num_envs}"
    if torch.device(made.device) != torch.device(str(device)):
        return f"it was asked for device={str(device)!r}, and returned an env on {made.device}"
    return ""


def advice_for(made: object) -> str:
    """What to do where a maker of another interface has made a TensorEnv; "" for anything else."""
    if not isinstance(made, _tensor_env()):
        return ""
    return "; a function that returns a TensorEnv says so: def make(num_envs: int, device: str) -> TensorEnv"


def _tensor_env() -> Any:
    """The class TensorEnv; () where no module has imported it, so that nothing is one."""
    return getattr(sys.modules.get(_MODULE), "TensorEnv", ())
