"""Imports packages that only some exports need."""

from __future__ import annotations

import importlib
from typing import Any

from sfactory.errors import ConfigError
from sfactory.packages import install_command


def required(module: str, flag: str, extra: str) -> Any:
    """The module, without its types. Raises ConfigError, which blames ``flag`` and names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        problem = f"{flag}: the package {module} cannot be imported ({error}); run: {install_command(extra)}"
        raise ConfigError([problem]) from error
