"""Room: one split's steps become rows of its slot. In: a group after a step. Out: complete slots."""

from __future__ import annotations

from sfactory.actor.data_guard import DataGuard
from sfactory.actor.episodes import EpisodeTally
from sfactory.actor.group import Group
from sfactory.shared.trajectories import Array, Slot


class TrajectoryRecorder:
    """Writes what a split lives through into the slot it is given. ``t`` is the row that awaits actions.

    Row life: see docs/architecture.md and NOTE [Truncation row].
    """

    def __init__(self, group: Group, guard: DataGuard, tally: EpisodeTally, rollout: int) -> None:
        self._group, self._guard, self._tally, self._rollout = group, guard, tally, rollout
        self._first = list(range(group.size))  # envs whose current observation is the first of an episode
        self._slot: Slot | None = None
        self.t = 0

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
        resumed += self._guard.begin(self._group, _row(slot, 0))
        if resumed:
            self._tally.start(resumed)
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
        self._tally.step(self._guard.record(group, slot.reward[t], _row(slot, t + 1)))
        if group.terminated or group.truncated or group.resumed or group.broken:
            self._record_ends(slot, t)
        self.t = t + 1
        return group.size - len(group.resumed) - len(group.lost) - len(group.broken)

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
        group, tally = self._group, self._tally
        slot.is_first[t + 1, group.first] = True
        # Indexing with an empty list costs as much as with a short one.
        if group.resumed:
            slot.valid[t, group.resumed] = False
            tally.start(group.resumed)
        if group.lost:
            slot.valid[t, group.lost] = False
        if group.broken:
            slot.valid[t, group.broken] = False
            tally.start(group.broken)
        if group.terminated:
            slot.terminated[t, group.terminated] = True
            tally.end(group.terminated)
        if group.truncated:
            slot.truncated[t, group.truncated] = True
            tally.end(group.truncated)


def _row(slot: Slot, t: int) -> dict[str, Array]:
    return {key: block[t] for key, block in slot.obs.items()}
