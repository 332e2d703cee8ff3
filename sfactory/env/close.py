"""Room: the end of an env. In: an env that has done its work. Out: nothing, whatever its close() does."""

from __future__ import annotations

import logging
from typing import Protocol

from sfactory.errors import named

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
