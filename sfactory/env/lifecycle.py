"""Closes envs safely, and sets which GPU an env may use (``--actor_worker_gpus``) and how it draws without a screen.

The environment variables must be set before an env loads CUDA or EGL. Setting them after a fork from a process that
imported torch works too: CUDA reads them at its first use, and the fork server never uses CUDA.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from ctypes.util import find_library
from typing import Any

from sfactory.errors import EnvError, Passing, named

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def warnings_stay_warnings() -> Iterator[None]:
    """Undo filters of code inside, an env's, that turn warnings into errors: they would hold for the whole process."""
    before = list(warnings.filters)
    try:
        yield
    finally:
        stricter = [rule for rule in warnings.filters if rule[0] == "error" and rule not in before]
        if stricter:
            warnings.filters[:] = [rule for rule in warnings.filters if rule not in stricter]  # type: ignore[index]
            _log.warning("the env's code turned warnings into errors for its whole process; this is undone")


def close_env(env: Any, name: str) -> None:
    """Close ``env``; exceptions are only logged, because the env is no longer needed. ``name``: for the log."""
    import gymnasium

    from sfactory.env.vector import close_vector_env

    try:
        if isinstance(env, gymnasium.vector.VectorEnv):
            close_vector_env(env)
        else:
            env.close()
    except Passing:
        raise
    # Foreign code may raise anything, and may even call sys.exit.
    except BaseException as error:
        _log.warning("%s: close() raised %s; nothing is lost", name, named(error))


CUDA = "CUDA_VISIBLE_DEVICES"
EGL = ("EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID")


def see_gpu_of(worker: int, gpus: Sequence[int], variables: MutableMapping[str, str] = os.environ) -> None:
    """Make only GPU ``gpus[worker % len(gpus)]`` visible to this process, or no GPU if ``gpus`` is empty.

    GPUs are numbered as in torch: by their place in CUDA_VISIBLE_DEVICES if that is set. Raises EnvError if a number
    is outside that list.
    """
    if not gpus:
        # Otherwise an env or a stray call could create a CUDA context of about 500 MB in every actor.
        variables[CUDA] = ""
        return
    gpu = gpus[worker % len(gpus)]
    name = str(gpu)
    visible = variables.get(CUDA)
    if visible is not None:
        listed = [entry.strip() for entry in visible.split(",") if entry.strip()]
        if gpu >= len(listed):
            raise EnvError(
                f"--actor_worker_gpus: there is no GPU {gpu} within {CUDA}={visible!r}, which lists {len(listed)}; "
                "name GPUs by their place in that list, from 0"
            )
        name = listed[gpu]
    variables[CUDA] = name
    for variable in EGL:
        # EGL takes only device numbers; CUDA also takes UUIDs.
        variables[variable] = name if name.isdigit() else str(gpu)


MUJOCO_GL = "MUJOCO_GL"
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
_WITHOUT_SCREEN = {"egl": "EGL", "osmesa": "OSMesa"}


def draw_without_screen(variables: MutableMapping[str, str] = os.environ) -> None:
    """Let MuJoCo draw images by EGL or OSMesa where there is no screen, if their libraries are there.

    By itself it tries to open a window then, and fails at the first image. Other envs do not read the variable, and one
    that the user has set stays.
    """
    if not lacks_opengl(variables):
        return
    # Without its library, a MuJoCo before 4 could not even be imported.
    found = next((name for name, library in _WITHOUT_SCREEN.items() if find_library(library)), None)
    if found is not None:
        variables[MUJOCO_GL] = found


def lacks_opengl(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether MuJoCo would draw on a screen, and there is none."""
    return sys.platform == "linux" and not any(variables.get(name) for name in (MUJOCO_GL, *_SCREENS))


def see_gpus_of_main(visible: str | None) -> None:
    """After ``see_gpu_of``, and before CUDA's first use: make visible what main sees, under the same numbers.

    ``visible``: CUDA_VISIBLE_DEVICES of main, None if it is not set.
    """
    os.environ.pop(CUDA, None)
    if visible is not None:
        os.environ[CUDA] = visible
