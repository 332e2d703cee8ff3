"""sfactory: fast, dependable reinforcement learning on one machine.

``sfactory.run(flags)`` trains; see ``sfactory/api.py``. It is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfactory.api import RunResult, run
else:

    def __getattr__(name: str) -> object:
        if name in ("RunResult", "run"):
            from sfactory import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"
__all__ = ["RunResult", "__version__", "run"]
