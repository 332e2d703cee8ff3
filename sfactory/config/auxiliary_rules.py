"""Room: what must hold between flags of auxiliary losses, evaluation and hooks. In: a ``Config``. Out: the rules."""

from __future__ import annotations

from collections.abc import Iterable

from sfactory.config.rule import Rule, idle_unless
from sfactory.config.schema import Config


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
