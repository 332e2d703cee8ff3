"""Room: an actor's slots and reports. In: splits that need or complete a slot. Out: slots, messages."""

from __future__ import annotations

from sfactory.actor.split import Split
from sfactory.messages import MAX_EPISODES_PER_REPORT, EpisodesDone, ToLearner, ToMain, TrajectoryReady
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotState, SlotTable
from sfactory.shared.trajectories import TrajectoryBuffer

_POLICY = 0  # every row belongs to the one policy there is


class Outbox:
    """Hands free slots to splits and complete ones to the learner."""

    def __init__(
        self,
        actor: int,
        trajectories: TrajectoryBuffer,
        table: SlotTable,
        to_learner: Channel[ToLearner],
        to_main: Channel[ToMain],
    ) -> None:
        self._actor, self._table = actor, table
        self._slots = {index: trajectories.slot(index) for index in table.slots_of(actor)}
        self._order = list(table.slots_of(actor))
        self._to_learner, self._to_main = to_learner, to_main

    def begin(self, split: Split) -> bool:
        """Give ``split`` a free slot; False if none is free, which is how the learner holds collection back."""
        for position, index in enumerate(self._order):
            if self._table.state(index) is SlotState.FREE:
                # Slots come back in the order they were sent, so the least recently used is looked at first.
                self._order.append(self._order.pop(position))
                self._table.begin(index)
                split.begin(self._slots[index])
                return True
        return False

    def finish(self, split: Split) -> None:
        """Send the completed slot of ``split`` to the learner, and its finished episodes to main."""
        slot = split.recorder.finish()
        self._table.publish(slot.index, _POLICY)
        self._to_learner.put(TrajectoryReady(self._actor, slot.index))
        self.report(split)

    def report(self, split: Split) -> None:
        """Send finished episodes to main; if main is behind they stay here and go with the next report."""
        while split.tally.finished_returns:
            returns, lengths = split.tally.take(MAX_EPISODES_PER_REPORT)
            if not self._to_main.try_put(EpisodesDone(self._actor, returns, lengths)):
                split.tally.put_back(returns, lengths)
                return
