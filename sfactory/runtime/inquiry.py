"""Room: how a run stands, told while it goes on. In: SIGUSR1, or who wants to know. Out: lines for people to read.

``kill -USR1 <pid of sf-main>``: every process with its state, the messages that wait for it, and its slots. Nobody is
asked and no lock is taken: what is shared is looked at, so that it can be told of a run in which everybody is stuck.
"""

from __future__ import annotations

import logging
from typing import Any

from sfactory.runtime.signals import Interrupts
from sfactory.runtime.wiring import Wiring
from sfactory.shared.channel import Channel
from sfactory.shared.diagnosis import who_waits_for_whom

_log = logging.getLogger(__name__)


class Inquiry:
    """Answers when it is asked; ``look`` is called at every beat."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring

    def look(self, interrupts: Interrupts) -> None:
        """Tell who waits for whom if SIGUSR1 has come since the last time."""
        if interrupts.asked:
            interrupts.asked = False
            _log.info("who waits for whom (SIGUSR1):\n%s", self.text())

    def text(self) -> str:
        """A line for each process, main last."""
        wiring = self._wiring
        rings: list[Channel[Any]] = [*wiring.to_learners, *wiring.to_policies, *wiring.to_actors]
        reports: list[Channel[Any]] = [wiring.actors_to_main, *wiring.learners_to_main]
        told = who_waits_for_whom(wiring.status, wiring.table, {ring.reader: ring.waiting for ring in rings})
        return f"{told}\n  sf-main: {sum(ring.waiting for ring in reports)} reports wait for it"
