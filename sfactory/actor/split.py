"""Room: one split of an actor: its envs, its recorder, and the two translators between arrays and env objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from sfactory.actor.env_group import EnvGroup
from sfactory.actor.episodes import EpisodeTally
from sfactory.actor.group import BeforeEach, Group
from sfactory.actor.recorder import TrajectoryRecorder
from sfactory.actor.vector_group import VectorGroup
from sfactory.env.adapt import ObsWriter, Rows, Writer, action_reader
from sfactory.env.blocks import BlockWriter, block_reader
from sfactory.env.vector import VectorEnv, single_spaces
from sfactory.shared.trajectories import Slot
from sfactory.spec import EnvSpec


class Split:
    """A group of envs that is stepped together. ``step`` turns the actions of the current row into the next row."""

    def __init__(
        self, index: int, group: Group, writer: Writer, read_actions: Callable[[Rows], Any], rollout: int
    ) -> None:
        self.index = index
        self.phase = 0  # which of the split's two states is the one before the next step, see NOTE [State phases]
        self.group = group
        self.tally = EpisodeTally(group.size)
        self.writer = writer
        self.recorder = TrajectoryRecorder(group, writer, self.tally, rollout)
        self._read_actions = read_actions

    @staticmethod
    def of_envs(index: int, envs: Sequence[gymnasium.Env[Any, Any]], spec: EnvSpec, rollout: int) -> Split:
        """A split of envs that are stepped one by one."""
        writer = ObsWriter(spec, envs[0].observation_space)
        return Split(index, EnvGroup(envs), writer, action_reader(envs[0].action_space), rollout)

    @staticmethod
    def of_vector(index: int, env: VectorEnv, spec: EnvSpec, rollout: int) -> Split:
        """A split that is one vector env."""
        observations, actions = single_spaces(env)
        return Split(index, VectorGroup(env), BlockWriter(spec, observations), block_reader(actions), rollout)

    def reset(self, seeds: list[int], where: str, before_each: BeforeEach | None = None) -> None:
        """First reset of all envs; raises BadObservation if one does not keep to its observation space."""
        self.group.reset(seeds, before_each)
        self.writer.check_all(self.group.observations, self.group.size, f"{where}, first reset of split {self.index}")

    def step(self) -> int:
        """Step the envs with the actions in row ``t`` of the slot, and record; returns the valid env steps."""
        slot, t = self.recorder.slot, self.recorder.t
        self.group.step(self._read_actions({key: block[t] for key, block in slot.actions.items()}))
        self.phase ^= 1
        return self.recorder.record()

    def begin(self, slot: Slot) -> None:
        """Start filling ``slot``."""
        self.recorder.begin(slot)
