"""What an actor process is given, and the construction of its envs and splits."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

from sfactory.actor.decorrelation import warm_up
from sfactory.actor.env_restarts import FEW, BadDataCounter, EnvRestarter, FaultHandling, LostEpisodes
from sfactory.actor.episode_stats import EpisodeRecorder
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.opponents import Opponents
from sfactory.actor.policy_assignment import (
    SOLE_AGENT,
    AssignmentRule,
    Mapping,
    PolicyAssignment,
    custom_assignment,
    fixed_assignment,
    policies_by_name,
    random_assignment,
)
from sfactory.actor.reward_shaping import shape_rewards
from sfactory.actor.split import Split
from sfactory.actor.training_info import send_training_info
from sfactory.config.import_strings import find_callable
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.env.lifecycle import close_env
from sfactory.layout import LEARNERS, actor_name
from sfactory.messages import ToActor, ToPolicy
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at
from sfactory.shared.channel import Channel
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusRow
from sfactory.shared.trajectories import has_policy_ids

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActorSetup:
    """Everything an actor process works with.

    generation, attempt: env steps at which the session began, and how many processes of this actor came before. Both
        are part of all seeds, so that neither a resumed session nor a replaced process repeats the same episodes.
    """

    config: Config
    shared: SharedObjects
    actor: int
    seed: int
    generation: int
    attempt: int = 0

    @cached_property
    def factory(self) -> EnvFactory:
        """Makes the actor's envs; as it is, the first."""
        return replace(EnvFactory.of(self.config), env_index=self.shared.layout.env_index(self.actor))

    @property
    def inbox(self) -> Channel[ToActor]:
        """The channel that the actor reads."""
        return self.shared.to_actors[self.actor]

    @property
    def to_policies(self) -> list[Channel[ToPolicy]]:
        """Of each policy, the channel to the worker that serves the actor; [] with local inference."""
        workers = self.shared.layout.policy_workers
        return self.shared.to_policies[self.actor % workers :: workers] if workers else []

    @property
    def first_wait_s(self) -> float:
        """Seconds that the actor waits after its first trajectories, see FirstWait.

        0 in a benchmark, in serial mode, where the wait of one actor would hold up all, and for a replacement, which
        is out of step anyway.
        """
        if self.config.benchmark.benchmark or self.config.run.serial_mode or self.attempt:
            return 0.0
        return self.actor / self.shared.layout.num_actors * self.config.sampling.decorrelate_experience_max_seconds

    @property
    def trained_env_steps(self) -> int:
        """Env steps that all policies have been trained on so far; learners that start count none for a while."""
        return max(self.generation, int(self.shared.status.total("run_env_steps", LEARNERS)))

    def seed_of(self, branch: Branch, *place: int) -> int:
        """Seed of ENV: an env's first reset; AFTER_FAULT: its n-th after a fault; ACTING: actions sampled here."""
        return seed_at(self.seed, branch, self.actor, self.generation, self.attempt, *place, bits=ENV_SEED_BITS)

    def libraries_seed(self) -> int:
        """Seed of the generators of the libraries that envs use, see ``seed_libraries``."""
        return seed_at(self.seed, Branch.LIBRARIES, self.actor, self.generation, self.attempt)


