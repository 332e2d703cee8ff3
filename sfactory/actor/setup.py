"""Room: what an actor is given at birth, and the making of its envs. In: shared objects. Out: splits.

Room: envs of a split rewarded as their policies are trained. In: schemes, who plays what. Out: envs told of them.

Looked at when a slot begins, so that a rollout later at most an env rewards by a new scheme, and whenever it was drawn
who plays next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import gymnasium

from sfactory.actor.data_validation import BadDataCounter
from sfactory.actor.decorrelation import warm_up, warm_up_agents
from sfactory.actor.env_batch import EnvBatch
from sfactory.actor.env_restarts import EnvRestarter
from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.actor.policy_assignment import (
    SOLE_AGENT,
    AssignmentRule,
    CustomAssignment,
    Mapping,
    PolicyAssignment,
    RandomAssignment,
)
from sfactory.actor.split import FaultHandling, Split
from sfactory.config.import_strings import find_callable
from sfactory.config.schema import PopulationConfig, RunConfig, SamplingConfig
from sfactory.env.factory import EnvFactory
from sfactory.env.multi_agent import AgentsEnv
from sfactory.env.reward_shaping import shaped
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


class RewardShaper:
    """Of one split, whose envs all have a scheme."""

    def __init__(self, split: Split, envs: list[Any], agents: int, schemes: SharedRewardShaping) -> None:
        """``envs``: the split's, as a list that changes when one is made anew. ``agents``: of each."""
        self._split, self._envs, self._agents, self._schemes = split, envs, agents, schemes
        # Of each row: the env that was told, the policy, and the version of its scheme.
        self._told: list[tuple[object, int, int]] = [(None, 0, 0)] * (len(envs) * agents)

    def look(self) -> None:
        """Tell envs of schemes that they have not been told of."""
        assignment = self._split.assignment
        ids = [0] * len(self._told) if assignment is None else assignment.ids.tolist()
        versions = [self._schemes.version(policy) for policy in range(max(ids) + 1)]
        if not all(versions):
            return  # nobody is shaped, or main has not set all of them yet
        for row, policy in enumerate(ids):
            env = self._envs[row // self._agents]
            told = (env, policy, versions[policy])
            if self._told[row] != told and self._tell(env, row % self._agents, policy):
                self._told[row] = told

    def _tell(self, env: object, agent: int, policy: int) -> bool:
        """Tell ``env``; False if the scheme cannot be read now."""
        target, scheme = shaped(env), self._schemes.read(policy)
        if target is not None and scheme is not None:
            target.set_reward_shaping(scheme, agent)
        return scheme is not None


@dataclass(frozen=True)
class ActorSetup:
    """Everything an actor process works with.

    generation, attempt: env steps at which the session began, and how many processes of this actor came before. Both
        are part of all seeds, so that neither a resumed session nor a replaced process repeats the same episodes.
    decorrelates: whether the flags that put envs and workers out of step apply; a benchmark ignores them.
    weights, to_learners, to_policies: by policy; the last is () with local inference.
    schemes: reward shaping set by main; None where no env takes part in it.
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
    schemes: SharedRewardShaping | None = None
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


def make_assignment(setup: ActorSetup, index: int) -> PolicyAssignment | None:
    """Who plays the rows of split ``index``; None where it is the one policy there is, always."""
    spec, layout = setup.spec, setup.layout
    if not has_policy_ids(spec, layout):
        return None
    policies, agents = layout.num_policies, spec.num_agents
    draw: AssignmentRule | None = None
    if policies > 1 and layout.mapping == "function":
        name = setup.population.policy_mapping
        function = cast(Mapping, find_callable(name))
        first = (setup.actor * layout.splits + index) * layout.envs
        draw = CustomAssignment(name, function, spec.agents or (SOLE_AGENT,), first, policies)
    elif policies > 1 and layout.mapping != "split":
        seed = seed_at(setup.seed, Branch.ASSIGNMENT, setup.actor, setup.generation, setup.attempt, index)
        draw = RandomAssignment(policies, setup.population.policy_mapping_episodes, layout.mapping == "agent", seed)
    own = layout.policy_of_split(setup.actor, index)
    return PolicyAssignment(layout.rows, agents, own, draw, policies, setup.frozen_policies)


def make_splits(setup: ActorSetup, row: StatusRow) -> list[Split]:
    """Make all envs of the actor, then reset each for the first time; ``row`` tells since when it is at one of them."""
    layout = setup.layout
    actor = actor_name(setup.actor)
    restarter = EnvRestarter(actor, setup.sampling.max_env_restarts, setup.seed_after_fault, setup.control, row)
    bad_data = BadDataCounter(actor, setup.sampling.max_bad_env_data, row)
    make = _vector_split if setup.factory.makes_vectors else _split_of_agents if setup.spec.agents else _split_of_envs
    splits = [make(setup, index, row, restarter, bad_data) for index in range(layout.splits)]
    if setup.schemes is not None:
        _shape(setup.schemes, splits, setup.spec.num_agents)
    row.set("state", State.RESETTING)
    for split in splits:
        first = split.index * layout.envs
        seeds = [setup.env_seed(first + env) for env in range(layout.envs)]
        split.reset(seeds, f"actor {setup.actor}", before_each=row.begin_work)
    if setup.decorrelates and setup.sampling.decorrelate_envs_on_one_worker:
        _decorrelate(setup, splits, row)
    return splits


def _shape(schemes: SharedRewardShaping, splits: list[Split], agents: int) -> None:
    """Have envs rewarded by the schemes of their policies."""
    for split in splits:
        if isinstance(split.group, EnvBatch | MultiAgentBatch):
            split.before_slot = look = RewardShaper(split, split.group.envs, agents, schemes).look
            if split.assignment is not None:
                split.assignment.after_draw = look


def close_envs(splits: list[Split]) -> None:
    """Close every env of the actor; one whose close() raises is told of and keeps no other from being closed."""
    for split in splits:
        split.group.close(f"split {split.index}")


def _split_of_envs(
    setup: ActorSetup, index: int, row: StatusRow, restarter: EnvRestarter, bad_data: BadDataCounter
) -> Split:
    envs: list[gymnasium.Env[Any, Any]] = []
    for _ in range(setup.layout.envs):
        row.begin_work()
        envs.append(setup.factory())
    care = FaultHandling(restarter, bad_data, lambda seed: setup.factory())
    return Split.of_envs(index, envs, setup.spec, setup.layout.rollout, care, make_assignment(setup, index))


def _split_of_agents(
    setup: ActorSetup, index: int, row: StatusRow, restarter: EnvRestarter, bad_data: BadDataCounter
) -> Split:
    envs: list[AgentsEnv] = []
    for _ in range(setup.layout.envs):
        row.begin_work()
        envs.append(setup.factory.agents())
    care = FaultHandling(restarter, bad_data, lambda seed: setup.factory.agents())
    return Split.of_agents(index, envs, setup.spec, setup.layout.rollout, care, make_assignment(setup, index))


def _vector_split(
    setup: ActorSetup, index: int, row: StatusRow, restarter: EnvRestarter, bad_data: BadDataCounter
) -> Split:
    row.begin_work()
    envs = setup.layout.envs
    env = setup.factory.vector(envs, setup.env_seed(index * envs))
    care = FaultHandling(restarter, bad_data, lambda seed: setup.factory.vector(envs, seed))
    return Split.of_vector(index, env, setup.spec, setup.layout.rollout, care, make_assignment(setup, index))


def _decorrelate(setup: ActorSetup, splits: list[Split], row: StatusRow) -> None:
    """Put the envs at different moments of their episodes; those of a vector env cannot be stepped one by one."""
    layout = setup.layout
    for env in range(layout.splits * layout.envs):
        split, place = splits[env // layout.envs], env % layout.envs
        given = split, place, env * layout.rollout, setup.acting_seed(env), setup.control, row
        if isinstance(split.group, EnvBatch):
            warm_up(*given)
        elif isinstance(split.group, MultiAgentBatch):
            warm_up_agents(*given)
