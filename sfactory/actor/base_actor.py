"""The base class of actors: it gives free slots to splits, steps splits, and sends complete slots and statistics."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Sequence

from sfactory.actor.decorrelation import FirstWait
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.messages import TrajectoryReady
from sfactory.shared.slots import SlotState
from sfactory.shared.status import StatusRow, Stopwatch
from sfactory.shared.trajectories import Slot


class TrajectoryOutput:
    """Hands out free slots and sends complete ones."""

    def __init__(self, setup: ActorSetup) -> None:
        shared = setup.shared
        self._actor, self._table = setup.actor, shared.table
        self._slots = {index: shared.trajectories.slot(index) for index in self._table.slots_of(self._actor)}
        # Slots come back in the order they were sent, so each split looks at its least recently used first.
        # A replacement starts with slots that are free: those that are READY may be freed only once the free ones
        # have been filled, see NOTE [Collection waits].
        self._queues = [
            deque(sorted(self._table.slots_of_split(self._actor, split), key=self._when_due))
            for split in range(shared.layout.splits)
        ]
        # The most slots that may be FILLING or READY at once.
        limit = setup.config.sampling.max_sample_requests_in_flight_per_worker
        self._max_in_flight = limit or len(self._slots)
        self._held_back: deque[int] = deque()  # splits that the limit made wait, in order
        self._to_learners, self._to_main = shared.to_learners, shared.actors_to_main
        if setup.inbox.incarnation:  # some published slots may not be announced, see NOTE [Incarnations]
            for index in sorted(self._slots, key=self._table.generation):
                self._announce(index, self._table.waiting_for(index))

    def _when_due(self, slot: int) -> tuple[bool, int]:
        return self._table.state(slot) is not SlotState.FREE, self._table.generation(slot)

    def begin(self, split: Split) -> bool:
        """Start a free slot of ``split``; False if it has none, which is how the learner holds collection back."""
        slot = self.take(split.index)
        if slot is not None:
            split.begin(slot)
        return slot is not None

    def take(self, split: int) -> Slot | None:
        """The next slot of that split, FILLING; None if it has no free one."""
        queue = self._queues[split]
        if self._table.state(queue[0]) is not SlotState.FREE or not self._has_its_turn(split):
            return None
        index = queue[0]
        queue.rotate(-1)
        self._table.begin(index)
        return self._slots[index]

    def _has_its_turn(self, split: int) -> bool:
        """Whether the limit lets ``split`` begin: splits that had to wait come first, in the order they asked."""
        if self._max_in_flight >= len(self._slots):
            return True
        if split not in self._held_back:
            self._held_back.append(split)
        taken = sum(self._table.state(index) is not SlotState.FREE for index in self._slots)
        if taken >= self._max_in_flight or self._held_back[0] != split:
            return False
        self._held_back.popleft()
        return True

    def finish(self, split: Split) -> None:
        """Send the completed slot of ``split`` to the learners of its policies, and its finished episodes to main."""
        self.send(*split.finish())
        self.report(split)

    def send(self, slot: Slot, policies: Sequence[int]) -> None:
        """Send a completed slot to the learners of ``policies``."""
        self._table.publish(slot.index, *policies)
        self._announce(slot.index, policies)

    def _announce(self, slot: int, policies: Sequence[int]) -> None:
        for policy in policies:
            self._to_learners[policy].put(TrajectoryReady(self._actor, slot))

    def report(self, split: Split) -> None:
        """Send finished episodes and their extra statistics to main; what does not fit goes with the next report."""
        put = self._to_main.try_put
        # Extras first: once main knows of an episode, it knows the episode's extra statistics, too.
        if split.batch.extras.send(self._actor, put):
            split.episodes.send(self._actor, put)


class Actor(abc.ABC):
    """Steps the splits of one actor process. Subclasses differ in where actions come from."""

    def __init__(self, setup: ActorSetup, splits: list[Split], row: StatusRow) -> None:
        self._splits, self._row = splits, row
        self._inbox, self._table = setup.inbox, setup.shared.table
        self._output = TrajectoryOutput(setup)
        self._watch = Stopwatch(row)
        self._first_wait = FirstWait(len(splits), setup.first_wait_s, setup.shared.control, self._watch)

    @abc.abstractmethod
    def turn(self, timeout: float) -> None:
        """Do what can be done, waiting up to ``timeout`` seconds for a message. Ends early if a stop is ordered."""

    def report(self) -> None:
        """At the end: send main the episodes that finished in slots which are not completed any more."""
        for split in self._splits:
            self._output.report(split)

    def _step(self, split: Split) -> None:
        """Step ``split`` once its actions have arrived; send its slot if that completes it."""
        steps = split.step()
        split.count_steps(self._table)
        self._row.count_env_steps(steps)
        batch = split.batch
        if batch.terminated or batch.truncated or batch.broken:
            self._row.add("finished_episodes", len(batch.terminated) + len(batch.truncated))
            self._row.add("lost_episodes", len(batch.broken) * len(batch.envs) // batch.size)
        if split.completed:
            self._row.enter_ring()
            self._output.finish(split)
            self._row.leave_ring()
            self._first_wait.completed(split.index)
