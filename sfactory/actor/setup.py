"""Everything an actor process is given, and the construction of its envs and splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from sfactory.actor.decorrelation import warm_up
from sfactory.actor.env_restarts import BadDataCounter, EnvRestarter, FaultHandling
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import (
    SOLE_AGENT,
    AssignmentRule,
    CustomAssignment,
    Mapping,
    PolicyAssignment,
    RandomAssignment,
)
from sfactory.actor.reward_shaping import shape_rewards
from sfactory.actor.split import Split
from sfactory.config.import_strings import find_callable
from sfactory.config.schema import PopulationConfig, RunConfig, SamplingConfig
from sfactory.env.factory import EnvFactory
from sfactory.layout import Layout, actor_name
from sfactory.messages import ToActor, ToLearner, ToMain, ToPolicy
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at
from sfactory.shared.channel import Channel
from sfactory.shared.control import Control, SharedRewardShaping
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusRow
from sfactory.shared.trajectories import RnnStates, TrajectoryBuffer, has_policy_ids
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec


@dataclass(frozen=True)
class ActorSetup:
    """Everything an actor process works with.

    generation, attempt: env steps at which the session began, and how many processes of this actor came before. Both
        are part of all seeds, so that neither a resumed session nor a replaced process repeats the same episodes.
    decorrelates: whether the flags that put envs and workers out of step apply; a benchmark ignores them.
    weights, to_learners, to_policies: by policy; the last is () with local inference.
    reward_shaping: of each policy, set by main; None if the env has none.
    frozen_policies: those that act without learning.
    """

    actor: int
    generation: int
    attempt: int
    seed: int
    run: RunConfig
    sampling: SamplingConfig
    population: PopulationConfig
    decorrelates: bool
    factory: EnvFactory
    spec: EnvSpec
    layout: Layout
    trajectories: TrajectoryBuffer
    table: SlotTable
    states: RnnStates
    control: Control
    weights: tuple[SharedWeights, ...]
    inbox: Channel[ToActor]
    to_policies: tuple[Channel[ToPolicy], ...]
    to_learners: tuple[Channel[ToLearner], ...]
    to_main: Channel[ToMain]
    reward_shaping: SharedRewardShaping | None = None
    frozen_policies: tuple[int, ...] = ()

    @property
    def first_wait_s(self) -> float:
        """Seconds that the actor waits after its first trajectories, see FirstWait.

        In serial mode the wait of one actor would hold up all; a replacement is out of step anyway.
        """
        if not self.decorrelates or self.run.serial_mode or self.attempt:
            return 0.0
        return self.actor / self.layout.num_actors * self.sampling.decorrelate_experience_max_seconds

    def env_seed(self, env: int) -> int:
        """Seed of the first reset of the actor's env ``env``."""
        return self._seed(Branch.ENV, env)

    def seed_after_fault(self, env: int, count: int) -> int:
        """Seed of env ``env`` when it is reset after a fault, as the actor's ``count``-th."""
        return self._seed(Branch.AFTER_FAULT, env, count)

    def acting_seed(self, *env: int) -> int:
        """Seed of the actions that the actor itself samples: with its policy, or in env ``env`` while it warms up."""
        return self._seed(Branch.ACTING, *env)

    def libraries_seed(self) -> int:
        """Seed of the generators of the libraries that envs use, see ``seed_libraries``."""
        return seed_at(self.seed, Branch.LIBRARIES, self.actor, self.generation, self.attempt)

    def _seed(self, branch: Branch, *place: int) -> int:
        return seed_at(self.seed, branch, self.actor, self.generation, self.attempt, *place, bits=ENV_SEED_BITS)


def make_splits(setup: ActorSetup, row: StatusRow) -> list[Split]:
    """Make all envs of the actor, then reset each for the first time; ``row``: each env has a timeout of its own."""
    layout, sampling = setup.layout, setup.sampling
    actor = actor_name(setup.actor)
    restarter = EnvRestarter(actor, sampling.max_env_restarts, setup.seed_after_fault, setup.control, row)
    bad_data = BadDataCounter(actor, sampling.max_bad_env_data, row)
    splits = [_make_split(setup, index, row, restarter, bad_data) for index in range(layout.splits)]
    if setup.reward_shaping is not None:
        shape_rewards(setup.reward_shaping, splits, setup.spec.num_agents)
    row.set("state", State.RESETTING)
    for split in splits:
        first = split.index * layout.envs
        seeds = [setup.env_seed(first + env) for env in range(layout.envs)]
        split.reset(seeds, f"actor {setup.actor}", before_each=row.begin_work)
    if setup.decorrelates and sampling.decorrelate_envs_on_one_worker and not setup.factory.makes_vectors:
        for env in range(layout.splits * layout.envs):
            split, place = splits[env // layout.envs], env % layout.envs
            warm_up(split, place, env * layout.rollout, setup.acting_seed(env), setup.control, row)
    return splits


def close_envs(splits: list[Split]) -> None:
    """Close every env of the actor; an exception of one is logged and does not stop the others."""
    for split in splits:
        split.batch.close(f"split {split.index}")


def make_assignment(setup: ActorSetup, index: int) -> PolicyAssignment | None:
    """Which policies act in the rows of split ``index``; None where one policy always acts in all of them."""
    spec, layout = setup.spec, setup.layout
    if not has_policy_ids(spec, layout):
        return None
    policies, agents = layout.num_policies, spec.num_agents
    rule: AssignmentRule | None = None
    if policies > 1 and layout.mapping == "function":
        name = setup.population.policy_mapping
        function = cast(Mapping, find_callable(name))
        first = (setup.actor * layout.splits + index) * layout.envs
        rule = CustomAssignment(name, function, spec.agents or (SOLE_AGENT,), first, policies)
    elif policies > 1 and layout.mapping != "split":
        seed = seed_at(setup.seed, Branch.ASSIGNMENT, setup.actor, setup.generation, setup.attempt, index)
        episodes = setup.population.policy_mapping_episodes
        rule = RandomAssignment(policies, episodes, layout.mapping == "agent", seed)
    own = layout.policy_of_split(setup.actor, index)
    return PolicyAssignment(layout.rows, agents, own, rule, policies, setup.frozen_policies)


def _make_split(
    setup: ActorSetup, index: int, row: StatusRow, restarter: EnvRestarter, bad_data: BadDataCounter
) -> Split:
    """Make the envs of split ``index``."""
    factory, spec, envs, rollout = setup.factory, setup.spec, setup.layout.envs, setup.layout.rollout
    assignment = make_assignment(setup, index)
    if factory.makes_vectors:
        row.begin_work()
        made: Any = factory.vector(envs, setup.env_seed(index * envs))
        faults = FaultHandling(restarter, bad_data, lambda seed: factory.vector(envs, seed))
    else:
        make: Callable[[], Any] = factory.agents if spec.agents else factory
        made = []
        for _ in range(envs):
            row.begin_work()
            made.append(make())
        faults = FaultHandling(restarter, bad_data, lambda seed: make())
    split_of = MultiAgentSplit if spec.agents else Split.of_envs
    return split_of(index, made, spec, rollout, faults, assignment)
