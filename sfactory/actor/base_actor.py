"""The base class of actors: it steps splits, counts their steps and sends complete slots."""

from __future__ import annotations

import abc

from sfactory.actor.decorrelation import FirstWait
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.actor.trajectory_output import TrajectoryOutput
from sfactory.shared.status import StatusRow, Stopwatch


class Actor(abc.ABC):
    """Steps the splits of one actor process. Subclasses differ in where actions come from."""

    def __init__(self, setup: ActorSetup, splits: list[Split], row: StatusRow) -> None:
        self._setup, self._splits, self._row = setup, splits, row
        self._output = TrajectoryOutput(
            setup.actor,
            setup.trajectories,
            setup.table,
            setup.to_learners,
            setup.to_main,
            setup.sampling.max_sample_requests_in_flight_per_worker,
        )
        if setup.inbox.incarnation:
            self._output.announce_again()
        self._watch = Stopwatch(row)
        self._first_wait = FirstWait(len(splits), setup.first_wait_s, setup.control, self._watch)

    @abc.abstractmethod
    def turn(self, timeout: float) -> None:
        """Do what can be done, waiting up to ``timeout`` seconds for a message. Ends early if a stop is ordered."""

    def _step(self, split: Split) -> None:
        """Step ``split``, whose actions have arrived; send its slot if that completes it."""
        steps = split.step()
        split.count_steps(self._setup.table)
        self._row.count_env_steps(steps)
        if split.completed:
            self._row.enter_ring()
            self._output.finish(split)
            self._row.leave_ring()
            self._first_wait.completed(split.index)
