"""Rules over flags of the run, of sampling and of the network."""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sfactory.config.env_families import ONE_BY_ONE, find_family, flag_that_stays_one, makes_many_at_once
from sfactory.config.env_names import env_name_of
from sfactory.config.flags import all_flags, assigned, value_of
from sfactory.config.points import decays
from sfactory.config.rule import (
    Refused,
    Rule,
    excludes,
    idle_unless,
    is_default,
    multiple_of,
    needs,
    refuse,
    refuse_each,
    refused_where_collection_waits,
)
from sfactory.config.schema import AUTO, Config, WrapperConfig
from sfactory.config.training_rules import KL_ADAPTIVE

_LONGEST_NAME = 100
_EXPERIMENT = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST_NAME - 1}}}")
_DEVICE = re.compile(r"auto|cpu|gpu|cuda(:\d{1,4})?", re.ASCII)
_SEVERAL_DEVICES = re.compile(r"(cpu(,cpu)*|\d{1,4}(,\d{1,4})*)?", re.ASCII)
LARGEST_BATCH = 8  # minibatches are at most so many times those of two actors
_LIMITS = ("train_for_env_steps", "train_for_frames")
_ENDS = (*_LIMITS, "train_for_seconds")


def _is_path(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half a surrogate pair, which YAML and JSON may spell
        return False
    return bool(text) and "\0" not in text


def experiment_of(env: str) -> str:
    """The name of a run that was not given one: that of its env, without what a name of a folder may not have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", env).strip("-._")[:_LONGEST_NAME] or ("run" if env else "")


def _experiment(config: Config) -> str | None:
    name, train_dir = config.run.experiment, config.run.train_dir
    if not name or _EXPERIMENT.fullmatch(name):
        return None
    known = experiment_of(env_name_of(name))
    meant = f"; did you mean {known}?" if _is_path(train_dir) and (Path(train_dir) / known).is_dir() else ""
    return (
        "must be a plain name of 1 to 100 letters, digits, '.', '_' or '-' that begins with a letter or digit, "
        f"for example --experiment=cartpole_1; directories belong in --train_dir{meant}"
    )


def _learner_devices(config: Config) -> str | None:
    devices = config.run.learner_devices
    names = devices.split(",")
    if _SEVERAL_DEVICES.fullmatch(devices) and (names[0] == "cpu" or len(set(names)) == len(names)):
        return None
    return (
        "must be numbers of different GPUs (7, not cuda:7), or cpu several times, but not both, "
        "for example --learner_devices=0,1"
    )


def _recurrence(config: Config) -> str | None:
    recurrence, rollout = config.learner.recurrence, config.sampling.rollout
    if recurrence == -1 or (recurrence and rollout % recurrence == 0):
        return None
    divisors = [d for d in range(1, rollout + 1) if rollout % d == 0]
    below, above = [d for d in divisors if d < recurrence], [d for d in divisors if d > recurrence]
    nearest = " and ".join(map(str, below[-1:] + above[:1]))
    return f"must be a divisor of rollout ({rollout}), or -1 for the whole rollout: nearest to it: {nearest}"


def spread(values: Mapping[str, Any], family: Mapping[str, Any], unset: Collection[str], cores: int) -> dict[str, int]:
    """New sizes for the defaults of a ``family`` on more cores than it has actors.

    unset: flags that have those defaults. The same envs are divided among more actors, which learns the same in less
    time; half of the cores are left to a learner that learns while actors collect. With more envs in all, or longer
    rollouts, minibatches are larger, up to 8 times, so that a dataset stays a round of all actors: what is left of a
    round would be many updates old before it is learned from.
    """
    names = ("num_workers", "num_envs_per_worker", "batch_size")
    sizes, splits, rollout = tuple(values[name] for name in names), values["worker_num_splits"], values["rollout"]
    actors, envs, batch = sizes
    waits = not values["async_rl"] or values["num_batches_to_accumulate"] == 0
    own = family.get("num_workers", 0)  # 1: the actors would share one simulator
    if values["serial_mode"] or own < 2 or "num_envs_per_worker" not in family or min(*sizes, splits, rollout) < 1:
        return {}
    total = own * family["num_envs_per_worker"]
    # A step of a vector env costs about the same for few envs as for many.
    divides = "num_envs_per_worker" in unset and not makes_many_at_once(find_family(values["env"]))
    of_one = splits if divides else envs
    if "num_workers" in unset:
        numbers = range(cores if waits else cores // 2, actors, -1)
        actors = next((number for number in numbers if total % (number * of_one) == 0), actors)
    if divides and actors > own:
        envs = max(splits, total // actors // splits * splits)
    if "batch_size" in unset:
        times = actors * envs * rollout / (total * family.get("rollout", rollout))
        # Where collection does not wait, slots bound how far it runs ahead, and little more does no harm.
        batch *= min(max(1, math.ceil(times) if waits else int(times)), LARGEST_BATCH)
    return {name: new for name, new, old in zip(names, (actors, envs, batch), sizes, strict=True) if new != old}


def _one_per_process(flag: str) -> Rule:
    """A rule that is broken where ``flag`` makes more envs in a process than the family allows, which is one."""

    def find(config: Config) -> str | None:
        family = find_family(config.run.env)
        limited = flag_that_stays_one(family)
        limits = flag == limited or (flag == "num_workers" and bool(limited) and config.run.serial_mode)
        if family is None or not limits or getattr(config.sampling, flag) == 1:
            return None
        advice = "" if flag == "num_workers" else "; --num_workers gives more processes"
        allowed = "one vector env" if limited == "worker_num_splits" else "one env"
        return f"must be 1, as the package of the family {family.name!r} allows {allowed} in a process{advice}"

    return Rule((flag, "env", "serial_mode"), find)


def _wraps_one(flag: str) -> Rule:
    """A rule that is broken where ``flag`` would wrap envs of a family that steps many at once."""

    def find(config: Config) -> str | None:
        if flag not in config.wrappers.used or not makes_many_at_once(find_family(config.run.env)):
            return None
        return ONE_BY_ONE.format("is one of many that are made at once")

    return Rule((flag, "env"), find)


def rounds_misfit(config: Config, agents: int) -> str | None:
    """Why a dataset of a synchronous run is not a whole number of rounds; None if it is one.

    agents: agents of one env. A dataset that does not fit one agent does not fit more of them, so the rule is checked
    with 1 before the env is known.
    """
    if config.sampling.async_rl:
        return None
    sampling, learner = config.sampling, config.learner
    rows = max(1, sampling.num_workers) * sampling.num_envs_per_worker * agents
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


def fitted(values: Mapping[str, Any], free: Collection[str], agents: int = 1) -> dict[str, int]:
    """New values for flags in ``free``, which the user has not set, that do not fit the others.

    batch_size becomes a multiple of rollout, of a smaller microbatch of whole rollouts, and, in a synchronous run, so
    that datasets are whole rounds (see ``rounds_misfit``, also for ``agents``); worker_num_splits becomes a divisor of
    num_envs_per_worker, or that a multiple of it. An actor and a critic that read different observations do not share
    weights.
    """
    names = ("rollout", "batch_size", "num_batches_per_epoch", "num_envs_per_worker", "worker_num_splits")
    rollout, batch, batches, envs, splits = sizes = [values[name] for name in names]
    workers = max(1, values["num_workers"])
    if min(sizes) < 1:  # refused anyway
        return {}
    if "worker_num_splits" in free:
        splits = math.gcd(envs, splits)
    elif "num_envs_per_worker" in free:
        envs = math.ceil(envs / splits) * splits
    if "batch_size" in free:
        micro = values["microbatch_size"]
        if micro % rollout or micro >= batch:
            micro = 0  # it does not count in rollouts, or is refused
        around = 1 if values["async_rl"] else workers * envs * agents * rollout
        unit = math.lcm(around, batches * (micro or rollout)) // batches
        batch = max(1 if unit > micro else 2, round(batch / unit)) * unit
    new = {"batch_size": batch, "num_envs_per_worker": envs, "worker_num_splits": splits}
    reads_apart = values["critic_obs_keys"] not in ((), AUTO) or values["actor_obs_keys"]
    if reads_apart and not values["model"] and "actor_critic_share_weights" in free:
        new["actor_critic_share_weights"] = False
    return {name: value for name, value in new.items() if value != values[name]}


def without_lesser_limits(
    values: Mapping[str, Any], sources: Mapping[str, str], typed: Collection[str]
) -> tuple[dict[str, object], list[str]]:
    """New values for limits of training that give way to those that the user has ``typed``, and a text for each.

    Limits of steps do not give way to seconds: schedules follow them, as nothing that is learned depends on time.
    """
    given = [name for name in _ENDS if name in typed]
    none = {name: all_flags()[name].default for name in _ENDS if given and name not in typed}
    lesser = [name for name, default in none.items() if values[name] != default]
    ends = " or ".join(assigned(name, values[name]) for name in given)
    if given == ["train_for_seconds"]:
        text = "training ends before if it reaches {}, where its schedules end; to train longer, give a higher one, too"
        new: dict[str, object] = {}
    else:
        text, new = "ends training in place of {}", {name: none[name] for name in lesser}
    return new, [f"{ends}: {text.format(f'{assigned(name, values[name])} ({sources[name]})')}" for name in lesser]


def _falls_without_end(schedule: str, config: Config) -> bool:
    return decays(value_of(config, schedule)) and all(is_default(config, limit) for limit in _LIMITS)


RUN_RULES = (
    refuse(
        ("env",),
        lambda config: not config.run.env,
        "an environment is required: a Gymnasium id, a family name or module:function, for example --env=CartPole-v1",
    ),
    refuse(
        ("device",),
        lambda config: _DEVICE.fullmatch(config.run.device) is None,
        "must be one of auto, cpu, gpu, cuda, or cuda:N for GPU number N",
    ),
    Rule(("learner_devices",), _learner_devices),
    Rule(("experiment", "train_dir"), _experiment),
    refuse(
        ("train_dir",),
        lambda config: not _is_path(config.run.train_dir),
        "must name a directory, for example --train_dir=./train_dir",
    ),
    *(
        refuse(
            (schedule, *_LIMITS),
            partial(_falls_without_end, schedule),
            "it falls to 0 at the end of training: say where with --train_for_env_steps, e.g. 10_000_000",
        )
        for schedule in ("lr_schedule", "exploration_loss_coeff_schedule")
    ),
    refuse(
        ("save_milestones_sec",),
        lambda config: config.checkpoint.save_milestones_sec != -1 and config.checkpoint.save_milestones_sec <= 0,
        "must be greater than 0, or -1 to save no milestones",
    ),
    excludes("benchmark", "serial_mode", "a benchmark measures the processes of a run, and serial mode has none"),
    needs("sampler_only", "benchmark", "only a benchmark samples without training"),
    needs("benchmark_stage", "benchmark", "only a benchmark measures a stage"),
    refuse(
        ("benchmark_stage", "sampler_only"),
        lambda config: config.benchmark.sampler_only and config.benchmark.benchmark_stage in ("env", "learn"),
        "contradicts --sampler_only=True, which is --benchmark_stage=sample: leave one of them out",
    ),
    excludes("autotune", "serial_mode", "in serial mode everything is one process, so there is nothing to tune"),
    refuse(
        ("autotune", "benchmark_stage", "sampler_only"),
        lambda config: config.tuning.autotune and config.benchmark.stage in ("env", "learn"),
        "finds settings for whole runs and for sampling, and --benchmark_stage={benchmark_stage} measures neither: "
        "leave one of the two out",
    ),
    needs("autotune_batch", "autotune", "only autotune tries batch sizes"),
)

_NOT_REMOTE: tuple[Refused, ...] = (
    ("async_rl", operator.not_, "waits for a round of actors that are all here; use --async_rl=True"),
    ("serial_mode", bool, "has no process that they could join"),
    ("num_policies", lambda value: value != 1, "is not made for them: they play one policy"),
    ("opponent_pool", bool, "is not made for them: they have no past versions"),
    ("pbt_dir", bool, "is not made for them: they play for one run"),
    ("benchmark", bool, "measures this machine alone"),
    ("autotune", bool, "tunes to this machine alone"),
)

REMOTE_RULES = (
    refuse(
        ("num_workers", "remote_actors_port"),
        lambda config: not config.sampling.num_workers and not config.sampling.remote_actors_port,
        "must be 1 or more; 0 is for runs with remote actors alone (--remote_actors_port=PORT)",
    ),
    *idle_unless(("remote_actors_host", "remote_actors_token_file"), "remote_actors_port", value=5555),
    refuse(
        ("remote_actors_port", "remote_actors_token_file"),
        lambda config: bool(config.sampling.remote_actors_port) and not config.sampling.remote_actors_token_file,
        "without a secret anyone could join: add --remote_actors_token_file=FILE, a file with a secret that remote "
        "actors have, too; python -c 'import secrets; print(secrets.token_hex())' prints one",
    ),
    *refuse_each(
        _NOT_REMOTE,
        lambda config: bool(config.sampling.remote_actors_port),
        "with remote actors (--remote_actors_port={remote_actors_port}) it {why}",
        "remote_actors_port",
    ),
)

START_ONE_RANK = "start one rank, without torchrun and --learner_devices"
_OF_ONE_RANK: tuple[Refused, ...] = (
    ("serial_mode", bool, "is one process"),
    ("num_policies", lambda value: value != 1, "is not made for them: all train one policy"),
    ("pbt_dir", bool, "is not made for them: a member is a run of one rank"),
    ("benchmark", bool, "measures one of them"),
    ("autotune", bool, "would tune each by itself"),
    ("opponent_pool", bool, "is a pool of each by itself"),
    ("torch_compile", bool, "would compile sums over ranks"),
    ("rnd", bool, "would normalize bonuses by the data of each"),
    ("minibatch_ring_size", lambda value: value != 1, "would part them at a stop"),
    ("remote_actors_port", bool, "would send remote actors to one of them"),
    ("max_restarts", bool, "would restart one of them; torchrun --max-restarts restarts all"),
)

# Of runs of several ranks alone.
RANK_RULES = (
    *refuse_each(
        _OF_ONE_RANK, lambda config: True, f"with several ranks it {{why}}: leave it out, or {START_ONE_RANK}"
    ),
    *refuse_each(
        (("lr_schedule", KL_ADAPTIVE.__contains__, ""), ("kl_target", bool, "")),  # see NOTE [Local updates]
        lambda config: config.learner.sync_every > 1,
        "each of several ranks would adapt it to its own data (--sync_every={sync_every}): leave one of the two out",
        "sync_every",
    ),
)

SAMPLING_RULES = (
    multiple_of("num_envs_per_worker", "worker_num_splits"),
    *(_one_per_process(flag) for flag in ("num_envs_per_worker", "worker_num_splits", "num_workers")),
    multiple_of("batch_size", "rollout"),
    Rule(("recurrence", "rollout"), _recurrence),
    Rule(
        ("async_rl", "batch_size", "num_batches_per_epoch", "num_workers", "num_envs_per_worker", "rollout"),
        lambda config: rounds_misfit(config, agents=1),
    ),
    refuse(
        ("policy_workers_per_policy", "inference"),
        lambda config: config.sampling.inference == "local" and config.sampling.policy_workers_per_policy > 1,
        "with --inference=local there are no policy workers: leave it at 1, or use --inference=central",
    ),
    refuse(
        ("policy_workers_per_policy", "num_workers", "inference"),
        lambda config: (
            config.sampling.inference != "local"
            and config.sampling.policy_workers_per_policy > max(1, config.sampling.num_workers)
        ),
        "must be at most num_workers ({num_workers}): each actor is served by one policy worker, the rest would idle",
    ),
    refuse(
        ("policy_workers_per_policy", "serial_mode"),
        lambda config: config.run.serial_mode and config.sampling.policy_workers_per_policy > 1,
        "must be 1 in serial mode, where everything runs one after the other",
    ),
    refused_where_collection_waits("max_sample_requests_in_flight_per_worker", "it must be 0"),
    needs(
        "continuous_tanh_scale",
        "adaptive_stddev",
        "a standard deviation from the network could not follow the squashed mean",
        operator.not_,
        value=False,
    ),
    needs("continuous_distribution", "normalize_actions", "the tanh of an action is between -1 and 1"),
    needs("normalize_input_keys", "normalize_input", "has no effect with --normalize_input=False"),
    needs("normalize_input_clip", "normalize_input", "has no effect with --normalize_input=False"),
    refuse(
        ("obs_resize",),
        lambda config: len(config.wrappers.obs_resize) not in (0, 2),
        "must be two numbers, height and width, for example --obs_resize 84 84",
    ),
    *(_wraps_one(field.name) for field in dataclasses.fields(WrapperConfig) if field.name != "wrapper"),
    *(
        excludes("flatten_obs", keys, f"leaves one observation, of which --{keys} cannot choose")
        for keys in ("obs_keys", "ignore_obs_keys", "actor_obs_keys")
    ),
)
