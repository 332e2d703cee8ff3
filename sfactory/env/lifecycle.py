"""Room: the end of an env. In: an env that has done its work. Out: nothing, whatever its close() does.

Room: which GPU an env may use. In: ``--actor_worker_gpus`` and the number of a worker. Out: environment variables.

They must be set before an env loads CUDA or EGL. A process that was forked after torch was imported is in time, too:
CUDA reads them when it is first used, and the fork server never uses it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import MutableMapping, Sequence
from typing import Protocol

from sfactory.errors import EnvError, named

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """An env of any kind."""

    def close(self) -> object:
        """Free what the env holds."""


def close_env(env: Closable, name: str) -> None:
    """Close ``env``, called ``name``. What it raises is only logged: its work is done, and that is not undone."""
    try:
        env.close()
    # Foreign code may raise anything, and may even call sys.exit.
    except (Exception, SystemExit) as error:
        _log.warning("%s: close() raised %s; nothing is lost", name, named(error))


CUDA = "CUDA_VISIBLE_DEVICES"
EGL = ("EGL_DEVICE_ID", "MUJOCO_EGL_DEVICE_ID")


def see_gpu_of(worker: int, gpus: Sequence[int], variables: MutableMapping[str, str] = os.environ) -> None:
    """Let this process see GPU ``gpus[worker % len(gpus)]`` alone, or no GPU if there are none in ``gpus``.

    GPUs are numbered as torch numbers them: within CUDA_VISIBLE_DEVICES, where that is set. Raises EnvError if it
    does not list as many.
    """
    if not gpus:
        # Without this, an env or a stray call could make a CUDA context in every actor, of some 500 MB each.
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
        # EGL numbers devices and knows no UUIDs, which CUDA takes as well.
        variables[variable] = name if name.isdigit() else str(gpu)
