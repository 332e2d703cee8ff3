"""Draws envs: what render() returns, as pictures of one kind."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.env.lifecycle import draw_without_screen, lacks_opengl
from sfactory.errors import EnvError, named

Frame = npt.NDArray[np.uint8]
EVAL_VIDEO = "--eval_video"


def draw_into_memory() -> None:
    """Before an env is made for its pictures alone: neither MuJoCo nor pygame looks for a display, and complains."""
    draw_without_screen()
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def picture_of(env: Any, name: str, flag: str) -> Frame:
    """What ``env.render()`` returns, as ``rgb_frame`` converts it. ``name``: what errors call the env.

    Raises EnvError, which advises to leave out ``flag``, if there is no picture.
    """
    try:
        image = env.render()
    # Foreign code may raise anything.
    except Exception as error:
        # Gymnasium's checker raises an AssertionError before a base class can raise the other.
        unlisted = isinstance(error, AssertionError) and "rgb_array" not in (env.metadata.get("render_modes") or ())
        if unlisted or isinstance(error, NotImplementedError):
            raise EnvError(
                f'{name}: it has no render() for "rgb_array": add one, render_mode and metadata '
                f"(docs/tutorials/own_env.md), or leave out {flag}"
            ) from error
        fix = "install libEGL (apt install libegl1)" if "mujoco" in sys.modules and lacks_opengl() else "fix that"
        raise EnvError(
            f"{name}: cannot be drawn for a video: render() raised {named(error)}; {fix}, or leave out {flag}"
        ) from error
    try:
        return rgb_frame(image)
    except EnvError as error:
        raise EnvError(f"{name}: {error}, or leave out {flag}") from None


def rgb_frame(image: object) -> Frame:
    """Convert a picture of render(), also a grey or transparent one, to [H, W, 3] uint8; else raises EnvError."""
    if image is None:
        raise EnvError(
            'render() returned None: the env draws nothing with render_mode="rgb_array"; its factory must take '
            "render_mode and pass it on"
        )
    frame = np.asarray(image)
    if frame.ndim == 2:
        frame = frame[:, :, None]
    channels = frame.shape[2] if frame.ndim == 3 else 0
    if frame.dtype != np.uint8 or channels not in (1, 3, 4) or frame.size == 0:
        raise EnvError(
            f"render() returned a {type(image).__name__} of shape {np.shape(frame)} and dtype {frame.dtype}; "
            'render_mode="rgb_array" wants an array [height, width, 3] of uint8'
        )
    return np.repeat(frame, 3, axis=2) if channels == 1 else frame[:, :, :3]
