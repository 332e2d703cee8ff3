"""Imports the user's classes and functions, which flags name as module:name."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from sfactory.config.flags import did_you_mean
from sfactory.errors import named


class Unresolved(ValueError):
    """A name leads to nothing that can be called; the text says why and what to do, but not which flag it is for."""


def find_callable(reference: str) -> Callable[..., object]:
    """The class or function that ``reference``, module:name, names; the current directory is importable.

    Raises Unresolved, with what the module raised as its cause, if there is none.
    """
    found = find_object(reference)
    if not callable(found):
        raise Unresolved(f"{reference.partition(':')[2]!r} is {described(found)}; it must be a function or class")
    # A module may hold what it has imported, such as os.system.
    if isinstance(found, type | FunctionType | MethodType | BuiltinFunctionType):
        home = str(getattr(found, "__module__", ""))
        if problem := standard_library_problem(home):
            raise Unresolved(f"it is {home}.{found.__qualname__}: {problem}")
    return found


def find_registered(reference: str, group: str) -> Any:
    """As ``find_callable``; a ``reference`` without a colon is a name of the entry-point group ``group``."""
    if ":" in reference:
        return find_callable(reference)
    points = {point.name: point for point in metadata.entry_points(group=group)}
    if reference not in points:
        near = did_you_mean(reference, points) or (f"; there are {', '.join(points)}" if points else "")
        raise Unresolved(f"must be module:Class, or a name of the entry-point group {group!r}{near}")
    try:
        return points[reference].load()
    except (Exception, SystemExit) as error:  # an installed package may raise anything while it is imported
        raise Unresolved(f"its package cannot be imported: {named(error)}") from error


def standard_library_problem(module: str) -> str:
    """Why code of ``module`` is not called: it is part of Python, and no env or hook; "" for other modules."""
    package = module.partition(".")[0]
    if package not in sys.stdlib_module_names:
        return ""
    return (
        f"{package!r} is a module of Python's standard library, which has no envs or hooks; name a module of your own"
    )


def module_of(given: str) -> str:
    """The module that is named by itself or by its file: ``my_envs.grid`` for ``./my_envs/grid.py``."""
    if not given.endswith(".py"):
        return given
    return os.path.normpath(given.removesuffix(".py")).replace(os.sep, ".")


def find_object(reference: str) -> object:
    """The object that ``reference``, module:name, names; otherwise as ``find_callable``."""
    file, colon, name = reference.partition(":")
    if not (file and colon and name.isidentifier()):
        raise Unresolved("it must be module:name, the module as in an import statement (my_package.my_module:MyClass)")
    module = module_of(file)
    if module.startswith("."):
        raise Unresolved(f"{file!r} is no module: name its file by a path within the current directory")
    if problem := standard_library_problem(module):
        raise Unresolved(problem)
    import_current_directory()
    try:
        holder = sys.modules[_MAIN] if module == name_of_program() else importlib.import_module(module)
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
    if not hasattr(holder, name):
        advice = did_you_mean(name, vars(holder), prefix=f"{module}:") or "; name a function or class that it has"
        file = getattr(holder, "__file__", None) or "no file"
        in_block = rf"^if __name__\b.*(\n([ \t].*)?)*?\n[ \t]+(async )?(class|def) {name}\b"
        if re.search(in_block, "".join(linecache.getlines(file)), re.MULTILINE):
            advice = '; move it out of its block: an import does not define what is under if __name__ == "__main__"'
        raise Unresolved(f"module {module!r} ({file}) has no {name!r}{advice}")
    return getattr(holder, name)


_MAIN = "__main__"


def name_of_program() -> str:
    """The module name of the program that runs: ``my_train`` for my_train.py, which the processes of a run import.

    ``__main__`` if it has no file, as in a notebook; "" if its file is not found by an import. It is not imported a
    second time for its name: ``find_object`` looks into the program itself.
    """
    main = sys.modules[_MAIN]
    if (spec := getattr(main, "__spec__", None)) is not None:  # python -m
        return str(spec.name)
    if (file := getattr(main, "__file__", None)) is None:
        return _MAIN
    path = Path(file)
    try:
        found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
        return path.stem if found and found.origin and os.path.samefile(found.origin, path) else ""
    except (OSError, ImportError, ValueError):
        return ""


def objects_of_program(values: Iterable[object]) -> dict[str, object]:
    """By name, what ``values`` of flags name as ``__main__:name``: only this process has it, and others are sent it."""
    texts = [text for value in values for text in (value if isinstance(value, tuple) else (value,))]
    names = [text.partition(":")[2] for text in texts if isinstance(text, str) and text.startswith(f"{_MAIN}:")]
    return {name: find_object(f"{_MAIN}:{name}") for name in names}


def import_current_directory() -> None:
    """Make the user's own modules importable, ahead of installed ones, as with ``python -m``."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # an env has removed it
        return
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def described(value: object) -> str:
    """The type of ``value``, for an error."""
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
