"""Room: one split's steps become rows of its slot. In: a group after a step. Out: complete slots.

Room: steps of envs with many agents become rows of a slot. In: an AgentsGroup after a step. Out: complete slots.

Beside what single envs leave, the rows of agents that take no part are marked, what counts as an env step is, and
returns of whole teams are told. See NOTE [Agent life].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sfactory.actor.data_validation import DataValidator
from sfactory.actor.env_batch import Group
from sfactory.actor.episode_stats import EXTRA_STATS, EpisodeTracker
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.shared.trajectories import Array, Slot


class TrajectoryRecorder:
    """Writes what a split lives through into the slot it is given. ``t`` is the row that awaits actions.

    Row life: see docs/architecture.md and NOTE [Truncation row].
    """

    def __init__(
        self,
        group: Group,
        guard: DataValidator,
        tally: EpisodeTracker,
        rollout: int,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        """``assignment``: who plays which row, if that is not the one policy there is, always."""
        self._assignment = assignment
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
        if self._assignment is not None:
            self._assignment.begin_episodes(resumed)
            self._assignment.begin(slot, self._group.absent)
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
        if self._assignment is not None:
            self._cast(self._assignment, slot)
        self.agent_steps = group.size - len(group.resumed) - len(group.lost) - len(group.broken)
        return self.agent_steps

    def _cast(self, assignment: PolicyAssignment, slot: Slot) -> None:
        """Say who acts in the row that awaits actions now."""
        first = self._group.first
        if first:
            assignment.begin_episodes(first)
        if not self.completed:
            assignment.write(slot, self.t, self._group.absent)

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


TEAM_RETURN = "team_return"
RETURN_OF = "return/"
MOST_NAMED = 32  # with more agents only the team's return is told: there is no room for all of their names


class AgentsRecorder(TrajectoryRecorder):
    """A TrajectoryRecorder of agents. ``record`` returns valid env steps; ``agent_steps`` are its valid rows."""

    def __init__(
        self,
        group: MultiAgentBatch,
        guard: DataValidator,
        tally: EpisodeTracker,
        rollout: int,
        agents: tuple[str, ...],
        assignment: PolicyAssignment | None = None,
    ) -> None:
        super().__init__(group, guard, tally, rollout, assignment)
        self._many, self._names = group, agents
        self._returns = np.zeros(group.size)  # of the envs' running episodes, agent by agent
        self._first_rows = np.arange(0, group.size, group.agents)
        self._some_are_frozen = assignment is not None and bool(assignment.frozen) and not assignment.is_fixed

    def begin(self, slot: Slot) -> None:
        """See TrajectoryRecorder."""
        super().begin(slot)
        if slot.counts_env_step is not None:
            slot.counts_env_step.fill(False)
            slot.counts_env_step[:, :: self._many.agents] = True

    def begin_within(self, env: int, returns: list[float], length: int) -> None:
        """Before the first slot: the agents of ``env`` have earned ``returns`` in ``length`` steps of an episode."""
        rows = range(env * self._many.agents, (env + 1) * self._many.agents)
        self.begin_within_episode(list(rows))
        for row, earned in zip(rows, returns, strict=True):
            self._tally.resume_episode(row, earned, length)
            self._returns[row] = earned

    def record(self) -> int:
        """See TrajectoryRecorder."""
        group, slot, t = self._many, self.slot, self.t
        rewards = self._guard.record(group, slot.reward[t], row_of(slot, t + 1))
        self._tally.step(rewards)
        self._returns += rewards
        env_steps, self.agent_steps = len(self._first_rows), group.size
        ends = group.idle or group.terminated or group.truncated or group.paused or group.resumed or group.broken
        if ends:
            self._record_ends(slot, t)
        if ends or self._some_are_frozen:
            env_steps = self._count(slot, t)
        if slot.counts_for_policy is not None:
            self._count_for_policies(slot, t)
        self.t = t + 1
        if self._assignment is not None:
            self._cast(self._assignment, slot)
        return env_steps

    def _record_ends(self, slot: Slot, t: int) -> None:
        group, tally = self._many, self._tally
        super()._record_ends(slot, t)
        if group.idle:
            slot.valid[t, group.idle] = False
            slot.reward[t, group.idle] = 0.0
        if group.paused:
            slot.truncated[t, group.paused] = True
        if group.ended:
            tally.end(group.ended)
        if group.broken:
            self._returns[group.broken] = 0.0
        for env in group.over:
            self._tell(env)
        if started := group.first:
            tally.start(started)

    def _count(self, slot: Slot, t: int) -> int:
        """Mark what counts as an env step in row ``t``; returns how many envs stepped. Sets ``agent_steps``."""
        valid = slot.valid[t].reshape(len(self._first_rows), -1)
        if slot.counts_env_step is not None:
            counts, learned = slot.counts_env_step[t], self._learned(valid, slot, t)
            counts.fill(False)
            counts[self._first_rows + learned.argmax(axis=1)] = learned.any(axis=1)
        self.agent_steps = int(np.count_nonzero(valid))
        return int(np.count_nonzero(valid.any(axis=1)))

    def _learned(self, valid: Array, slot: Slot, t: int) -> Array:
        """Of the ``valid`` rows [envs, agents] of row ``t``, those of policies that learn."""
        if self._assignment is None or not self._some_are_frozen:
            return valid
        assert slot.policy_id is not None
        return valid & ~np.isin(slot.policy_id[t].reshape(valid.shape), self._assignment.frozen)

    def _count_for_policies(self, slot: Slot, t: int) -> None:
        """Mark, of the valid rows of each env, the first of every policy."""
        assert slot.counts_for_policy is not None
        assert slot.policy_id is not None
        counts, shape = slot.counts_for_policy[t], (len(self._first_rows), self._many.agents)
        if self._assignment is not None and self._assignment.is_fixed:
            counts[:] = slot.counts_env_step[t] if slot.counts_env_step is not None else slot.valid[t]
            return
        valid, ids = slot.valid[t].reshape(shape), slot.policy_id[t].reshape(shape)
        marked = counts.reshape(shape)
        for agent in range(self._many.agents):
            before = (ids[:, :agent] == ids[:, agent : agent + 1]) & valid[:, :agent]
            marked[:, agent] = valid[:, agent] & ~before.any(axis=1)

    def _tell(self, env: int) -> None:
        """The episode of ``env`` is over: what its agents have earned together, and each of them."""
        rows = slice(env * self._many.agents, (env + 1) * self._many.agents)
        stats = {EXTRA_STATS: team_stats(self._names, self._returns[rows].tolist())}
        for row in self._one_of_each_policy(rows):
            self._many.extras.add(stats, row)
        self._returns[rows] = 0.0

    def _one_of_each_policy(self, rows: slice) -> list[int]:
        """Of an env's ``rows``, the first that each policy has played."""
        if self._assignment is None:
            return [rows.start]
        _, first = np.unique(self._assignment.ids[rows], return_index=True)
        return [rows.start + int(place) for place in first]


def team_stats(agents: Sequence[str], returns: Sequence[float]) -> dict[str, float]:
    """What an env's episode came to, by name: the sum over its agents, and each of them unless they are too many."""
    stats = {TEAM_RETURN: float(sum(returns))}
    if len(agents) <= MOST_NAMED:
        stats |= {f"{RETURN_OF}{agent}": float(earned) for agent, earned in zip(agents, returns, strict=True)}
    return stats
