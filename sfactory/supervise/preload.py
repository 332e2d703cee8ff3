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


def _remove_sockets(folder: str) -> None:
    """Remove a folder that holds sockets alone; with anything else in it, it stays."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                os.unlink(entry.path)
        os.rmdir(folder)


# The server ends after main, even after a killed one, and removes the folder of its socket.
_folder = os.environ.pop(SOCKET_DIR_VARIABLE, None)
if _folder is not None:
    atexit.register(_remove_sockets, _folder)
