"""Deadlines, cadences, waits and time awake, all by the monotonic clock, and how long main waits for stuck processes.

Tests set the environment variable SFACTORY_TIMEOUT_SCALE to a factor below 1, so that a run notices a planted fault in
seconds. It is read once, when this module is imported; the processes of a run inherit it. Users leave it alone.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace

now = time.monotonic

# Longest time any process blocks before it looks at the stop flag again. See NOTE [Who may block].
BLOCK_S = 0.5
PAUSE_S = 4 * BLOCK_S
_MOST_PAUSES = 100

# How long a run takes to end after a signal, at most. Main waits for its processes to save, however long updates take;
# then it closes envs (30 s in serial mode) and writes its last files. What has started the run ends it by force only
# later: first the process that has started ranks, then what has started that one, such as the launcher.
SAVE_MOST_S = 120.0
RANKS_MOST_S = SAVE_MOST_S + 30.0
RUN_MOST_S = RANKS_MOST_S + 10.0

_SCALE = "SFACTORY_TIMEOUT_SCALE"


class Deadline:
    """A moment ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self._at = now() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._at - now())

    @property
    def passed(self) -> bool:
        """True once the moment is over."""
        return now() >= self._at


class Awake:
    """Time in which this process was awake: what passed between two looks counts as PAUSE_S at most.

    All processes of a run may be stopped for a while, by Ctrl-Z or with the whole machine, and then resume. If it has
    worked meanwhile, it was awake: code in C may keep Python's lock, so that no other thread looks.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        # Of the last look: its time, the CPU time then, and of each pause until then when it was over, and its length.
        self._looked: tuple[float, float, tuple[tuple[float, float], ...]] = now(), time.process_time(), ()

    def look(self) -> float:
        """Seconds so far; call it at least every PAUSE_S."""
        moment, worked_s = now(), time.process_time()
        self.seconds += moment - self._looked[0] - self._asleep(moment, worked_s)
        self._looked = moment, worked_s, self._pauses(moment, worked_s)
        return self.seconds

    def since(self, at: float) -> float:
        """Seconds from ``at`` on, without the pauses since then. For any thread; another one may look."""
        moment = now()
        pauses = self._pauses(moment, time.process_time())
        asleep = sum(min(seconds, over_at - at) for over_at, seconds in pauses if over_at > at)
        return max(0.0, moment - at - asleep)

    def _asleep(self, moment: float, worked_s: float) -> float:
        """Seconds of a pause since the last look; 0 without one. worked_s: the CPU time now."""
        looked_at, worked_before_s, _ = self._looked
        seconds = moment - looked_at - PAUSE_S
        return seconds if seconds > worked_s - worked_before_s else 0.0

    def _pauses(self, moment: float, worked_s: float) -> tuple[tuple[float, float], ...]:
        seconds, pauses = self._asleep(moment, worked_s), self._looked[2]
        if not seconds:
            return pauses
        if len(pauses) == _MOST_PAUSES:
            (_, first), (over_at, second), *later = pauses
            pauses = (over_at, first + second), *later
        return *pauses, (moment, seconds)


class Every:
    """A cadence: ``due()`` is True at most once per ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._next = now() + seconds

    @property
    def left(self) -> float:
        """Seconds until the next beat, never below 0."""
        return max(0.0, self._next - now())

    def due(self) -> bool:
        """True if a beat is due; the next one is then ``seconds`` from now."""
        moment = now()
        if moment < self._next:
            return False
        self._next = moment + self.seconds
        return True


def looks(over: Callable[[], bool], most_s: float) -> Iterator[None]:
    """Yields for each look of a wait, which it prolongs by an eighth, or ``most_s``, at most; ends with ``over()``."""
    since = now()
    yield
    while not over():
        time.sleep(min(max((now() - since) / 8, 0.0003), most_s))
        yield


@dataclass(frozen=True)
class Timeouts:
    """Seconds, as they are where SFACTORY_TIMEOUT_SCALE is not set.

    ring: longest time at a ring, for a wait that takes BLOCK_S or a message that takes microseconds.
    stall: after which a warning says that a process is busy with one step.
    idle_policy: after which a warning says that a policy learns nothing while others are done.
    save_grace: between a stop and the end of the last save; twice the longest update is added.
    save_retry: between a save that failed and the next try.
    link: without a message, after which the connection to or of a remote actor is lost.
    tracker: for an experiment tracker to begin its run, and to send what is left at the end.
    """

    ring: float = 10.0
    stall: float = 30.0
    idle_policy: float = 30.0
    save_grace: float = 8.0
    save_retry: float = 5.0
    link: float = 10.0
    tracker: float = 120.0

    def scaled(self, factor: float) -> Timeouts:
        """All but ``save_grace`` and ``tracker`` times ``factor``; raises ValueError if it is not a positive number.

        A learner that is stopped at its start imports its code first, and a tracker may make a database: both take
        seconds on a busy machine.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"{_SCALE}={factor} must be a positive number")
        scaled = Timeouts(*(factor * seconds for seconds in astuple(self)))
        return replace(scaled, save_grace=self.save_grace, tracker=self.tracker)


TIMEOUTS = Timeouts().scaled(float(os.environ.get(_SCALE, "1")))
