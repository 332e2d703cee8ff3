"""Reads command lines, and writes flags as the words of a command line.

The forms are ``--name=value`` and ``--name value``, with dashes or underscores; lists are separated by spaces.
Nothing is abbreviated and nothing is positional, so every token has one meaning. For names of flags of RLlib and
Sample Factory 1 that are not ours, errors give our name; docs/flags.md maps all of their flags.
"""

from __future__ import annotations

import itertools
import numbers
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sfactory.config.field import FlagInfo
from sfactory.config.flags import Flag, Reading, did_you_mean, shown, value_text
from sfactory.errors import ConfigError

# Names that other software has for our flags, by our flags.
_NAMES_OF_ANCESTORS: Mapping[str, Mapping[str, str]] = {
    "RLlib": {
        "num_epochs": "num_sgd_iter circular_buffer_iterations_per_batch",
        "batch_size": "sgd_minibatch_size minibatch_size train_batch_size train_batch_size_per_learner",
        "rollout": "rollout_fragment_length",
        "minibatch_ring_size": "minibatch_buffer_size circular_buffer_num_batches",
        "replay_slots": "replay_buffer_num_slots",
        "publish_interval": "broadcast_interval",
        "num_batches_to_accumulate": "learner_queue_size",
        "learner_starvation_timeout_sec": "learner_queue_timeout",
        "num_gpu_slots": "num_multi_gpu_tower_stacks num_data_loader_buffers",
        "num_loader_threads": "num_data_load_threads num_gpu_loader_threads",
        "num_batchers": "num_aggregation_workers num_aggregator_actors_per_learner",
        "optimizer": "opt_type",
        "max_grad_norm": "grad_clip",
        "rmsprop_alpha": "decay",
        "rmsprop_momentum": "momentum",
        "rmsprop_eps": "epsilon",
        "learning_rate": "lr",
        "exploration_loss_coeff": "entropy_coeff",
        "exploration_loss_coeff_schedule": "entropy_coeff_schedule",
        "value_loss_coeff": "vf_loss_coeff",
        "with_vtrace": "vtrace use_gae",
        "vtrace_rho": "vtrace_clip_rho_threshold",
        "vtrace_pg_rho": "vtrace_clip_pg_rho_threshold",
        "separate_value_optimizer": "_separate_vf_optimizer",
        "value_lr": "_lr_vf",
        "report_interval_sec": "min_time_s_per_reporting min_time_s_per_iteration min_iter_time_s",
        "num_workers": "num_env_runners num_rollout_workers",
        "num_envs_per_worker": "num_envs_per_env_runner",
        "actor_worker_gpus": "num_gpus_per_worker num_gpus_per_env_runner",
        "eval_interval_sec": "evaluation_interval",
        "eval_workers": "evaluation_num_workers evaluation_num_env_runners",
        "eval_episodes": "evaluation_num_episodes evaluation_duration",
        "max_sample_requests_in_flight_per_worker": "max_requests_in_flight_per_env_runner",
        "target_update_interval": "target_network_update_freq",
        "target_worker_clip": "target_worker_clipping",
        "target_tau": "tau",
        "kl_loss_coeff": "kl_coeff use_kl_loss",
        "gae_lambda": "lambda lambda_",
        "device": "num_gpus",
        "ppo_clip_ratio": "clip_param",
        "ppo_clip_value": "vf_clip_param",
    },
    "Sample Factory 1": {
        "num_batches_per_epoch": "num_batches_per_iteration",
        "num_epochs": "ppo_epochs",
        "num_batches_to_accumulate": "num_minibatches_to_accumulate",
        "exploration_loss_coeff": "entropy_loss_coeff",
        "actor_worker_gpus": "sampler_worker_gpus",
        "benchmark_seconds": "timeout_seconds",
        "min_traj_buffers_per_worker": "traj_buffers_excess_ratio",
        "encoder_conv_mlp_layers": "encoder_extra_fc_layers",
        "rnn_size encoder_mlp_layers encoder_conv_mlp_layers": "hidden_size",
    },
}
# (software that has the flag, our flags), by its name.
ANCESTOR_FLAGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    name: (software, tuple(ours.split()))
    for software, groups in _NAMES_OF_ANCESTORS.items()
    for ours, names in groups.items()
    for name in names.split()
}


def ancestor_hint(name: str, known: Collection[str], prefix: str = "") -> str:
    """``is RLlib's name; here it is --num_epochs`` (with ``prefix`` ``--``), or "" for other names.

    known: the flags that may be used in place of ``name``.
    """
    software, ours = ANCESTOR_FLAGS.get(name, ("", ()))
    here = [prefix + each for each in ours if each in known]
    return f"is {software}'s name; here it is {' or '.join(here)}" if here else ""


