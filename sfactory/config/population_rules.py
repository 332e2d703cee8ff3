"""Rules over flags of a population, of auxiliary losses, of evaluation and of hooks."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from sfactory.config.flags import value_of
from sfactory.config.hyperparameters import (
    hyperparameter,
    hyperparameters,
    idle_requests,
    mutable_flags,
    range_problem,
    request_problems,
)
from sfactory.config.import_strings import module_of
from sfactory.config.rule import (
    WAITING,
    Rule,
    at_most,
    excludes,
    idle_unless,
    needs,
    refuse,
    refused_where_collection_waits,
    waits_for_learner,
)
from sfactory.config.schema import Config

MAPPINGS = ("auto", "split", "env", "agent")


def agents_by_pattern(mapping: str) -> tuple[tuple[str, int], ...]:
    """(pattern of agents' names, policy) of a ``--policy_mapping`` such as red_*=0,blue_*=1; () of any other one."""
    parts = [part.rpartition("=") for part in mapping.split(",")]
    if not all(pattern and policy.isdecimal() for pattern, _, policy in parts):
        return ()
    return tuple((pattern, int(policy)) for pattern, _, policy in parts)


def _patterns_name_policies(config: Config) -> str | None:
    count, patterns = config.population.num_policies, agents_by_pattern(config.population.policy_mapping)
    named = {policy for _, policy in patterns}
    if not patterns or named == set(range(count)):
        return None
    return f"must name each of the policies 0 to {count - 1} (--num_policies={count}), and no other"


def best_count(fraction: float, policies: int) -> int:
    """How many of ``policies`` are the best, and how many the worst: the fraction of them, rounded up."""
    # The decimal that was typed, since 0.07 x 100 is a little more than 7.
    return math.ceil(Fraction(str(fraction)) * policies)


def learning_policies(config: Config) -> tuple[int, ...]:
    """The policies that learn, which are the members of the population, in order."""
    named = config.population.train_policies
    return tuple(sorted(set(named))) if named else tuple(range(config.population.num_policies))


def member_numbers(config: Config) -> tuple[int, ...]:
    """The numbers of the members of the population that learn in this run, in order."""
    first = config.population.pbt_member or 0
    return tuple(first + policy for policy in learning_policies(config))


def _unknown_policies(config: Config) -> list[int]:
    population = config.population
    return sorted({policy for policy in population.train_policies if policy >= population.num_policies})


def _learning_policies_exist(config: Config) -> str | None:
    count, named = config.population.num_policies, config.population.train_policies
    if absent := _unknown_policies(config):
        there = "there is policy 0 alone" if count == 1 else f"there are policies 0 to {count - 1}"
        return f"there is no policy {' or '.join(map(str, absent))}: {there} (--num_policies={count})"
    twice = [str(policy) for policy, times in Counter(named).items() if times > 1]
    return f"policy {' and '.join(twice)} stands there more than once: name each policy once" if twice else None


def _population_has_members(config: Config) -> str | None:
    population, count = config.population, len(learning_policies(config))
    if not population.with_pbt or population.pbt_dir or count >= 2 or _unknown_policies(config):
        return None
    runs = "--num_policies=4, or a run for each (--pbt_dir=/shared/population and --pbt_member=0 and so on)"
    more = runs if population.num_policies == 1 else "--train_policies=, so that all of them learn"
    return f"a population needs at least two policies that learn, and has {count}: use {more}, or leave it out"


def _some_are_not_best(config: Config) -> str | None:
    population, count = config.population, len(learning_policies(config))
    best = best_count(population.pbt_replace_fraction, count)
    if not population.with_pbt or count < 2 or best < count:
        return None
    most = math.floor(1000 * (count - 1) / count) / 1000
    return f"rounded up, that is all of the {count} policies, so that none could be replaced: use {most:g} or less"


def decided(config: Config, inference: str, agents: int) -> Mapping[str, str]:
    """What ``inference`` and ``policy_mapping`` mean that may be auto: ``inference``, and for envs of ``agents``."""
    population = config.population
    mixed = population.policy_mapping == "auto" and agents > 1 and population.pbt_mix_policies_in_one_env
    return {"inference": inference} | ({"policy_mapping": "agent"} if mixed else {})


def flag_of_splits(inference: str) -> str:
    """The flag that says how many splits an actor may have."""
    # With local inference an actor has as many splits as it needs, each of one env or more.
    return "worker_num_splits" if inference == "central" else "num_envs_per_worker"


def lack_of_splits(config: Config) -> str | None:
    """Where collection waits for the learner, a policy without splits of its own would wait for ever."""
    population, sampling, policies = config.population, config.sampling, config.population.num_policies
    if policies == 1 or not waits_for_learner(config):
        return None
    asynchronous = "--async_rl=True and --num_batches_to_accumulate=2"
    if population.policy_mapping not in ("auto", "split"):
        return (
            "where collection waits for the learner (async_rl=False or num_batches_to_accumulate=0) every policy needs "
            f"splits of its own: use --policy_mapping=split, or {asynchronous}"
        )
    of_actor = flag_of_splits(sampling.inference)
    splits = max(1, sampling.num_workers) * getattr(sampling, of_actor)
    if splits % policies:
        return (
            f"{splits} splits (num_workers x {of_actor}) cannot be divided equally among {policies} policies, as they "
            "must where collection waits for the learner (async_rl=False or num_batches_to_accumulate=0): use a "
            f"multiple of num_policies, or {asynchronous}"
        )
    return None


def _few_turns(config: Config) -> str | None:
    """Why each policy of a population has no turn, or only one, if training ends before the first or the second."""
    population, limit = config.population, config.run.most_env_steps(config.frames_per_step)
    first, period = population.pbt_start_mutation, population.pbt_period_env_steps
    if not population.with_pbt or first + period < limit:
        return None
    few = f"each policy has one turn alone, as the next comes pbt_period_env_steps ({period}) later"
    tenth = max(1, limit // 10)
    return (
        f"a policy has its first turn after so many env steps, and training ends after {limit}: "
        f"{'none is ever replaced or mutated' if first >= limit else few}; for several turns of each use "
        f"--pbt_start_mutation={tenth} --pbt_period_env_steps={tenth}"
    )


# Not refused: where the sides are alike, such as two teams with the same task, the comparison is fair.
ROLES_COMPARED = refuse(
    ("policy_mapping", "with_pbt"),
    lambda config: config.population.with_pbt and bool(agents_by_pattern(config.population.policy_mapping)),
    "each policy plays agents of its own, and the population ranks it against those of other agents, so that it may "
    "copy one that has learned another task: where the agents' tasks differ, leave --with_pbt out",
)
# Not refused: published commands of Sample Factory have these values, with which a run may be tried first.
FEW_TURNS = Rule(
    ("pbt_start_mutation", "pbt_period_env_steps", "with_pbt", "train_for_env_steps", "train_for_frames"), _few_turns
)


# One rule for each flag that is mutated by default, within bounds that do not depend on its value.
_RANGE_RULES = tuple(
    Rule(
        (name, *dict.fromkeys(("with_pbt", declared.on, "pbt_hyperparameters"))), functools.partial(range_problem, name)
    )
    for name, declared in mutable_flags().items()
    if declared.on and not declared.relative
)

POPULATION_RULES = (
    Rule(("train_policies", "num_policies"), _learning_policies_exist),
    refuse(
        ("policy_mapping",),
        lambda config: (
            config.population.policy_mapping not in MAPPINGS
            and not _names_attribute(config.population.policy_mapping)
            and not agents_by_pattern(config.population.policy_mapping)
        ),
        f"must be one of {', '.join(MAPPINGS)}, patterns of agents' names, for example "
        "--policy_mapping=red_*=0,blue_*=1, or module:function, for example --policy_mapping=my_envs:who_plays",
    ),
    Rule(("policy_mapping", "num_policies"), _patterns_name_policies),
    Rule(("with_pbt", "num_policies", "train_policies"), _population_has_members),
    Rule(("pbt_replace_fraction", "num_policies", "train_policies", "with_pbt"), _some_are_not_best),
    refuse(
        ("pbt_optimize_batch_size", "pbt_hyperparameters", *WAITING),
        lambda config: (
            waits_for_learner(config) and not request_problems(config) and bool(hyperparameter(config, "batch_size"))
        ),
        "batches change their size only where collection does not wait for the learner: leave it out, or use "
        "--async_rl=True and --num_batches_to_accumulate=2",
    ),
    # Without num_envs_per_worker: a default by kind of task that a problem names is left out, and it need not be.
    Rule(("policy_mapping", "num_policies", *WAITING, "num_workers", "worker_num_splits"), lack_of_splits),
    refuse(
        ("opponent_pool", "num_policies"),
        lambda config: config.population.opponent_pool > 0 and config.population.num_policies > 1,
        "the opponents are past versions of one policy: leave it out, or use --num_policies=1",
    ),
    refused_where_collection_waits(
        "opponent_pool", "opponents take rows that the learner would wait for: leave it out"
    ),
    refuse(
        ("opponent_pool", "save_milestones_sec"),
        lambda config: config.population.opponent_pool > 0 and config.checkpoint.save_milestones_sec > 0,
        "milestones are the snapshots of the pool, at --opponent_snapshot_env_steps: leave one of the two out",
    ),
    *idle_unless(("opponent_snapshot_env_steps", "opponent_sampling", "opponent_share"), "opponent_pool", value=10),
    at_most("pbt_perturb_min", "pbt_perturb_max"),
    Rule(("pbt_hyperparameters",), lambda config: "; ".join(request_problems(config)) or None),
    # Those of a saved run are not mutated, of which its population warns. V-trace may be off by kind of task.
    Rule(("pbt_hyperparameters", "with_vtrace"), lambda config: "; ".join(idle_requests(config)) or None, idle=True),
    refuse(
        ("pbt_hyperparameters", "with_pbt"),
        lambda config: config.population.with_pbt and not request_problems(config) and not hyperparameters(config),
        "leaves nothing to mutate: leave out some of what it sets to null",
    ),
    *_RANGE_RULES,
    *idle_unless(
        ("policy_mapping", "policy_mapping_episodes", "pbt_mix_policies_in_one_env"),
        "num_policies",
        lambda policies: policies > 1,
        "2 or more",
    ),
    *idle_unless(("pbt_mix_policies_in_one_env",), "policy_mapping", lambda mapping: mapping == "auto", "auto"),
    refuse(
        ("pbt_dir", "num_policies"),
        lambda config: bool(config.population.pbt_dir) and config.population.num_policies > 1,
        "each run of such a population trains one policy: leave one of the two out",
    ),
    refuse(
        ("pbt_dir", "pbt_member"),
        lambda config: bool(config.population.pbt_dir) and config.population.pbt_member is None,
        "which of its members is this run? Give each run a number of its own: --pbt_member=0 and so on",
    ),
    excludes("pbt_dir", "opponent_pool", "members with opponents of their own cannot be ranked"),
    *idle_unless(("pbt_dir",), "with_pbt"),
    *idle_unless(("pbt_member",), "pbt_dir", value="/shared/population and --with_pbt=True"),
    *idle_unless(
        (
            *("pbt_period_env_steps", "pbt_start_mutation", "pbt_replace_fraction", "pbt_mutation_rate"),
            *("pbt_replace_reward_gap", "pbt_replace_reward_gap_absolute", "pbt_target_objective"),
            *("pbt_optimize_gamma", "pbt_optimize_batch_size", "pbt_hyperparameters"),
            *("pbt_perturb_min", "pbt_perturb_max"),
        ),
        "with_pbt",
        value="True and --num_policies=4",
    ),
)


def _names_attribute(name: str, registered: bool = False) -> bool:
    module, colon, attribute = name.partition(":")
    if registered and not colon:
        return not any(map(str.isspace, name))
    return attribute.isidentifier() and all(part.isidentifier() for part in module_of(module).split("."))


def _names(name: str, form: str, registered: bool = False) -> Rule:
    """A rule that all elements of the list ``name`` are module:attribute, or, if ``registered``, installed names."""

    def find(config: Config) -> str | None:
        wrong = [each for each in value_of(config, name) if not _names_attribute(each, registered)]
        return f"{', '.join(map(repr, wrong))} must read {form}" if wrong else None

    return Rule((name,), find)


AUXILIARY_RULES = (
    needs("use_cpc", "use_rnn", "predicts from the policy's memory"),
    refuse(
        ("cpc_forward_steps", "rollout", "use_cpc"),
        lambda config: config.algo.use_cpc and config.algo.cpc_forward_steps >= config.sampling.rollout,
        "must be less than rollout ({rollout}), since predicted steps must lie in it",
    ),
    refuse(
        ("cpc_forward_subsample", "cpc_forward_steps", "use_cpc"),
        lambda config: config.algo.use_cpc and config.algo.cpc_forward_subsample > config.algo.cpc_forward_steps,
        "must be at most cpc_forward_steps ({cpc_forward_steps}), of which so many are drawn",
    ),
    refuse(
        ("cpc_time_subsample", "rollout", "use_cpc"),
        lambda config: config.algo.use_cpc and config.algo.cpc_time_subsample >= config.sampling.rollout,
        "must be less than rollout ({rollout}): from its last step nothing can be predicted",
    ),
    refuse(
        ("aux_loss_coeff", "use_cpc"),
        lambda config: config.algo.use_cpc and not config.algo.aux_loss_coeff,
        "the loss of --use_cpc=True would have no weight: leave it out, or give it a weight, such as 0.1",
    ),
    excludes("use_cpc", "microbatch_size", "its negatives come from the whole minibatch, which microbatches split"),
    excludes("rnd", "use_cpc", "there is room for one auxiliary loss"),
    excludes("rnd", "model", "intrinsic values are learned from the features of a critic, which a whole model hides"),
    *idle_unless(("rnd_coeff", "rnd_gamma", "rnd_share", "rnd_first_only"), "rnd"),
    excludes("eval_interval_sec", "serial_mode", "an evaluation has processes of its own, and serial mode has none"),
    excludes("eval_interval_sec", "benchmark", "an evaluation beside a benchmark would change its result"),
    _names("observers", "module:Class, for example --observers my_hooks:MyObserver", registered=True),
    _names("wrapper", "module:function or module:Class, for example --wrapper my_wrappers:Noisy"),
    _names("after_train_step", "module:function, for example --after_train_step my_hooks:my_function"),
    *idle_unless(("cpc_forward_steps", "cpc_time_subsample", "cpc_forward_subsample", "aux_loss_coeff"), "use_cpc"),
    refuse(
        ("save_best_metric", "eval_interval_sec"),
        lambda config: config.checkpoint.best_by_evaluation and not config.evaluation.eval_interval_sec,
        "there are no evaluations: add --eval_interval_sec=60, or choose another metric",
    ),
    refuse(
        ("save_best_metric", "num_policies"),
        lambda config: config.checkpoint.best_by_evaluation and config.population.num_policies > 1,
        "evaluations are of policy 0 alone: leave --num_policies out, or choose another metric",
    ),
    *idle_unless(("eval_workers", "eval_episodes", "eval_deterministic", "eval_video"), "eval_interval_sec", value=60),
)
