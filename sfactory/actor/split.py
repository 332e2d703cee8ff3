"""Room: one split of an actor: its envs, its recorder, and the two translators between arrays and env objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from sfactory.actor.data_validation import BadDataCounter, DataValidator
from sfactory.actor.env_batch import BeforeEach, EnvBatch, Group
from sfactory.actor.env_restarts import EnvRestarter, RestartPlan, StopOrdered
from sfactory.actor.episode_stats import EpisodeTracker
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.actor.recorder import AgentsRecorder, TrajectoryRecorder
from sfactory.actor.vector_batch import VectorEnvBatch
from sfactory.env.conversion import BadObservation, BlockWriter, ObsWriter, Rows, Writer, action_reader, block_reader
from sfactory.env.multi_agent import AgentsEnv, AgentsWriter, require_agents
from sfactory.env.vector import VectorEnv, single_spaces
from sfactory.shared.trajectories import Slot
from sfactory.spec import EnvSpec

_THE_ONE = (0,)  # policy there is


@dataclass(frozen=True)
class FaultHandling:
    """How an actor goes on when envs of a split fail. ``make`` makes what the split steps; see Remedy for the rest."""

    restarter: EnvRestarter
    bad_data: BadDataCounter
    make: Callable[[int], Any]

    def restart_plan(self, first: int, size: int, writer: Writer) -> RestartPlan:
        """That of the split whose first env is number ``first`` of the actor; ``size``: of what ``check`` is given."""

        def check(observations: Any) -> None:
            flaws = list(writer.flaws(observations, size).values())
            if flaws:
                raise BadObservation(f"after a reset observation {flaws[0].key!r} {flaws[0].text}")

        return RestartPlan(self.restarter, first, self.make, check)


class Split:
    """A group of envs that is stepped together. ``step`` turns the actions of the current row into the next row.

    before_slot: called before each slot begins.
    """

    def __init__(
        self,
        index: int,
        group: Group,
        writer: Writer,
        guard: DataValidator,
        read_actions: Callable[[Rows], Any],
        rollout: int,
        assignment: PolicyAssignment | None = None,
        agents: tuple[str, ...] = (),
    ) -> None:
        """``assignment``: who plays which row, if that is not the one policy there is, always."""
        self.index = index
        self.assignment = assignment
        self.before_slot: Callable[[], None] | None = None
        self.phase = 0  # which of the split's two states is the one before the next step, see NOTE [State phases]
        self.group = group
        self.tally = EpisodeTracker(group.size, assignment)
        group.extras.assignment = assignment
        self.writer = writer
        if isinstance(group, MultiAgentBatch):
            self.recorder: TrajectoryRecorder = AgentsRecorder(group, guard, self.tally, rollout, agents, assignment)
        else:
            self.recorder = TrajectoryRecorder(group, guard, self.tally, rollout, assignment)
        self._guard, self._read_actions = guard, read_actions

    @staticmethod
    def of_envs(
        index: int,
        envs: Sequence[gymnasium.Env[Any, Any]],
        spec: EnvSpec,
        rollout: int,
        care: FaultHandling | None = None,
        assignment: PolicyAssignment | None = None,
    ) -> Split:
        """A split of envs that are stepped one by one. Without ``care``, any fault of theirs is an error."""
        writer, first = ObsWriter(spec, envs[0].observation_space), index * len(envs)
        restart_plan = None if care is None else care.restart_plan(first, 1, writer)
        guard = DataValidator(spec, writer, len(envs), first, None if care is None else care.bad_data)
        read_actions = action_reader(envs[0].action_space)
        return Split(index, EnvBatch(envs, restart_plan), writer, guard, read_actions, rollout, assignment)

    @staticmethod
    def of_agents(
        index: int,
        envs: Sequence[AgentsEnv],
        spec: EnvSpec,
        rollout: int,
        care: FaultHandling | None = None,
        assignment: PolicyAssignment | None = None,
    ) -> Split:
        """A split of envs with many agents, each of which is a row. Raises EnvError if they differ from ``spec``'s."""
        for env in envs:
            require_agents(env, spec.agents)
        agents, first = spec.num_agents, index * len(envs)
        writer = AgentsWriter(spec, envs[0].observation_space)
        restart_plan = None if care is None else care.restart_plan(first, agents, writer)
        guard = DataValidator(spec, writer, len(envs) * agents, first, None if care is None else care.bad_data)
        reader = action_reader(envs[0].action_space)
        return Split(
            index, MultiAgentBatch(envs, restart_plan), writer, guard, reader, rollout, assignment, spec.agents
        )

    @staticmethod
    def of_vector(
        index: int,
        env: VectorEnv,
        spec: EnvSpec,
        rollout: int,
        care: FaultHandling | None = None,
        assignment: PolicyAssignment | None = None,
    ) -> Split:
        """A split that is one vector env."""
        observations, actions = single_spaces(env)
        writer, size = BlockWriter(spec, observations), env.num_envs
        restart_plan = None if care is None else care.restart_plan(index * size, size, writer)
        guard = DataValidator(spec, writer, size, index * size, None if care is None else care.bad_data)
        return Split(
            index, VectorEnvBatch(env, restart_plan), writer, guard, block_reader(actions), rollout, assignment
        )

    @property
    def policies(self) -> tuple[int, ...]:
        """The policies that act in the row that awaits actions."""
        return _THE_ONE if self.assignment is None else self.assignment.present

    @property
    def may_play(self) -> Sequence[int]:
        """The policies that may act before its slot is complete."""
        return _THE_ONE if self.assignment is None else self.assignment.may_play

    def players_of(self, slot: Slot) -> Sequence[int]:
        """The policies whose learners are to have the complete ``slot``."""
        return self.may_play if self.assignment is None or self.assignment.is_fixed else slot.policies()

    def reset(self, seeds: list[int], where: str, before_each: BeforeEach | None = None) -> None:
        """First reset of all envs; raises BadObservation if one does not keep to its observation space."""
        self.group.reset(seeds, before_each)
        self.writer.check_all(self.group.observations, self.group.size, f"{where}, first reset of split {self.index}")

    def step(self) -> int:
        """Step the envs with the actions in row ``t`` of the slot, and record; returns the valid env steps.

        Those of agents are then ``recorder.agent_steps``. If a stop is ordered while an env is made anew, nothing is
        recorded: the slot will not be completed.
        """
        slot, t = self.recorder.slot, self.recorder.t
        actions = {key: block[t] for key, block in slot.actions.items()}
        self._guard.check_actions(slot, t, actions)
        try:
            self.group.step(self._read_actions(actions))
            self.phase ^= 1
            return self.recorder.record()
        except StopOrdered:
            self.recorder.agent_steps = 0
            return 0

    def begin(self, slot: Slot) -> None:
        """Start filling ``slot``."""
        if self.before_slot is not None:
            self.before_slot()
        # A stop that is ordered meanwhile ends the split before its next step.
        with contextlib.suppress(StopOrdered):
            self.recorder.begin(slot)
