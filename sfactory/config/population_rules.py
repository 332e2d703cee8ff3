"""Room: what must hold between flags of a population. In: a ``Config``. Out: ``POPULATION_RULES``."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from sfactory.config.hyperparameters import hyperparameters, mutable_flags, range_problem, wish_problems
from sfactory.config.rule import Rule, idle_unless
from sfactory.config.schema import Config

MAPPINGS = ("auto", "split", "env", "agent")


def best_count(fraction: float, policies: int) -> int:
    """How many of ``policies`` are the best, and how many the worst: the fraction of them, rounded up."""
    # The decimal that was typed, since 0.07 x 100 is a little more than 7.
    return math.ceil(Fraction(str(fraction)) * policies)


def learning_policies(config: Config) -> tuple[int, ...]:
    """The policies that learn, which are the members of the population, in order."""
    named = config.population.train_policies
    return tuple(sorted(set(named))) if named else tuple(range(config.population.num_policies))


def _learning_policies_are_there(config: Config) -> str | None:
    count, named = config.population.num_policies, config.population.train_policies
    absent = sorted({policy for policy in named if policy >= count})
    if absent:
        there = "there is policy 0 alone" if count == 1 else f"there are policies 0 to {count - 1}"
        return f"there is no policy {' or '.join(map(str, absent))}: {there} (--num_policies={count})"
    twice = [str(policy) for policy, times in Counter(named).items() if times > 1]
    return f"policy {' and '.join(twice)} stands there more than once: name each policy once" if twice else None


def _mapping_is_known(config: Config) -> str | None:
    text = config.population.policy_mapping
    module, colon, name = text.partition(":")
    if text in MAPPINGS or (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        return None
    return f"must be one of {', '.join(MAPPINGS)}, or module:function, for example --policy_mapping=my_envs:who_plays"


def _population_has_members(config: Config) -> str | None:
    population = config.population
    # Names of policies that are not there are another rule's affair.
    if not population.with_pbt or any(policy >= population.num_policies for policy in population.train_policies):
        return None
    count = len(learning_policies(config))
    if count >= 2:
        return None
    more = "--num_policies=4" if population.num_policies == 1 else "--train_policies=, so that all of them learn"
    return f"a population has two policies that learn or more, and here is {count}: use {more}, or leave it out"


def _somebody_is_not_among_the_best(config: Config) -> str | None:
    population, count = config.population, len(learning_policies(config))
    best = best_count(population.pbt_replace_fraction, count)
    if not population.with_pbt or count < 2 or best < count:
        return None
    most = math.floor(1000 * (count - 1) / count) / 1000
    return f"rounded up, that is all of the {count} policies, so that none could be replaced: use {most:g} or less"


def _batches_may_change(config: Config) -> str | None:
    if wish_problems(config) or not any(each.name == "batch_size" for each in hyperparameters(config)):
        return None
    if config.sampling.async_rl and config.learner.num_batches_to_accumulate:
        return None
    return (
        "batches change their size only where collection does not wait for the learner: leave it out, or use "
        "--async_rl=True and --num_batches_to_accumulate=2"
    )


def _policies_have_splits(config: Config) -> str | None:
    """Where collection waits for the learner, a policy without splits of its own would wait for ever."""
    population, sampling = config.population, config.sampling
    waits = not sampling.async_rl or not config.learner.num_batches_to_accumulate
    if population.num_policies == 1 or not waits:
        return None
    if population.policy_mapping != "split":
        return (
            "where collection waits for the learner (async_rl=False or num_batches_to_accumulate=0) every policy needs "
            "splits of its own: use --policy_mapping=split"
        )
    splits = sampling.num_workers * sampling.worker_num_splits
    if sampling.inference == "central" and splits % population.num_policies:
        return (
            f"{splits} splits (num_workers x worker_num_splits) are not as many for each of {population.num_policies} "
            "policies, and where collection waits for the learner they have to be: use a multiple of num_policies"
        )
    return None


def _factors_are_in_order(config: Config) -> str | None:
    least, most = config.population.pbt_perturb_min, config.population.pbt_perturb_max
    return None if least <= most else f"must be at most pbt_perturb_max ({most:g})"


def _wishes_can_be_met(config: Config) -> str | None:
    return "; ".join(wish_problems(config)) or None


def _something_is_mutated(config: Config) -> str | None:
    population = config.population
    if not population.with_pbt or wish_problems(config) or hyperparameters(config):
        return None
    return "leaves nothing to mutate: leave out some of what it sets to null"


@dataclass(frozen=True)
class _InRange:
    name: str

    def find(self, config: Config) -> str | None:
        return range_problem(config, self.name)


def _range_rules() -> tuple[Rule, ...]:
    """One rule for each flag that is mutated without being asked for, within bounds that do not depend on it."""
    bounded = {name: declared for name, declared in mutable_flags().items() if declared.on and not declared.relative}
    return tuple(
        Rule((name, *dict.fromkeys(("with_pbt", declared.on, "pbt_hyperparameters"))), _InRange(name).find)
        for name, declared in bounded.items()
    )


_OF_A_POPULATION = (
    Rule(("train_policies", "num_policies"), _learning_policies_are_there),
    Rule(("policy_mapping",), _mapping_is_known),
    Rule(("with_pbt", "num_policies", "train_policies"), _population_has_members),
    Rule(("pbt_replace_fraction", "num_policies", "train_policies", "with_pbt"), _somebody_is_not_among_the_best),
    Rule(
        ("pbt_optimize_batch_size", "pbt_hyperparameters", "async_rl", "num_batches_to_accumulate"), _batches_may_change
    ),
    Rule(
        ("policy_mapping", "num_policies", "async_rl", "num_batches_to_accumulate", "num_workers", "worker_num_splits"),
        _policies_have_splits,
    ),
    Rule(("pbt_perturb_min", "pbt_perturb_max"), _factors_are_in_order),
    Rule(("pbt_hyperparameters",), _wishes_can_be_met),
    Rule(("pbt_hyperparameters", "with_pbt"), _something_is_mutated),
    *_range_rules(),
)


POPULATION_RULES = (
    *_OF_A_POPULATION,
    *idle_unless(
        ("policy_mapping", "policy_mapping_episodes"),
        ("num_policies",),
        lambda config: config.population.num_policies > 1,
        "--num_policies=2 or more",
    ),
    *idle_unless(
        ("pbt_mix_policies_in_one_env",),
        ("num_policies", "policy_mapping"),
        lambda config: config.population.num_policies > 1 and config.population.policy_mapping == "auto",
        "--num_policies=2 and --policy_mapping=auto",
    ),
    *idle_unless(
        (
            "pbt_period_env_steps",
            "pbt_start_mutation",
            "pbt_replace_fraction",
            "pbt_mutation_rate",
            "pbt_replace_reward_gap",
            "pbt_replace_reward_gap_absolute",
            "pbt_optimize_gamma",
            "pbt_optimize_batch_size",
            "pbt_target_objective",
            "pbt_perturb_min",
            "pbt_perturb_max",
            "pbt_hyperparameters",
        ),
        ("with_pbt",),
        lambda config: config.population.with_pbt,
        "--with_pbt=True and --num_policies=4",
    ),
)
