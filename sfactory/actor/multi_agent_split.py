"""Steps multi-agent envs and records their steps.

In addition to a Split, it marks rows of inactive agents and the row that counts as the env step, and reports the return
of the whole team. See NOTE [Agent life].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfactory.actor.env_restarts import FaultHandling
from sfactory.actor.episode_stats import EXTRA_STATS
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.actor.split import Split
from sfactory.actor.turns import OpenTurns
from sfactory.env.actions import action_reader
from sfactory.env.conversion import ObsWriter
from sfactory.env.multi_agent import AgentsEnv, require_agents
from sfactory.shared.trajectories import Slot
from sfactory.spec import EnvSpec

MOST_NAMED = 32  # with more agents only the team's return is reported: there is no room for all names


class MultiAgentSplit(Split):
    """A Split of multi-agent envs. ``step`` returns valid env steps; ``agent_steps`` counts valid rows."""

    def __init__(
        self,
        index: int,
        envs: Sequence[AgentsEnv],
        spec: EnvSpec,
        rollout: int,
        faults: FaultHandling,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        """Raises EnvError if the agents of an env differ from those of ``spec``."""
        for env in envs:
            require_agents(env, spec.agents)
        self.batch: MultiAgentBatch
        batch, writer = MultiAgentBatch(envs), ObsWriter(spec, envs[0].observation_space)
        read_actions = action_reader(envs[0].action_space, spec.actions)
        super().__init__(index, batch, spec, writer, read_actions, rollout, faults, assignment)
        self._turns = OpenTurns(batch.size) if spec.in_turns and spec.num_agents > 1 else None
        self._names = spec.agents
        self._returns = np.zeros(batch.size)  # of the running episodes of the envs, agent by agent
        self._first_rows = np.arange(0, batch.size, spec.num_agents)
        self._some_are_frozen = assignment is not None and bool(assignment.frozen) and not assignment.is_fixed

    def resume_episodes(self, rows: Sequence[int], returns: Sequence[float], length: int) -> None:
        """See Split."""
        super().resume_episodes(rows, returns, length)
        self._returns[list(rows)] = returns

    def begin(self, slot: Slot) -> None:
        """See Split."""
        super().begin(slot)
        self._returns[self.batch.first] = 0.0  # of those reset, which may have been stepped before the first slot
        if self._turns is not None:
            self._turns.begin()
        if slot.counts_env_step is not None:
            slot.counts_env_step.fill(False)
            slot.counts_env_step[:, :: self.batch.agents] = True

    def finish(self) -> tuple[Slot, Sequence[int]]:
        """See Split."""
        if self._turns is not None:
            self._turns.leave_out(self.slot, self.batch.absent)
        return super().finish()

    def _record(self, slot: Slot, t: int, rewards: npt.NDArray[np.float64]) -> int:
        batch = self.batch
        self.episodes.step(rewards)
        self._returns += rewards
        env_steps, self.agent_steps = len(self._first_rows), batch.size
        ends = batch.idle or batch.terminated or batch.truncated or batch.paused or batch.resumed or batch.broken
        if ends or self._turns is not None:
            self._record_ends(slot, t)
        if ends or self._some_are_frozen:
            env_steps = self._count(slot, t)
        if slot.counts_for_policy is not None:
            self._count_for_policies(slot, t)
        return env_steps

    def _record_ends(self, slot: Slot, t: int) -> None:
        batch = self.batch
        super()._record_ends(slot, t)
        if batch.idle:
            slot.valid[t, batch.idle] = False
        if self._turns is not None:
            self._turns.record(slot, t, batch)
        if batch.idle:
            slot.reward[t, batch.idle] = 0.0
        if batch.paused:
            slot.truncated[t, batch.paused] = True
        if batch.ended:
            self.episodes.end(batch.ended)
        if batch.broken:
            self._returns[batch.broken] = 0.0
        for env in batch.over:
            self._report_team(env)
        if started := batch.first:
            self.episodes.start(started)

    def _count(self, slot: Slot, t: int) -> int:
        """Mark what counts as an env step in row ``t``; returns how many envs stepped. Sets ``agent_steps``."""
        valid = slot.valid[t].reshape(len(self._first_rows), -1)
        if slot.counts_env_step is not None:
            counts, learned = slot.counts_env_step[t], valid
            if self._some_are_frozen:
                assert self.assignment is not None
                assert slot.policy_id is not None
                frozen = np.isin(slot.policy_id[t].reshape(valid.shape), self.assignment.frozen)
                learned = valid & ~frozen
            counts.fill(False)
            counts[self._first_rows + learned.argmax(axis=1)] = learned.any(axis=1)
        self.agent_steps = int(np.count_nonzero(valid))
        return int(np.count_nonzero(valid.any(axis=1)))

    def _count_for_policies(self, slot: Slot, t: int) -> None:
        """Mark, of the valid rows of each env, the first of every policy."""
        assert slot.counts_for_policy is not None
        assert slot.policy_id is not None
        counts, shape = slot.counts_for_policy[t], (len(self._first_rows), self.batch.agents)
        if self.assignment is not None and self.assignment.is_fixed:
            counts[:] = slot.counts_env_step[t] if slot.counts_env_step is not None else slot.valid[t]
            return
        valid, ids = slot.valid[t].reshape(shape), slot.policy_id[t].reshape(shape)
        marked = counts.reshape(shape)
        for agent in range(self.batch.agents):
            before = (ids[:, :agent] == ids[:, agent : agent + 1]) & valid[:, :agent]
            marked[:, agent] = valid[:, agent] & ~before.any(axis=1)

    def _report_team(self, env: int) -> None:
        """The episode of ``env`` is over: report its returns once to each policy that has played in it."""
        rows = slice(env * self.batch.agents, (env + 1) * self.batch.agents)
        acted = [row not in self.batch.never_acted for row in range(rows.start, rows.stop)]
        stats = {EXTRA_STATS: team_stats(self._names, self._returns[rows].tolist(), acted)}
        played = rows.start + np.flatnonzero(acted)
        if self.assignment is None:
            reported = played[:1]
        else:
            ids = self.assignment.ids[played]
            reported = played[np.unique(ids, return_index=True)[1]]
            if self.assignment.opponents is not None:
                self.assignment.opponents.record(env, ids, self._returns[played])
        for row in reported.tolist():
            self.batch.extras.add(stats, row)
        self._returns[rows] = 0.0


def team_stats(agents: Sequence[str], returns: Sequence[float], acted: Sequence[bool]) -> dict[str, float]:
    """Returns of an env's episode by name: the sum over its agents, and that of each that has ``acted`` in it, unless
    there are too many."""
    stats = {"team_return": float(sum(returns))}
    if len(agents) <= MOST_NAMED:
        each = zip(agents, returns, acted, strict=True)
        stats |= {f"return/{agent}": float(earned) for agent, earned, took_part in each if took_part}
    return stats