def make_splits(setup: ActorSetup, row: StatusRow, closing: contextlib.ExitStack) -> list[Split]:
    """Make all envs of the actor, then reset each for the first time.

    row: each env has a timeout of its own. closing: closes all envs made so far, also if one fails here.
    """
    shared, layout, spec, sampling = setup.shared, setup.shared.layout, setup.shared.spec, setup.config.sampling
    actor = actor_name(setup.actor)
    most, seed_of = sampling.max_env_restarts, partial(setup.seed_of, Branch.AFTER_FAULT)
    envs = layout.num_actors * layout.splits * (1 if setup.factory.makes_vectors else layout.envs)
    lost_episodes = LostEpisodes(actor, max(FEW, most, envs), shared.status)
    restarter = EnvRestarter(actor, most, seed_of, shared.control, row, lost_episodes)
    bad_data = BadDataCounter(actor, sampling.max_bad_env_data, row, lost_episodes)
    splits = [_make_split(setup, index, row, restarter, bad_data, closing) for index in range(layout.splits)]
    if shared.reward_shaping is not None:
        shape_rewards(shared.reward_shaping, splits, spec.num_agents)
    if shared.sends_episodes:
        for split in splits:
            number = (setup.actor * layout.splits + split.index) * layout.envs
            split.episodes.recorder = split.batch.extras.recorder = EpisodeRecorder(number, spec.num_agents)
    send_training_info(splits, lambda: setup.trained_env_steps)
    row.set("state", State.RESETTING)
    for split in splits:
        first = split.index * layout.envs
        seeds = [setup.seed_of(Branch.ENV, first + env) for env in range(layout.envs)]
        split.reset(seeds, f"actor {setup.actor}", before_each=row.begin_work)
    warms_up = sampling.decorrelate_envs_on_one_worker and not setup.config.benchmark.benchmark
    if warms_up and setup.factory.makes_vectors:
        if not (setup.actor or setup.attempt):
            _log.warning(
                "--decorrelate_envs_on_one_worker=True has no effect: envs of a vector env cannot be stepped one by one"
            )
    elif warms_up:
        for env in range(layout.splits * layout.envs):
            split, place = splits[env // layout.envs], env % layout.envs
            warm_up(split, place, env * layout.rollout, setup.seed_of(Branch.ACTING, env), shared.control, row)
    return splits


def make_assignment(setup: ActorSetup, index: int) -> PolicyAssignment | None:
    """Which policies act in the rows of split ``index``; None where one policy always acts in all of them."""
    spec, layout, population = setup.shared.spec, setup.shared.layout, setup.config.population
    if not has_policy_ids(spec, layout):
        return None
    policies, agents = layout.num_policies, spec.num_agents
    seed = seed_at(setup.seed, Branch.ASSIGNMENT, setup.actor, setup.generation, setup.attempt, index)
    if (pool := setup.shared.opponents) is not None:
        opponents = Opponents(pool, population, spec.agents, layout.envs, setup.actor, seed)
        return PolicyAssignment(layout.rows, agents, 0, opponents.draw, opponents=opponents)
    rule: AssignmentRule | None = None
    if policies > 1 and layout.mapping == "function":
        name = population.policy_mapping
        function = cast(Mapping, find_callable(name))
        first = (setup.actor * layout.splits + index) * layout.envs
        rule = custom_assignment(name, function, spec.agents or (SOLE_AGENT,), first, policies)
    elif policies > 1 and layout.mapping == "names":
        chosen = policies_by_name(population.policy_mapping, spec.agents or (SOLE_AGENT,))
        rule = fixed_assignment(chosen)
    elif policies > 1 and layout.mapping != "split":
        rule = random_assignment(policies, population.policy_mapping_episodes, layout.mapping == "agent", seed)
    own = layout.policy_of_split(setup.actor, index)
    frozen = tuple(sorted(set(range(policies)) - set(learning_policies(setup.config))))
    return PolicyAssignment(layout.rows, agents, own, rule, policies, frozen)


def _make_split(
    setup: ActorSetup,
    index: int,
    row: StatusRow,
    restarter: EnvRestarter,
    bad_data: BadDataCounter,
    closing: contextlib.ExitStack,
) -> Split:
    """Make the envs of split ``index``; ``closing`` closes them."""
    factory, spec, layout = setup.factory, setup.shared.spec, setup.shared.layout
    envs, first = layout.envs, index * layout.envs
    makes_vectors = factory.makes_vectors

    def make(env: int, seed: int) -> Any:
        """The env that is number ``env`` of the actor, or the vector env that begins with it."""
        numbered = replace(factory, env_index=factory.env_index + env, env_steps=setup.trained_env_steps)
        if makes_vectors:
            return numbered.vector(envs, seed)
        return numbered.agents() if spec.agents else numbered()

    made, unfinished = list[Any](), closing.enter_context(contextlib.ExitStack())
    for env in [first] if makes_vectors else range(first, first + envs):
        row.begin_work()
        made.append(make(env, setup.seed_of(Branch.ENV, env)))
        unfinished.callback(close_env, made[-1], f"env {env}")
    faults = FaultHandling(restarter, bad_data, make)
    split_of = MultiAgentSplit if spec.agents else Split.of_envs
    split = split_of(
        index, made[0] if makes_vectors else made, spec, layout.rollout, faults, make_assignment(setup, index)
    )
    unfinished.pop_all()  # the batch closes those that it has then
    closing.callback(split.batch.close, f"split {index}")
    return split
