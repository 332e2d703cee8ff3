"""Room: what an actor is given at birth, and the making of its envs. In: shared objects. Out: splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from sfactory.actor.env_group import EnvGroup
from sfactory.actor.split import Split
from sfactory.env.api import EnvFactory
from sfactory.layout import Layout
from sfactory.messages import ToActor, ToLearner, ToMain, ToPolicy
from sfactory.shared.channel import Channel
from sfactory.shared.control import Control
from sfactory.shared.slots import SlotTable
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class ActorSetup:
    """Everything an actor process works with. ``to_policy`` is None with local inference."""

    actor: int
    generation: int  # of this actor's process: a replacement gets seeds of its own
    seed: int
    single_thread_envs: bool
    factory: EnvFactory
    spec: EnvSpec
    layout: Layout
    trajectories: TrajectoryBuffer
    table: SlotTable
    control: Control
    weights: SharedWeights
    inbox: Channel[ToActor]
    to_policy: Channel[ToPolicy] | None
    to_learner: Channel[ToLearner]
    to_main: Channel[ToMain]


def env_seed(seed: int, actor: int, generation: int, env: int) -> int:
    """Seed of one env, from the run's seed and the env's place: a 31-bit int, as env.reset accepts."""
    sequence = np.random.SeedSequence(seed, spawn_key=(actor, generation, env))
    return int(sequence.generate_state(1)[0] >> 1)


def make_splits(setup: ActorSetup) -> list[Split]:
    """Make and first reset all envs of the actor."""
    layout = setup.layout
    splits = []
    for index in range(layout.splits):
        envs: list[gymnasium.Env[Any, Any]] = [setup.factory() for _ in range(layout.rows)]
        spaces = envs[0].observation_space, envs[0].action_space
        split = Split(index, EnvGroup(envs), setup.spec, *spaces, layout.rollout)
        first = index * layout.rows
        seeds = [env_seed(setup.seed, setup.actor, setup.generation, first + row) for row in range(layout.rows)]
        split.reset(seeds, f"actor {setup.actor}")
        splits.append(split)
    return splits
