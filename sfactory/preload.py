"""Room: what the fork server imports once for all children. In: nothing. Out: modules in memory, shared by all."""

from __future__ import annotations

import atexit
import os
import shutil

import sfactory.actor.life
import sfactory.actor.local
import sfactory.learner.worker
import sfactory.policy.worker  # noqa: F401

SOCKET_DIR_VARIABLE = "SFACTORY_SOCKET_DIR"


def _tidy_up_after_main() -> None:
    """Remove the folder of the server's socket when the server ends, which it does after main, even a killed one."""
    folder = os.environ.pop(SOCKET_DIR_VARIABLE, None)
    if folder is not None:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


_tidy_up_after_main()
