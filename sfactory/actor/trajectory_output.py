"""Room: an actor's slots and reports. In: splits that need or complete a slot. Out: slots, messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from sfactory.actor.split import Split
from sfactory.messages import MAX_EPISODES_PER_REPORT, EpisodesDone, ToLearner, ToMain, TrajectoryReady
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotState, SlotTable
from sfactory.shared.trajectories import TrajectoryBuffer


class TrajectoryOutput:
    """Hands free slots to splits and complete ones to the learners."""

    def __init__(
        self,
        actor: int,
        trajectories: TrajectoryBuffer,
        table: SlotTable,
        to_learners: Sequence[Channel[ToLearner]],
        to_main: Channel[ToMain],
        max_in_flight: int = 0,
    ) -> None:
        """``max_in_flight``: most slots of the actor that may be FILLING or READY at once; 0 is no limit."""
        self._actor, self._table = actor, table
        self._slots = {index: trajectories.slot(index) for index in table.slots_of(actor)}
        splits = range(trajectories.layout.splits)
        # Slots come back in the order they were sent, so each split looks at its least recently used first.
        # Of an actor that takes over: what is free comes first, since what is READY may be freed only once what is free
        # has been filled, see NOTE [Collection waits].
        self._orders = [deque(sorted(table.slots_of_split(actor, split), key=self._when_due)) for split in splits]
        self._max_in_flight = max_in_flight or len(self._slots)
        self._held_back: deque[int] = deque()  # splits that the limit made wait, the first of them first
        self._to_learners, self._to_main = to_learners, to_main

    def _when_due(self, slot: int) -> tuple[bool, int]:
        return self._table.state(slot) is not SlotState.FREE, self._table.generation(slot)

    def announce_again(self) -> None:
        """By an actor that takes over: the one before may have published more than it announced, see NOTE [Lives]."""
        for index in sorted(self._slots, key=self._table.generation):
            for policy in self._table.waiting_for(index):
                self._to_learners[policy].put(TrajectoryReady(self._actor, index))

    def begin(self, split: Split) -> bool:
        """Give ``split`` a free slot of its own; False if none is, which is how the learner holds collection back."""
        order = self._orders[split.index]
        if self._table.state(order[0]) is not SlotState.FREE or not self._has_its_turn(split.index):
            return False
        index = order[0]
        order.rotate(-1)
        self._table.begin(index)
        split.begin(self._slots[index])
        return True

    def _has_its_turn(self, split: int) -> bool:
        """Whether the limit lets ``split`` begin: those that it made wait come first, in the order they asked."""
        if self._max_in_flight >= len(self._slots):
            return True
        if split not in self._held_back:
            self._held_back.append(split)
        taken = sum(self._table.state(index) is not SlotState.FREE for index in self._slots)
        if taken >= self._max_in_flight or self._held_back[0] != split:
            return False
        self._held_back.popleft()
        return True

    def count_steps(self, split: Split, steps: int) -> None:
        """The split has taken ``steps`` more valid env steps, in the row of its slot that was written last.

        The table counts those of its agents, by policy.
        """
        if not steps:
            return  # perhaps no row was written, see Split.step
        recorder, assignment = split.recorder, split.assignment
        slot = recorder.slot
        if assignment is None or assignment.is_fixed:
            self._table.count_steps(slot.index, recorder.agent_steps, split.may_play[0])
            return
        assert slot.policy_id is not None
        t = recorder.t - 1
        taken = slot.policy_id[t][slot.valid[t]]
        for policy, count in enumerate(np.bincount(taken).tolist()):
            if count:
                self._table.count_steps(slot.index, count, policy)

    def finish(self, split: Split) -> None:
        """Send the completed slot of ``split`` to the learners of its policies, and its finished episodes to main."""
        slot = split.recorder.finish()
        policies = split.players_of(slot)
        self._table.publish(slot.index, *policies)
        for policy in policies:
            self._to_learners[policy].put(TrajectoryReady(self._actor, slot.index))
        self.report(split)

    def report(self, split: Split) -> None:
        """Send what episodes told, and episodes, to main; if main is behind they stay and go with the next report."""
        # Extras first: main, once it knows an episode, knows what the episode told beside its return.
        if not split.group.extras.send(self._actor, self._to_main.try_put):
            return
        while finished := split.tally.finished:
            returns, lengths = split.tally.take(MAX_EPISODES_PER_REPORT, finished[0])
            if not self._to_main.try_put(EpisodesDone(self._actor, returns, lengths, finished[0])):
                split.tally.put_back(returns, lengths, finished[0])
                return
