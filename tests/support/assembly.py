"""Actors that do nothing but fill slots, and a batcher that makes datasets of them."""

from __future__ import annotations

import numpy as np

from sfactory.layout import Layout
from sfactory.learner.batcher import Batcher, Inbox
from sfactory.learner.replay import Replay
from sfactory.learner.staging import Staging
from sfactory.messages import SlotFreed, TrajectoryReady
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from tests.support.parts import VECTOR


def mark(filling: int, slot: int, row: int) -> int:
    """The reward in all steps of a row, in the ``filling``-th filling (from 1) of a slot."""
    return 10_000 * filling + 100 * slot + row


class Assembly:
    """A batcher, its inbox and its staging area, with all that they share with actors. ``sent``: marks of all rows."""

    def __init__(self, layout: Layout, several: bool = False, replay: Replay | None = None) -> None:
        """``several``: another thread reads announcements, for several batchers."""
        self.layout = layout
        objects = SharedObjects(VECTOR, layout, weight_bytes=8)
        self.trajectories, self.table = objects.trajectories, objects.table
        self.ring, self.to_actors = objects.to_learners[0], objects.to_actors
        self.row = objects.status.row("sf-learner-0")
        self.inbox = Inbox(0, objects, self.row, several)
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
