"""Room: what an actor is given at birth, and the making of its envs. In: shared objects. Out: splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium

from sfactory.actor.data_guard import BadDataCount
from sfactory.actor.decorrelation import warm_up
from sfactory.actor.env_group import EnvGroup
from sfactory.actor.mending import Mender
from sfactory.actor.split import FaultCare, Split
from sfactory.env.api import EnvFactory
from sfactory.layout import Layout, actor_name
from sfactory.messages import ToActor, ToLearner, ToMain, ToPolicy
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at
from sfactory.shared.channel import Channel
from sfactory.shared.control import Control
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusRow
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class ActorSetup:
    """Everything an actor process works with. ``to_policy`` is None with local inference.

    generation, attempt: where the session began, and how many processes of this actor there were before. Both are
    part of all seeds, so that neither a resumed session nor a replaced process lives through the same again.
    gpus: those that envs may use, see ``see_gpu_of``. decorrelate_envs: see ``warm_up``. first_wait_s: see FirstWait.
    max_in_flight: see Outbox. max_env_restarts: see Mender. max_bad_env_data: see BadDataCount.
    """

    actor: int
    generation: int
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
    attempt: int
    gpus: tuple[int, ...]
    decorrelate_envs: bool
    first_wait_s: float
    max_in_flight: int
    max_env_restarts: int
    max_bad_env_data: float

    def env_seed(self, env: int) -> int:
        """Seed of the first reset of the actor's env ``env``."""
        place = self.actor, self.generation, self.attempt, env
        return seed_at(self.seed, Branch.ENV, *place, bits=ENV_SEED_BITS)

    def seed_after_fault(self, env: int, count: int) -> int:
        """Seed of env ``env`` when, as the actor's ``count``-th, it is reset because it failed."""
        place = self.actor, self.generation, self.attempt, env, count
        return seed_at(self.seed, Branch.AFTER_FAULT, *place, bits=ENV_SEED_BITS)

    def acting_seed(self, *env: int) -> int:
        """Seed of the actions that the actor itself draws: of its policy, or of env ``env`` while it warms up."""
        place = self.actor, self.generation, self.attempt, *env
        return seed_at(self.seed, Branch.ACTING, *place, bits=ENV_SEED_BITS)

    def libraries_seed(self) -> int:
        """Seed of whatever the actor's envs draw from their libraries' own generators, see ``seed_libraries``."""
        return seed_at(self.seed, Branch.LIBRARIES, self.actor, self.generation, self.attempt)


def make_splits(setup: ActorSetup, row: StatusRow) -> list[Split]:
    """Make all envs of the actor, then reset each for the first time; ``row`` tells since when it is at one of them."""
    layout = setup.layout
    actor = actor_name(setup.actor)
    mender = Mender(actor, setup.max_env_restarts, setup.seed_after_fault, setup.control, row)
    bad_data = BadDataCount(actor, setup.max_bad_env_data, row)
    make = _vector_split if setup.factory.makes_vectors else _split_of_envs
    splits = [make(setup, index, row, mender, bad_data) for index in range(layout.splits)]
    row.set("state", State.RESETTING)
    for split in splits:
        first = split.index * layout.rows
        seeds = [setup.env_seed(first + env) for env in range(layout.rows)]
        split.reset(seeds, f"actor {setup.actor}", before_each=row.begin_work)
    if setup.decorrelate_envs:
        _decorrelate(setup, splits, row)
    return splits


def close_envs(splits: list[Split]) -> None:
    """Close every env of the actor; one whose close() raises is told of and keeps no other from being closed."""
    for split in splits:
        split.group.close(f"split {split.index}")


def _split_of_envs(setup: ActorSetup, index: int, row: StatusRow, mender: Mender, bad_data: BadDataCount) -> Split:
    envs: list[gymnasium.Env[Any, Any]] = []
    for _ in range(setup.layout.rows):
        row.begin_work()
        envs.append(setup.factory())
    care = FaultCare(mender, bad_data, lambda seed: setup.factory())
    return Split.of_envs(index, envs, setup.spec, setup.layout.rollout, care)


def _vector_split(setup: ActorSetup, index: int, row: StatusRow, mender: Mender, bad_data: BadDataCount) -> Split:
    row.begin_work()
    rows = setup.layout.rows
    env = setup.factory.vector(rows, setup.env_seed(index * rows))
    care = FaultCare(mender, bad_data, lambda seed: setup.factory.vector(rows, seed))
    return Split.of_vector(index, env, setup.spec, setup.layout.rollout, care)


def _decorrelate(setup: ActorSetup, splits: list[Split], row: StatusRow) -> None:
    """Put the envs at different moments of their episodes; those of a vector env cannot be stepped one by one."""
    layout = setup.layout
    for env in range(layout.splits * layout.rows):
        split, place = splits[env // layout.rows], env % layout.rows
        if isinstance(split.group, EnvGroup):
            warm_up(split, place, env * layout.rollout, setup.acting_seed(env), setup.control, row)
