"""Formats what ``--help`` shows."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import get_type_hints

from sfactory.config.argv import CONFIG, PRINT_CONFIG
from sfactory.config.flags import Flag, all_flags, did_you_mean, shown, type_text, value_text
from sfactory.config.schema import Config
from sfactory.errors import ConfigError

_NARROWEST, _WIDEST = 80, 110
_INDENT = " " * 6
_MEANINGS_AT = 34  # column of the meanings in the short help
# The flags of the short help: what most runs set.
ESSENTIAL = (
    *("env", "env_kwargs", "experiment", "train_dir", "seed", "device"),
    *("train_for_env_steps", "train_for_seconds", "num_workers", "num_envs_per_worker"),
    *("rollout", "batch_size", "num_epochs", "learning_rate", "gamma", "exploration_loss_coeff"),
    *("encoder_mlp_layers", "use_rnn", "eval_interval_sec", "autotune"),
)
_FORM = (
    "Flags are given as --name=value or --name value, with dashes or underscores; booleans as True or False (or alone, "
    "for True); whole numbers also as 10k, 2.5M or 1e6"
)
_FORM_OF_TRAIN = (
    f"{_FORM}; lists as --name 64 64. No flag can be abbreviated. Of several sources the last one wins: the defaults "
    "below, the saved run that is resumed, the file given with --config, the command line."
)
_CONFIG = f"--{CONFIG.name} FILE"
_USAGE = "usage: {} --env=ENV [--flag=value ...]"
_SUBCOMMANDS = {"report_page": "report", "launcher": "launch"}  # those with other names than their modules
_ABOUT = (
    "Trains a policy in the environment ENV. The run is kept in ./train_dir/EXPERIMENT, and the same command resumes "
    f"it. {_FORM}."
)


def train_help(topic: str = "", family: str | None = None, family_defaults: Mapping[str, object] | None = None) -> str:
    """The flags of train: the most important ones, or those that ``topic`` names: all, a section, or one flag.

    family_defaults: what the env family ``family`` sets for the environment. Raises ConfigError for another topic.
    """
    sections, flags, width = get_type_hints(Config), all_flags(), _width()
    defaults, origin = family_defaults or {}, f", from env family {family}"

    def described(flag: Flag) -> list[str]:
        if flag.name in defaults:
            return _flag_lines(flag, defaults[flag.name], width, origin)
        return _flag_lines(flag, flag.default, width)

    if not topic:
        return _short_help({flag.name: flag.default for flag in flags.values()} | dict(defaults), width)
    if topic in flags and topic not in sections:
        return "\n".join(described(flags[topic])) + "\n"
    if topic != "all" and topic not in sections:
        near = did_you_mean(topic, [*sections, *flags, "all"], prefix="--help=")
        there_are = f"there are all, {', '.join(sections)}, and the names of flags"
        raise ConfigError([f"--help={shown(topic)}: neither a section nor a flag{near or f'; {there_are}'}"])
    lines = [_USAGE.format(called_as("train")), "", *textwrap.wrap(_FORM_OF_TRAIN, width)]
    if topic == "all":
        lines += ["", f"  {_CONFIG}", _INDENT + CONFIG.info.help]
        lines += ["", f"  --{PRINT_CONFIG.name}", _INDENT + PRINT_CONFIG.info.help]
    for section in sections if topic == "all" else [topic]:
        lines += ["", *textwrap.wrap(f"{section}: {(sections[section].__doc__ or '').strip()}", width)]
        lines += [line for flag in flags.values() if flag.section == section for line in described(flag)]
    return "\n".join(lines) + "\n"


def _short_help(defaults: Mapping[str, object], width: int) -> str:
    """A paragraph, the ESSENTIAL flags, and where to find the others."""
    flags, rows = all_flags(), dict[str, str]()
    for name in ESSENTIAL:
        default = value_text(defaults[name])
        meaning = flags[name].info.help.partition(";")[0]
        rows[f"--{name} {type_text(flags[name])}"] = meaning + (f" [{shown(default)}]" if default else "")
    rows |= {
        _CONFIG: CONFIG.info.help,
        "--help=all": f"all {len(flags)} flags",
        "--help=SECTION": f"those of one section: {', '.join(get_type_hints(Config))}",
        "--help=FLAG": "all about one flag; with --env, its default there",
    }
    lines = [_USAGE.format(called_as("train")), "", *textwrap.wrap(_ABOUT, width), ""]
    for head, meaning in rows.items():
        first, *others = textwrap.wrap(meaning, width - _MEANINGS_AT, break_on_hyphens=False)
        lines += [f"{f'  {head} ':<{_MEANINGS_AT}}{first}", *(" " * _MEANINGS_AT + line for line in others)]
    return "\n".join(lines) + "\n"


def called_as(module: str) -> str:
    """What a user types for the command of ``sfactory.<module>``, in the form in which this process was started."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    started = "" if spec is None else spec.name
    if started == f"sfactory.{module}":
        return f"python -m {started}"
    prefix = "python -m " if started == "sfactory.__main__" else ""
    return f"{prefix}sfactory {_SUBCOMMANDS.get(module, module.replace('_', '-'))}"


def command_help(module: str, usage: str, about: str, flags: Iterable[Flag]) -> str:
    """The flags of another command. ``usage``: its required words. ``about``: what the command does."""
    width = _width()
    lines = [
        f"usage: {called_as(module)} {usage} [--flag=value ...]",
        "",
        *textwrap.wrap(f"{about} {_FORM}.", width),
        "",
    ]
    for flag in flags:
        lines += _flag_lines(flag, flag.default, width)
    return "\n".join(lines) + "\n"


def _width() -> int:
    """Columns of the terminal, within what reads well."""
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)


def _flag_lines(flag: Flag, default: object, width: int, origin: str = "") -> list[str]:
    """The flag's type, meaning, default (and where that comes from) and range."""
    facts = f"default {shown(value_text(default)) or 'empty'}{origin}"
    if accepted := flag.info.range_text():
        facts += f"; {'each ' if flag.is_list else ''}{accepted}"
    text = f"{flag.info.help} [{facts}]"
    body = textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
    choices = type_text(flag).replace("|", "| ")  # so that lines end between them
    head = textwrap.wrap(f"  --{flag.name} {choices}", width, subsequent_indent=_INDENT, break_on_hyphens=False)
    return [*(line.replace("| ", "|") for line in head), *body]
