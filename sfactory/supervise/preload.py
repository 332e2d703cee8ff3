"""Imports, once in the fork server, the modules that all children share."""

from __future__ import annotations

import atexit
import contextlib
import os
import stat

# Children find these in memory: each process that imports them itself starts later and has a copy of its own.
import sfactory.actor.actor_process
import sfactory.actor.central_actor
import sfactory.actor.local_actor
import sfactory.inference.policy_worker
import sfactory.learner.learner_process  # noqa: F401

SOCKET_DIR_VARIABLE = "SFACTORY_SOCKET_DIR"


def _tidy_up_after_main() -> None:
    """Remove the folder of the server's socket when the server ends, which it does after main, even a killed one."""
    folder = os.environ.pop(SOCKET_DIR_VARIABLE, None)
    if folder is not None:
        atexit.register(_remove_sockets, folder)


def _remove_sockets(folder: str) -> None:
    """Remove a folder that holds sockets alone; with anything else in it, it stays."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                os.unlink(entry.path)
        os.rmdir(folder)


_tidy_up_after_main()
