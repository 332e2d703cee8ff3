"""Steps the envs of one split and records the steps in its slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from sfactory.actor.data_validation import DataValidator
from sfactory.actor.env_batch import BaseBatch, BeforeEach, EnvBatch
from sfactory.actor.env_restarts import FaultHandling
from sfactory.actor.episode_stats import EpisodeTracker
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.actor.previous_steps import PreviousSteps
from sfactory.actor.vector_batch import VectorEnvBatch
from sfactory.env.actions import action_reader, block_reader
from sfactory.env.conversion import BlockWriter, ObsWriter, Rows, quiet_context
from sfactory.env.vector import VectorEnv, single_spaces
from sfactory.shared.slots import SlotTable
from sfactory.shared.trajectories import Array, Slot
from sfactory.spec import EnvSpec

_ONLY_POLICY = (0,)


class Split:
    """Envs that are stepped together, and the slot being filled with their steps.

    ``begin`` starts a slot, each ``step`` turns the actions of row ``t`` into row t+1, and ``finish`` gives the
    complete slot away. For the rows that each case leaves see docs/architecture.md and NOTE [Truncation row].

    index: of the split in its actor
    spec: what its agents see and do
    batch: the envs
    episodes: returns and lengths of their episodes
    assignment: which policy acts in which row; None if there is one policy, which always acts in all rows
    t: the row of the slot that awaits actions
    phase: which of the split's two RNN states the next step reads, see NOTE [State phases]
    agent_steps: valid agent steps of the last step
    before_slot: called before each slot begins
    """

    def __init__(
        self,
        index: int,
        batch: BaseBatch,
        spec: EnvSpec,
        writer: ObsWriter,
        read_actions: Callable[[Rows], Any],
        rollout: int,
        faults: FaultHandling,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        first_env = index * (batch.size // spec.num_agents)
        batch.handle_faults(faults, first_env, writer)
        self._validator = DataValidator(spec, writer, batch.size, first_env, faults.bad_data)
        self.index, self.spec, self.batch, self.assignment = index, spec, batch, assignment
        self.episodes = EpisodeTracker(batch.size, assignment)
        batch.extras.assignment = assignment
        self.before_slot: list[Callable[[], None]] = []
        self.phase = self.t = self.agent_steps = 0
        self._writer, self._read_actions, self._rollout = writer, read_actions, rollout
        self._quiet = quiet_context()
        self._previous = PreviousSteps.of(spec, batch.size)
        self._first = list(range(batch.size))  # rows that show the first observation of an episode
        self._slot: Slot | None = None

    @staticmethod
    def of_envs(
        index: int,
        envs: Sequence[gymnasium.Env[Any, Any]] | VectorEnv,
        spec: EnvSpec,
        rollout: int,
        faults: FaultHandling,
        assignment: PolicyAssignment | None = None,
    ) -> Split:
        """A split of single-agent envs, or of one vector env."""
        if isinstance(envs, gymnasium.vector.VectorEnv):
            observations, actions = single_spaces(envs)
            batch: BaseBatch = VectorEnvBatch(envs)
            writer: ObsWriter = BlockWriter(spec, observations)
            read = block_reader(actions, spec.actions)
            return Split(index, batch, spec, writer, read, rollout, faults, assignment)
        batch, writer = EnvBatch(envs), ObsWriter(spec, envs[0].observation_space)
        read = action_reader(envs[0].action_space, spec.actions)
        return Split(index, batch, spec, writer, read, rollout, faults, assignment)

    @property
    def slot(self) -> Slot:
        """The slot being filled; only between ``begin`` and ``finish``."""
        assert self._slot is not None, "the split has no slot"
        return self._slot

    @property
    def needs_slot(self) -> bool:
        """True before the first slot and after each finished one."""
        return self._slot is None

    @property
    def completed(self) -> bool:
        """True when all T rows of the slot are written."""
        return self.t == self._rollout

    @property
    def policies(self) -> tuple[int, ...]:
        """The policies that act in row ``t``."""
        return _ONLY_POLICY if self.assignment is None else self.assignment.present

    @property
    def asked(self) -> tuple[int, ...]:
        """The policies whose workers answer for row ``t``: the worker of a policy also acts for its past versions."""
        assignment = self.assignment
        if assignment is None or assignment.opponents is None:
            return self.policies
        return _ONLY_POLICY if assignment.present else ()

    @property
    def may_play(self) -> Sequence[int]:
        """The policies that may act before the slot is complete."""
        return _ONLY_POLICY if self.assignment is None else self.assignment.may_play

    def reset(self, seeds: list[int], where: str, before_each: BeforeEach | None = None) -> None:
        """First reset of all envs; raises BadObservation if one does not fit its observation space."""
        self.batch.reset(seeds, before_each)
        self.check_observations(f"{where}, first reset of split {self.index}")

    def check_observations(self, where: str) -> None:
        """Raise BadObservation, which says ``where``, if a current observation does not fit its space."""
        self._writer.check_all(self.batch.observations, self.batch.size, where)

    def resume_episodes(self, rows: Sequence[int], returns: Sequence[float], length: int) -> None:
        """Before the first slot: the episodes of ``rows`` have earned ``returns`` in ``length`` steps already."""
        self.episodes.resume(rows, returns, length)
        self._first = [row for row in self._first if row not in rows]

    def begin(self, slot: Slot) -> None:
        """Start ``slot`` with the current observations as its row 0."""
        for call in self.before_slot:
            call()
        self._slot, self.t = slot, 0
        resumed = self.batch.reset_truncated()
        resumed += self._validator.begin(self.batch, row_of(slot, 0))
        if resumed:
            self.episodes.start(resumed)
        if self.assignment is not None:
            if self.assignment.opponents is not None:
                self.assignment.opponents.refresh()
            self.assignment.begin_episodes(resumed)
            self.assignment.begin(slot, self.batch.absent)
        if self._previous is not None:
            self._previous.begin_episodes(resumed)
            self._previous.write(row_of(slot, 0))
        slot.terminated.fill(False)
        slot.truncated.fill(False)
        slot.valid.fill(True)
        slot.is_first.fill(False)
        slot.is_first[0, self._first + resumed] = True

    def step(self) -> int:
        """Step the envs with the actions in row ``t``, record the step and advance ``t``; returns its valid env steps.

        Raises BadActions, EnvFaults, and StopOrdered: then no row was recorded.
        """
        slot, t = self.slot, self.t
        actions = {key: block[t] for key, block in slot.actions.items()}
        self._validator.check_actions(slot, t, actions)
        self.batch.step(self._quiet.run(self._read_actions, actions))
        self.phase ^= 1
        after = row_of(slot, t + 1)
        rewards = self._validator.record(self.batch, slot.reward[t], after)
        if self._previous is not None:
            self._quiet.run(self._previous.record, actions, rewards, self.batch.idle, self.batch.first)
            self._previous.write(after)
        env_steps = self._record(slot, t, rewards)
        self.t = t + 1
        if self.assignment is not None:
            if first := self.batch.first:
                self.assignment.begin_episodes(first)
            if not self.completed:
                self.assignment.write(slot, self.t, self.batch.absent)
        return env_steps

    def count_steps(self, table: SlotTable) -> None:
        """Add the valid agent steps of the last step to the counts of the slot in ``table``, by policy, without those
        of opponents."""
        slot, assignment = self.slot, self.assignment
        if assignment is None or assignment.is_fixed:
            table.count_steps(slot.index, self.agent_steps, self.may_play[0])
            return
        assert slot.policy_id is not None
        t = self.t - 1
        taken = slot.policy_id[t][slot.valid[t]]
        for policy, count in enumerate(np.bincount(taken)[: assignment.policies].tolist()):
            if count:
                table.count_steps(slot.index, count, policy)

    def finish(self) -> tuple[Slot, Sequence[int]]:
        """Give the complete slot away; returns it and the policies that get it."""
        slot, assignment = self.slot, self.assignment
        self._first = self.batch.first  # an episode that starts with obs[T] starts the next slot, too
        self._slot = None
        if assignment is None or assignment.is_fixed:
            return slot, self.may_play
        return slot, [policy for policy in slot.policies() if policy < assignment.policies]

    def _record(self, slot: Slot, t: int, rewards: npt.NDArray[np.float64]) -> int:
        """Write ends and validity of the step just taken into row ``t``; returns its valid env steps."""
        batch = self.batch
        self.episodes.step(rewards)
        if batch.terminated or batch.truncated or batch.resumed or batch.broken:
            self._record_ends(slot, t)
        self.agent_steps = batch.size - len(batch.resumed) - len(batch.lost) - len(batch.broken)
        return self.agent_steps

    def _record_ends(self, slot: Slot, t: int) -> None:
        batch, episodes, first = self.batch, self.episodes, self.batch.first
        batch.extras.keep()
        # Indexing with a list makes an array of it, which takes longer than all else, even if the list is empty.
        terminated = np.array(batch.terminated, np.intp)
        slot.is_first[t + 1, terminated if first == batch.terminated else first] = True
        if batch.resumed:
            slot.valid[t, batch.resumed] = False
            episodes.start(batch.resumed)
        if batch.lost:
            slot.valid[t, batch.lost] = False
        if batch.broken:
            slot.valid[t, batch.broken] = False
            episodes.start(batch.broken)
        if batch.terminated:
            slot.terminated[t, terminated] = True
            episodes.end(terminated)
        if batch.truncated:
            truncated = np.array(batch.truncated, np.intp)
            slot.truncated[t, truncated] = True
            episodes.end(truncated)


def row_of(slot: Slot, t: int) -> dict[str, Array]:
    """Observations of row ``t``: {key: [N, ...]}."""
    return {key: block[t] for key, block in slot.obs.items()}
