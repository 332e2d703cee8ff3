"""Imports packages that only some commands and flags need."""

from __future__ import annotations

import importlib
from typing import Any

from sfactory.errors import ConfigError, ResourceError
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


def find_ffmpeg(flag: str = "--save_video=True") -> str:
    """Path of the ffmpeg to use for ``flag``; IMAGEIO_FFMPEG_EXE, if set, names another. Raises ConfigError without the
    package that looks for it, and ResourceError if there is none."""
    package = required("imageio_ffmpeg", flag, "video")
    try:
        return str(package.get_ffmpeg_exe())
    except RuntimeError as error:
        raise ResourceError(
            f"{flag}: imageio-ffmpeg has no ffmpeg for this machine ({error}); install ffmpeg"
        ) from error
