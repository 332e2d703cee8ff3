"""Room: learning beside assembling. In: full staging areas. Out: the same areas, free again.

The thread that assembles and the one that trains exchange staging areas through two queues; an exception in
training is raised again, with its own traceback, in the assembling thread at its next call; or by Learning's
``finish``, if that thread is stuck.
"""

from __future__ import annotations

import queue
import threading
from types import TracebackType

from sfactory.clock import BLOCK_S
from sfactory.learner.learning import Learning
from sfactory.learner.staging import Staging
from sfactory.shared.control import Control
from sfactory.shared.status import Stopwatch

_JOIN_S = 60.0  # the main thread of the learner waits longer for what is being learned


class TrainThread:
    """A context in which ``learning`` works through submitted staging areas, in order."""

    def __init__(self, learning: Learning, areas: list[Staging], watch: Stopwatch, control: Control) -> None:
        self._learning, self._watch, self._control = learning, watch, control
        self._free: queue.Queue[Staging] = queue.Queue()
        self._ready: queue.Queue[Staging] = queue.Queue()
        for area in areas:
            self._free.put(area)
        self._failure: BaseException | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="train", daemon=True)

    def free_staging(self) -> Staging | None:
        """A staging area to fill, blocking until there is one; None once training is over or a stop is ordered."""
        while not self.finished():
            try:
                return self._free.get(timeout=BLOCK_S)
            except queue.Empty:
                continue
        self._raise_failure()
        return None

    def submit(self, staging: Staging) -> None:
        """Have a full area learned from."""
        self._ready.put(staging)

    def finished(self) -> bool:
        """True once no further area will be learned from: training is over, has failed, or has to stop."""
        return self._failure is not None or self._control.stopping or self._learning.over

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._leaving.is_set() and not self._control.stopping and not self._learning.over:
                self._watch.before_wait()
                try:
                    staging = self._ready.get(timeout=BLOCK_S)
                except queue.Empty:
                    continue
                finally:
                    self._watch.after_wait()
                self._learning.learn(staging)
                self._free.put(staging)
        except BaseException as failure:  # raised again in the assembling thread
            self._failure = failure

    def __enter__(self) -> TrainThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._thread.join(_JOIN_S)
        if error is None:
            self._raise_failure()
