"""Room: what must hold between several flags. In: a ``Config`` whose values are right one by one. Out: ``RULES``.

A rule says what is wrong and what would be right, or nothing. Here are those of the run and of sampling; learning has
modules of its own.
"""

from __future__ import annotations

import math
import os
import re

from sfactory.config.flags import all_flags, values_of
from sfactory.config.population_rules import AUXILIARY_RULES, POPULATION_RULES
from sfactory.config.rule import Rule, nearest_multiples
from sfactory.config.schema import Config
from sfactory.config.training_rules import LEARNING_RULES, OBJECTIVE_RULES, OPTIMIZER_RULES

_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _env_is_given(config: Config) -> str | None:
    if config.run.env:
        return None
    return "an environment is required: a Gymnasium id, a family name or module:function, for example --env=CartPole-v1"


def _experiment_is_a_plain_name(config: Config) -> str | None:
    if _EXPERIMENT.fullmatch(config.run.experiment):
        return None
    return (
        "must be a plain name of 1 to 100 letters, digits, '.', '_' or '-' that begins with a letter or digit, "
        "for example --experiment=cartpole_1; directories belong in --train_dir"
    )


def _can_be_encoded(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # half a surrogate pair, which YAML and JSON may spell
        return False
    return True


def _train_dir_is_a_path(config: Config) -> str | None:
    if config.run.train_dir and "\0" not in config.run.train_dir and _can_be_encoded(config.run.train_dir):
        return None
    return "must name a directory, for example --train_dir=./train_dir"


def _envs_fill_splits(config: Config) -> str | None:
    envs, splits = config.sampling.num_envs_per_worker, config.sampling.worker_num_splits
    if envs % splits == 0:
        return None
    return f"must be a multiple of worker_num_splits ({splits}): {nearest_multiples(envs, splits)}"


def _batch_is_whole_rollouts(config: Config) -> str | None:
    batch, rollout = config.learner.batch_size, config.sampling.rollout
    if batch % rollout == 0:
        return None
    return f"must be a multiple of rollout ({rollout}): {nearest_multiples(batch, rollout)}"


def _sampler_only_is_a_benchmark(config: Config) -> str | None:
    if config.benchmark.benchmark or not config.benchmark.sampler_only:
        return None
    return "only a benchmark samples without training: add --benchmark=True"


def _a_stage_is_of_a_benchmark(config: Config) -> str | None:
    if config.benchmark.benchmark or config.benchmark.benchmark_stage == "full":
        return None
    return "only a benchmark measures a stage: add --benchmark=True"


def _one_stage_is_measured(config: Config) -> str | None:
    stage = config.benchmark.benchmark_stage
    if not config.benchmark.sampler_only or stage in ("sample", "full"):
        return None
    return "contradicts --sampler_only=True, which is --benchmark_stage=sample: leave one of them out"


def _decay_has_an_end(config: Config) -> str | None:
    values = values_of(config)
    limits = ("train_for_env_steps", "train_for_frames")
    if config.optim.lr_schedule != "linear_decay" or any(values[n] != all_flags()[n].default for n in limits):
        return None
    return "the rate falls to 0 at the end of training: say where with --train_for_env_steps, e.g. 10_000_000"


def _local_inference_has_no_policy_workers(config: Config) -> str | None:
    if config.sampling.inference != "local" or config.sampling.policy_workers_per_policy == 1:
        return None
    return "with --inference=local there are no policy workers: leave it at 1, or use --inference=central"


def _policy_workers_have_actors(config: Config) -> str | None:
    workers, actors = config.sampling.policy_workers_per_policy, config.sampling.num_workers
    if config.sampling.inference == "local" or workers <= actors:
        return None
    return f"must be at most num_workers ({actors}): each actor is served by one policy worker, the rest would idle"


def _recurrence_divides_rollout(config: Config) -> str | None:
    recurrence, rollout = config.learner.recurrence, config.sampling.rollout
    if recurrence == -1 or (recurrence and rollout % recurrence == 0):
        return None
    divisors = [d for d in range(1, rollout + 1) if rollout % d == 0]
    below, above = [d for d in divisors if d < recurrence], [d for d in divisors if d > recurrence]
    nearest = " and ".join(map(str, below[-1:] + above[:1]))
    return f"must be a divisor of rollout ({rollout}), or -1 for the whole of it: nearest to it: {nearest}"


def _rounds_fit_datasets(config: Config) -> str | None:
    return rounds_misfit(config, agents=1)


def rounds_misfit(config: Config, agents: int) -> str | None:
    """Why a dataset of a synchronous run is no whole number of rounds, if it is not; ``agents``: those of an env.

    What does not fit one agent fits no more of them, so that the rule can be held before the env is known.
    """
    if config.sampling.async_rl:
        return None
    sampling, learner = config.sampling, config.learner
    rows = sampling.num_workers * sampling.num_envs_per_worker * agents
    dataset, around = learner.batch_size * learner.num_batches_per_epoch, rows * sampling.rollout
    if dataset % around == 0:
        return None
    # The least dataset that is both whole rounds and whole batches of whole rollouts.
    whole = math.lcm(around, learner.num_batches_per_epoch * sampling.rollout)
    datasets = (dataset // whole * whole, (dataset // whole + 1) * whole)
    sizes = " or ".join(str(size // learner.num_batches_per_epoch) for size in datasets if size)
    many = f" x {agents} agents" if agents > 1 else ""
    return (
        f"a dataset of {dataset} steps (batch_size x num_batches_per_epoch) is no multiple of a round of {around} "
        f"(num_workers x num_envs_per_worker{many} x rollout), so the policy lag could not be 0: nearest is batch_size "
        f"{sizes}"
    )


def _flights_are_limited_once(config: Config) -> str | None:
    if not config.sampling.max_sample_requests_in_flight_per_worker:
        return None
    if not config.sampling.async_rl or not config.learner.num_batches_to_accumulate:
        return "must be 0 where collection waits for the learner anyway (async_rl=False or num_batches_to_accumulate=0)"
    return None


def _adaptive_rates_are_in_order(config: Config) -> str | None:
    if config.optim.lr_adaptive_min <= config.optim.lr_adaptive_max:
        return None
    return f"must be at most lr_adaptive_max ({config.optim.lr_adaptive_max})"


def _tanh_means_need_own_stddev(config: Config) -> str | None:
    if not config.model.continuous_tanh_scale or not config.model.adaptive_stddev:
        return None
    return (
        "needs --adaptive_stddev=False: a standard deviation that the network gives could not follow the squashed mean"
    )


def _keys_are_normalized(config: Config) -> str | None:
    if config.model.normalize_input or not config.model.normalize_input_keys:
        return None
    return "has no effect with --normalize_input=False: leave one of the two out"


def _milestones_are_off_or_apart(config: Config) -> str | None:
    seconds = config.checkpoint.save_milestones_sec
    if seconds == -1 or seconds > 0:
        return None
    return "must be greater than 0, or -1 to save no milestones"


def _benchmarks_have_processes(config: Config) -> str | None:
    if not (config.run.serial_mode and config.benchmark.benchmark):
        return None
    return "a benchmark measures the processes of a run, and serial mode has none: leave one of the two out"


def _serial_mode_has_one_process(config: Config) -> str | None:
    if not config.run.serial_mode or config.sampling.policy_workers_per_policy == 1:
        return None
    return "must be 1 in serial mode, where everything runs one after the other"


def _processes_are_tuned(config: Config) -> str | None:
    if not (config.tuning.autotune and config.run.serial_mode):
        return None
    return "with --serial_mode=True everything is one process, so there is nothing to tune: leave one of the two out"


def _a_run_or_its_sampling_is_tuned(config: Config) -> str | None:
    stage = config.benchmark.stage
    if not config.tuning.autotune or stage in ("full", "sample"):
        return None
    return (
        f"finds settings for whole runs and for sampling, and --benchmark_stage={stage} measures neither: leave one of "
        "the two out"
    )


def _batches_are_tuned_with_the_rest(config: Config) -> str | None:
    if config.tuning.autotune or not config.tuning.autotune_batch:
        return None
    return "only autotune tries batch sizes: add --autotune=True"


_RUN_RULES = (
    Rule(("env",), _env_is_given),
    Rule(("experiment",), _experiment_is_a_plain_name),
    Rule(("train_dir",), _train_dir_is_a_path),
    Rule(("num_envs_per_worker", "worker_num_splits"), _envs_fill_splits),
    Rule(("batch_size", "rollout"), _batch_is_whole_rollouts),
    Rule(("sampler_only", "benchmark"), _sampler_only_is_a_benchmark),
    Rule(("benchmark_stage", "benchmark"), _a_stage_is_of_a_benchmark),
    Rule(("benchmark_stage", "sampler_only"), _one_stage_is_measured),
    Rule(("lr_schedule", "train_for_env_steps", "train_for_frames"), _decay_has_an_end),
    Rule(("policy_workers_per_policy", "inference"), _local_inference_has_no_policy_workers),
    Rule(("policy_workers_per_policy", "num_workers", "inference"), _policy_workers_have_actors),
    Rule(("recurrence", "rollout"), _recurrence_divides_rollout),
    Rule(
        ("async_rl", "batch_size", "num_batches_per_epoch", "num_workers", "num_envs_per_worker", "rollout"),
        _rounds_fit_datasets,
    ),
    Rule(
        ("max_sample_requests_in_flight_per_worker", "async_rl", "num_batches_to_accumulate"),
        _flights_are_limited_once,
    ),
    Rule(("lr_adaptive_min", "lr_adaptive_max"), _adaptive_rates_are_in_order),
    Rule(("continuous_tanh_scale", "adaptive_stddev"), _tanh_means_need_own_stddev),
    Rule(("normalize_input_keys", "normalize_input"), _keys_are_normalized),
    Rule(("save_milestones_sec",), _milestones_are_off_or_apart),
    Rule(("serial_mode", "benchmark"), _benchmarks_have_processes),
    Rule(("policy_workers_per_policy", "serial_mode"), _serial_mode_has_one_process),
    Rule(("autotune", "serial_mode"), _processes_are_tuned),
    Rule(("autotune", "benchmark_stage", "sampler_only"), _a_run_or_its_sampling_is_tuned),
    Rule(("autotune_batch", "autotune"), _batches_are_tuned_with_the_rest),
)
RULES = (*_RUN_RULES, *LEARNING_RULES, *OBJECTIVE_RULES, *OPTIMIZER_RULES, *AUXILIARY_RULES, *POPULATION_RULES)