CONFIG_FLAG = "config"
# A setting of the command line, not of the run.
CONFIG = Flag(CONFIG_FLAG, "", str, "flags.yaml", FlagInfo("file of flags"))


@dataclass
class CommandLine(Reading):
    """The content of a command line."""

    help: bool = False


def scan(argv: Sequence[str], flags: Mapping[str, Flag]) -> CommandLine:
    """Read all of ``argv`` by ``flags``; problems are collected, never raised."""
    line = CommandLine()
    seen: dict[str, str] = {}
    position = 0
    while position < len(argv):
        token = argv[position]
        position += 1
        if token in ("--help", "-h"):
            line.help = True
            continue
        if not token.startswith("--") or token.lstrip("-")[:1] in ("", "="):
            line.problems.append(_stray(token, argv[position - 2] if position > 1 else "", flags))
            continue
        typed, equals, text = token[2:].partition("=")
        name = typed.replace("-", "_")
        words = [text] if equals else _following(argv[position:], flags.get(name))
        position += 0 if equals else len(words)
        if name not in flags:
            line.problems.append(_unknown(typed, name, flags))
        elif name in seen:
            twice = f"{seen[name]}, then {shown(' '.join(words))}"
            line.problems.append(f"--{name}: given more than once ({twice}); give it once")
            line.broken.add(name)
        else:
            seen[name] = shown(" ".join(words))
            if words:
                line.take(flags[name], " ".join(words))
            else:
                line.problems.append(f"--{name}: needs a value{_value_advice(flags[name])}")
                line.broken.add(name)
    return line


def _following(tokens: Sequence[str], flag: Flag | None) -> list[str]:
    """The tokens that belong to the flag before them: one, or all before the next flag if it may take a list."""
    # A single dash begins a negative number, never a flag.
    words = list(itertools.takewhile(lambda token: not token.startswith("--"), tokens))
    return words if flag is None or flag.is_list else words[:1]


def _value_advice(flag: Flag) -> str:
    if flag.type is bool:
        return f": --{flag.name}=True or --{flag.name}=False"
    if flag.is_list:
        return f": {flag.example()}, or --{flag.name}= for an empty list"
    if flag.choices:
        return f", one of {', '.join(flag.choices)}"
    return f": --{flag.name}=..." if flag.default == "" else f", for example {flag.example()}"


def _unknown(typed: str, name: str, known: Collection[str]) -> str:
    hint = ancestor_hint(name, known, prefix="--")
    if hint:
        return f"--{shown(typed)}: {hint}"
    positive = name.removeprefix("no_")
    if positive != name and positive in known:
        return f"--{shown(typed)}: unknown flag; switch it off with --{positive}=False"
    near = did_you_mean(name, [*known, "help"], prefix="--")
    return f"--{shown(typed)}: unknown flag{near or '; --help lists all flags'}"


def _stray(token: str, before: str, flags: Mapping[str, Flag]) -> str:
    bare, equals, _ = token.lstrip("-").partition("=")
    name = bare.replace("-", "_")
    if name in flags and (equals or token.startswith("-")):
        return f"{shown(token)}: flags begin with two dashes: --{shown(token.lstrip('-'))}"
    owner, owner_equals, value = before.removeprefix("--").partition("=")
    owner = owner.replace("-", "_")
    if owner_equals and owner in flags and flags[owner].is_list:
        return f"{shown(token)!r}: unexpected; write a list as --{owner} {shown(f'{value} {token}')}"
    return f"{shown(token)!r}: unexpected; every setting is given as --name=value"


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def words_of(values: Mapping[str, object]) -> list[str]:
    """The words that set these flags. Lists and tuples become lists, mappings JSON objects, None ``none``.

    Raises ConfigError with a line for each value that no flag can have. Does not check that such flags exist and take
    these values.
    """
    words: list[str] = []
    problems: list[str] = []
    for name, value in values.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(f"{shown(repr(name))}: must be the name of a flag, without its dashes")
        elif not _is_plain(value):
            kind = type(value).__qualname__
            problems.append(
                f"--{name}: a {kind} cannot be given; give a bool, a number, text, a list, a mapping or None"
            )
        else:
            words += assignment(name, value)
    if problems:
        raise ConfigError(problems)
    return words


def assignment(name: str, value: object) -> list[str]:
    """The words that set one flag."""
    if isinstance(value, list | tuple) and value:
        return [f"--{name}", *(value_text(element) for element in value)]
    return [f"--{name}={value_text(tuple(value) if isinstance(value, list) else value)}"]


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(element) and not isinstance(element, list | tuple | Mapping) for element in value)
    return value is None or isinstance(value, bool | numbers.Real | str | os.PathLike | Mapping)
