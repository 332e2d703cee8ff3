"""Imports the user's classes and functions, which flags name as module:name."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable

from sfactory.config.flags import did_you_mean
from sfactory.errors import named


class Unresolved(ValueError):
    """A name leads to nothing that can be called; the text says why and what to do, but not which flag it is for."""


def find_callable(reference: str) -> Callable[..., object]:
    """The class or function that ``reference``, module:name, names; the current directory is importable.

    Raises Unresolved, with what the module raised as its cause, if there is none.
    """
    holder, module, name = _holder(reference)
    found = getattr(holder, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    if found is not None:
        raise Unresolved(f"{name!r} is {described(found)}; it must be a function or class")
    raise _absent(holder, module, name, [each for each in vars(holder) if callable(getattr(holder, each))])


def find_object(reference: str) -> object:
    """The object that ``reference``, module:name, names; otherwise as ``find_callable``."""
    holder, module, name = _holder(reference)
    if not hasattr(holder, name):
        raise _absent(holder, module, name, list(vars(holder)))
    return getattr(holder, name)


def _holder(reference: str) -> tuple[types.ModuleType, str, str]:
    """The module, its name, and the name within it."""
    module, colon, name = reference.partition(":")
    if not (module and colon and name.isidentifier()):
        raise Unresolved("it must be module:name, the module as in an import statement (my_package.my_module:MyClass)")
    import_current_directory()
    try:
        return importlib.import_module(module), module, name
    # The user's module may raise anything while it is imported, and may even call sys.exit.
    except (Exception, SystemExit) as error:
        advice = "correct the module"
        if isinstance(error, ModuleNotFoundError):
            missing = error.name or module
            own = module == missing or module.startswith(f"{missing}.")
            advice = "run the command in the folder that holds it" if own else f"install {missing!r}, which it imports"
        raise Unresolved(
            f"module {module!r} cannot be imported from {os.getcwd()}: {named(error)}; {advice}"
        ) from error


def _absent(holder: types.ModuleType, module: str, name: str, known: list[str]) -> Unresolved:
    advice = did_you_mean(name, known, prefix=f"{module}:") or "; name a function or class that it has"
    return Unresolved(f"module {module!r} ({getattr(holder, '__file__', None) or 'no file'}) has no {name!r}{advice}")


def import_current_directory() -> None:
    """Make the user's own modules importable, ahead of installed ones, as with ``python -m``."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def described(value: object) -> str:
    """The type of ``value``, for an error."""
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
