"""Imports packages that only some commands and flags need."""

from __future__ import annotations

import importlib
from typing import Any

from sfactory.errors import ConfigError
from sfactory.packages import install_command


def required(module: str, purpose: str, extra: str) -> Any:
    """The module, without its types. Raises ConfigError, which says how to install the extra.

    purpose: the flag, or what is done, that needs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        problem = f"{purpose}: the package {module} cannot be imported ({error}); run: {install_command(extra)}"
        raise ConfigError([problem]) from error
