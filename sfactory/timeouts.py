"""Bounds on how long main waits for a process that may be stuck, all in one place.

Tests set the environment variable SFACTORY_TIMEOUT_SCALE to a factor below 1, so that a run notices a planted fault in
seconds. It is read once, when this module is imported; the processes of a run inherit it. Users leave it alone.
"""

from __future__ import annotations

import math
import os
from dataclasses import astuple, dataclass

VARIABLE = "SFACTORY_TIMEOUT_SCALE"


@dataclass(frozen=True)
class Timeouts:
    """Seconds, as they are where SFACTORY_TIMEOUT_SCALE is not set.

    ring: longest time at a ring, for a wait that takes BLOCK_S or a message that takes microseconds.
    stall: after which a warning says that a process is busy with one step.
    idle_policy: after which a warning says that a policy learns nothing while others are done.
    save_grace: between a stop and the end of the last save; twice the longest update is added.
    save_retry: between a save that failed and the next try.
    """

    ring: float = 10.0
    stall: float = 30.0
    idle_policy: float = 30.0
    save_grace: float = 8.0
    save_retry: float = 5.0

    def scaled(self, factor: float) -> Timeouts:
        """All of them times ``factor``; raises ValueError if it is not a positive number."""
        if not 0 < factor < math.inf:
            raise ValueError(f"{VARIABLE}={factor} must be a positive number")
        return Timeouts(*(factor * seconds for seconds in astuple(self)))


TIMEOUTS = Timeouts().scaled(float(os.environ.get(VARIABLE, "1")))
