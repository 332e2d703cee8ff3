"""Room: what must hold between flags of a population. In: a ``Config``. Out: ``POPULATION_RULES``.

Room: what must hold between flags of auxiliary losses, evaluation and hooks. In: a ``Config``. Out: the rules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
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


def _predictions_have_memory(config: Config) -> str | None:
    if not config.algo.use_cpc or config.model.use_rnn:
        return None
    return "predicts from the policy's memory: needs --use_rnn=True"


def _predictions_stay_in_the_rollout(config: Config) -> str | None:
    steps, rollout = config.algo.cpc_forward_steps, config.sampling.rollout
    if not config.algo.use_cpc or steps < rollout:
        return None
    return f"must be less than rollout ({rollout}), in which what is predicted must lie"


def _predicted_steps_are_of_those_ahead(config: Config) -> str | None:
    drawn, steps = config.algo.cpc_forward_subsample, config.algo.cpc_forward_steps
    if not config.algo.use_cpc or drawn <= steps:
        return None
    return f"must be at most cpc_forward_steps ({steps}), of which so many are drawn"


def _predictions_begin_within_the_rollout(config: Config) -> str | None:
    starts, rollout = config.algo.cpc_time_subsample, config.sampling.rollout
    if not config.algo.use_cpc or starts < rollout:
        return None
    return f"must be less than rollout ({rollout}): from its last step nothing can be predicted"


def _predictions_count(config: Config) -> str | None:
    if not config.algo.use_cpc or config.algo.aux_loss_coeff:
        return None
    return "nothing would be learned from what --use_cpc=True computes: leave it out, or give it a weight, such as 0.1"


def _predictions_see_whole_minibatches(config: Config) -> str | None:
    if not config.algo.use_cpc or not config.learner.microbatch_size:
        return None
    return (
        "futures are told from others of the whole minibatch, so parts of it have another gradient: leave "
        "--microbatch_size out"
    )


def _evaluation_has_processes(config: Config) -> str | None:
    if not (config.evaluation.eval_interval_sec and config.run.serial_mode):
        return None
    return "an evaluation has processes of its own, and serial mode has none: leave one of the two out"


def _benchmarks_do_not_evaluate(config: Config) -> str | None:
    if not (config.evaluation.eval_interval_sec and config.benchmark.benchmark):
        return None
    return "a benchmark measures a run that nothing else is busy beside: leave one of the two out"


def _observers_can_be_imported(config: Config) -> str | None:
    return _names_problem(config.hooks.observers, "module:Class, for example --observers my_hooks:Watch")


def _hooks_can_be_imported(config: Config) -> str | None:
    return _names_problem(
        config.hooks.after_train_step, "module:function, for example --after_train_step my_hooks:look"
    )


def _names_problem(names: Iterable[str], form: str) -> str | None:
    wrong = [name for name in names if not _names_an_attribute(name)]
    return f"{', '.join(map(repr, wrong))} must read {form}" if wrong else None


def _names_an_attribute(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


AUXILIARY_RULES = (
    Rule(("use_cpc", "use_rnn"), _predictions_have_memory),
    Rule(("cpc_forward_steps", "rollout", "use_cpc"), _predictions_stay_in_the_rollout),
    Rule(("cpc_forward_subsample", "cpc_forward_steps", "use_cpc"), _predicted_steps_are_of_those_ahead),
    Rule(("cpc_time_subsample", "rollout", "use_cpc"), _predictions_begin_within_the_rollout),
    Rule(("aux_loss_coeff", "use_cpc"), _predictions_count),
    Rule(("use_cpc", "microbatch_size"), _predictions_see_whole_minibatches),
    *idle_unless(
        ("cpc_forward_steps", "cpc_time_subsample", "cpc_forward_subsample", "aux_loss_coeff"),
        ("use_cpc",),
        lambda config: config.algo.use_cpc,
        "--use_cpc=True",
    ),
    Rule(("eval_interval_sec", "serial_mode"), _evaluation_has_processes),
    Rule(("eval_interval_sec", "benchmark"), _benchmarks_do_not_evaluate),
    *idle_unless(
        ("eval_workers", "eval_episodes", "eval_deterministic"),
        ("eval_interval_sec",),
        lambda config: config.evaluation.eval_interval_sec > 0,
        "--eval_interval_sec=60",
    ),
    Rule(("observers",), _observers_can_be_imported),
    Rule(("after_train_step",), _hooks_can_be_imported),
)
