"""Actors that do nothing but fill slots, and a batcher that makes datasets of them."""

from __future__ import annotations

import numpy as np

from sfactory.layout import Layout
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.replay import Replay
from sfactory.learner.staging import Staging
from sfactory.messages import TO_ACTOR, TO_LEARNER, SlotFreed, ToActor, ToLearner, TrajectoryReady
from sfactory.shared.channel import Channel
from sfactory.shared.slots import SlotState, SlotTable
from sfactory.shared.status import StatusBoard
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.parts import VECTOR


def mark(filling: int, slot: int, row: int) -> int:
    """The reward in all steps of a row, in the ``filling``-th filling (from 1) of a slot."""
    return 10_000 * filling + 100 * slot + row


class Assembly:
    """A batcher, its inbox and its staging area, with all that they share with actors. ``sent``: marks of all rows."""

    def __init__(self, layout: Layout, shared: bool = False, replay: Replay | None = None) -> None:
        """``shared``: another thread reads announcements, for several batchers."""
        self.layout = layout
        self.trajectories = TrajectoryBuffer(VECTOR, layout)
        self.table = SlotTable(layout.num_actors, layout.splits, layout.slots_per_split, 1)
        self.ring: Channel[ToLearner] = Channel("learner", TO_LEARNER, layout.num_slots + 20)
        self.to_actors: list[Channel[ToActor]] = [
            Channel(name, TO_ACTOR, 2 * layout.slots_per_actor + 20) for name in layout.actor_names
        ]
        self.row = StatusBoard(["sf-learner-0"]).row("sf-learner-0")
        self.inbox = Inbox(0, self.trajectories, self.table, self.ring, self.to_actors, self.row, shared)
        self.batcher = Batcher(self.inbox, layout.slots_until_trained, replay)
        self.staging = Staging(VECTOR, layout, pin=False, replay=replay is not None)
        self.sent: list[int] = []

    def send(self, *slots: int) -> None:
        """Do what an actor does with a complete slot."""
        for index in slots:
            self.table.begin(index)
            slot, rows = self.trajectories.slot(index), np.arange(self.layout.rows)
            slot.reward[...] = mark(self.table.generation(index), index, 0) + rows
            slot.valid.fill(True)
            self.table.count_steps(index, 5)
            self.table.publish(index, 0)
            self.ring.put(TrajectoryReady(self.table.owner(index), index))
            self.sent += [mark(self.table.generation(index), index, int(row)) for row in rows]

    def advance(self) -> bool:
        """Copy what was announced; whether the dataset is complete."""
        before = -1
        while before < self.staging.filled < self.staging.rows:
            before = self.staging.filled
            self.batcher.advance(self.staging, 0)
        return self.staging.full

    def dataset(self) -> list[int]:
        """The marks of the next dataset's rows."""
        assert self.batcher.fill(self.staging, lambda: False)
        return self.marks()

    def marks(self) -> list[int]:
        """Of the rows that are in the staging area."""
        marks = self.staging.scalars["reward"][:, : self.staging.filled]
        assert (marks == marks[0]).all()
        return [int(number) for number in marks[0].tolist()]

    def states(self) -> list[SlotState]:
        """Of all slots."""
        return [self.table.state(slot) for slot in range(self.layout.num_slots)]

    def free_slots(self) -> list[int]:
        """Slots that an actor may fill."""
        return [slot for slot, state in enumerate(self.states()) if state is SlotState.FREE]

    def freed(self) -> list[int]:
        """Slots that actors got back since the last call."""
        messages = [message for channel in self.to_actors for message in channel.get(0)]
        return [message.slot for message in messages if isinstance(message, SlotFreed)]
