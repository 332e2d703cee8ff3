"""Room: one split's steps become rows of its slot. In: a group after a step. Out: complete slots."""

from __future__ import annotations

import numpy as np

from sfactory.actor.casting import Casting
from sfactory.actor.data_guard import DataGuard
from sfactory.actor.episodes import EpisodeTally
from sfactory.actor.group import Group
from sfactory.shared.trajectories import Array, Slot


class TrajectoryRecorder:
    """Writes what a split lives through into the slot it is given. ``t`` is the row that awaits actions.

    Row life: see docs/architecture.md and NOTE [Truncation row].
    """

    def __init__(
        self, group: Group, guard: DataGuard, tally: EpisodeTally, rollout: int, casting: Casting | None = None
    ) -> None:
        """``casting``: who plays which row, if that is not the one policy there is, always."""
        self._casting = casting
        self._group, self._guard, self._tally, self._rollout = group, guard, tally, rollout
        self._first = list(range(group.size))  # envs whose current observation is the first of an episode
        self._slot: Slot | None = None
        self.t = 0
        self.agent_steps = 0  # valid ones of the last step, which ``record`` counts by envs

    @property
    def slot(self) -> Slot:
        """The slot being filled; only between ``begin`` and the step that completes it."""
        assert self._slot is not None, "the split has no slot"
        return self._slot

    @property
    def waiting_for_slot(self) -> bool:
        """True before the first slot and after each completed one."""
        return self._slot is None

    def begin(self, slot: Slot) -> None:
        """Start ``slot`` with the current observations as its row 0."""
        # First of all: if a stop comes while an env is made anew, the split has a slot all the same.
        self._slot, self.t = slot, 0
        resumed = self._group.reset_truncated()
        resumed += self._guard.begin(self._group, row_of(slot, 0))
        if resumed:
            self._tally.start(resumed)
        if self._casting is not None:
            self._casting.begin_episodes(resumed)
            self._casting.begin(slot, self._group.absent)
        slot.terminated.fill(False)
        slot.truncated.fill(False)
        slot.valid.fill(True)
        slot.is_first.fill(False)
        slot.is_first[0, self._first + resumed] = True

    def begin_within_episode(self, envs: list[int]) -> None:
        """Before the first slot: the current observation of these envs is not the first of its episode."""
        self._first = [env for env in self._first if env not in envs]

    def record(self) -> int:
        """Write the step the group has just taken; returns its valid env steps.

        Afterwards ``t`` has advanced, and ``completed`` says whether the slot is full.
        """
        group, slot, t = self._group, self.slot, self.t
        self._tally.step(self._guard.record(group, slot.reward[t], row_of(slot, t + 1)))
        if group.terminated or group.truncated or group.resumed or group.broken:
            self._record_ends(slot, t)
        self.t = t + 1
        if self._casting is not None:
            self._cast(self._casting, slot)
        self.agent_steps = group.size - len(group.resumed) - len(group.lost) - len(group.broken)
        return self.agent_steps

    def _cast(self, casting: Casting, slot: Slot) -> None:
        """Say who acts in the row that awaits actions now."""
        first = self._group.first
        if first:
            casting.begin_episodes(first)
        if not self.completed:
            casting.write(slot, self.t, self._group.absent)

    @property
    def completed(self) -> bool:
        """True when all T rows of the slot are written."""
        return self.t == self._rollout

    def finish(self) -> Slot:
        """Give the completed slot away."""
        slot = self.slot
        # An episode that starts with obs[T] starts the next slot, too.
        self._first = self._group.first
        self._slot = None
        return slot

    def _record_ends(self, slot: Slot, t: int) -> None:
        group, tally, first = self._group, self._tally, self._group.first
        # Each indexing with a list would make an array of it, which takes longer than all else. That with an empty one
        # costs as much.
        terminated = np.array(group.terminated, np.intp)
        slot.is_first[t + 1, terminated if first == group.terminated else first] = True
        if group.resumed:
            slot.valid[t, group.resumed] = False
            tally.start(group.resumed)
        if group.lost:
            slot.valid[t, group.lost] = False
        if group.broken:
            slot.valid[t, group.broken] = False
            tally.start(group.broken)
        if group.terminated:
            slot.terminated[t, terminated] = True
            tally.end(terminated)
        if group.truncated:
            truncated = np.array(group.truncated, np.intp)
            slot.truncated[t, truncated] = True
            tally.end(truncated)


def row_of(slot: Slot, t: int) -> dict[str, Array]:
    """Observations of row ``t``: {key: [N, ...]}."""
    return {key: block[t] for key, block in slot.obs.items()}
