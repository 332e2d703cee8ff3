"""Room: one split of an actor: its envs, its recorder, and the two translators between arrays and env objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium.spaces as spaces

from sfactory.actor.env_group import EnvGroup
from sfactory.actor.episodes import EpisodeTally
from sfactory.actor.recorder import TrajectoryRecorder
from sfactory.env.adapt import ObsWriter, action_reader
from sfactory.shared.trajectories import Slot
from sfactory.spec import EnvSpec


class Split:
    """A group of envs that is stepped together. ``step`` turns the actions of the current row into the next row."""

    def __init__(
        self,
        index: int,
        group: EnvGroup,
        spec: EnvSpec,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        rollout: int,
    ) -> None:
        self.index = index
        self.phase = 0  # which of the split's two states is the one before the next step, see NOTE [State phases]
        self.group = group
        self.tally = EpisodeTally(len(group.envs))
        self.writer = ObsWriter(spec, observation_space)
        self.recorder = TrajectoryRecorder(group, self.writer, self.tally, rollout)
        self._read_actions = action_reader(action_space)

    def reset(self, seeds: list[int], where: str, before_each: Callable[[], None] | None = None) -> None:
        """First reset of all envs; raises BadObservation if one does not keep to its observation space."""
        self.group.reset(seeds, before_each)
        for env, obs in enumerate(self.group.observations):
            self.writer.check(obs, f"{where}, env {env} of split {self.index}, first reset")

    def step(self) -> int:
        """Step the envs with the actions in row ``t`` of the slot, and record; returns the valid env steps."""
        slot, t = self.recorder.slot, self.recorder.t
        self.group.step(self._read_actions({key: block[t] for key, block in slot.actions.items()}))
        self.phase ^= 1
        return self.recorder.record()

    def begin(self, slot: Slot) -> None:
        """Start filling ``slot``."""
        self.recorder.begin(slot)
