"""Runs the actors of this machine, and sends what they collect to their run.

Here this process is in the place of the learner: it takes READY slots and frees them once the run has acknowledged
them, and publishes the weights that come. Actors, slots and supervision are those of a run.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sfactory.config.schema import Config
from sfactory.errors import LearnerFailed
from sfactory.learner.batcher import Inbox
from sfactory.messages import EpisodeEnd
from sfactory.planning.plan import Plan
from sfactory.process.spawn import Spawner
from sfactory.remote.frames import ReportQueue, SlotFormat
from sfactory.remote.link import Link, LinkLost, open_link, same_run
from sfactory.runner.sampler import Parts, Processes
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State
from sfactory.shared.trajectories import Slot

_log = logging.getLogger(__name__)

_TURN_S = 0.005  # between two looks for complete slots


class Result(NamedTuple):
    """What this machine has done for the run: trajectories that were acknowledged, their env steps; and the others."""

    trajectories: int
    env_steps: int
    unacknowledged_trajectories: int


class _Reports:
    """Keeps what actors report until it is sent: as ``runner.sampler.Reports``."""

    reading_since = 0.0

    def __init__(self, shared: SharedObjects) -> None:
        self._ring, self.waiting = shared.actors_to_main, ReportQueue()

    def start(self) -> None:
        """Nothing is read in the background."""

    def poll(self) -> None:
        """Read all that have come."""
        for message in self._ring.get(0):
            if not isinstance(message, EpisodeEnd):
                self.waiting.add(message)

    def stop(self) -> None:
        """What actors say as they end is not sent."""


class Host:
    """The actors of this machine, and the link to their run. ``close`` it."""

    def __init__(
        self, config: Config, plan: Plan, spawner: Spawner, first: Link, join: Callable[[], Link], within_s: float
    ) -> None:
        """first: the link that the settings came from. join: opens one that joins; within_s: bound on its tries."""
        self._shared = shared = SharedObjects(plan.spec, plan.layout, plan.weight_bytes)
        self._first, self._join_once, self._within_s = first.welcome, join, within_s
        self._format = SlotFormat(plan.spec, plan.layout)
        self._row = shared.status.row(plan.layout.learner_names[0])
        self._row.set("state", State.RUNNING)
        self._inbox = Inbox(0, shared, self._row)
        self._reports = _Reports(shared)
        self._sent: deque[Slot] = deque()  # not acknowledged yet
        self._trajectories = self._env_steps = self._lost = self._taken = 0
        seed = self._first["seed"]
        self._workers = Processes(Parts(config, plan, shared, spawner, seed, self._reports))
        self._link: Link | None = None

    def run(self) -> None:
        """Collect until the session of the run is over. Raises the fault that ends it before."""
        while self._link is None or not self._link.ended:
            self._workers.turn()
            try:
                link = self._link = self._link or self._join()
                self._send(link)
                link.receive(self._shared.weights[0], _TURN_S)
                self._row.set("run_env_steps", link.env_steps)
                self._free(link)
            except LinkLost as error:
                if self._link is None:  # all tries to join have failed
                    raise
                self._drop(error)

    @property
    def result(self) -> Result:
        """So far."""
        return Result(self._trajectories, self._env_steps, self._lost + len(self._sent))

    def close(self) -> None:
        """Leave the run, and end the actors."""
        try:
            if self._link is not None:
                self._link.leave()
                self._link.close()
        finally:
            self._workers.close()

    def _join(self) -> Link:
        link = open_link(self._join_once, self._within_s, self._workers.turn)
        if not same_run(self._first, link.welcome):
            link.close()
            raise LearnerFailed("the run was started again with other settings: start remote actors again, too")
        _log.info("joined the run")
        self._taken = 0
        return link

    def _send(self, link: Link) -> None:
        """Send complete slots, as many as may be under way, and reports."""
        while len(self._sent) < link.welcome["window"] and (ready := self._inbox.take(0)) is not None:
            link.send_trajectory(self._format.pack(self._shared.trajectories.arrays(ready.slot.index)))
            self._sent.append(ready.slot)
        self._reports.poll()
        self._reports.waiting.send(link.send_report)

    def _free(self, link: Link) -> None:
        """Free the slots that the run has acknowledged."""
        for _ in range(min(link.taken - self._taken, len(self._sent))):
            slot = self._sent.popleft()
            counts = slot.valid if slot.counts_env_step is None else slot.counts_env_step
            self._trajectories += 1
            self._env_steps += int(counts.sum())
            self._inbox.free(slot)
        self._taken = link.taken

    def _drop(self, error: LinkLost) -> None:
        """The link is lost: so is what was sent and not acknowledged, since it may have arrived or not."""
        link, self._link = self._link, None  # first: a signal may come while it is closed
        assert link is not None
        link.close()
        _log.warning("%s; %d trajectories that were not acknowledged are lost", error, len(self._sent))
        while self._sent:
            self._inbox.free(self._sent.popleft())
            self._lost += 1
