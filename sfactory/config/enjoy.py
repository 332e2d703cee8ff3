"""Room: the settings of ``sfactory.enjoy``. In: argv. Out: ``EnjoyConfig``, or every problem of the line at once.

They are no part of ``Config``: the run's own config.json says how its environment and network are made, so enjoy
takes none of train's other flags, and train takes none of these.
"""

from __future__ import annotations

import dataclasses
import functools
import textwrap
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from sfactory.config.argv import scan
from sfactory.config.check import find_problems, range_text, value_problem
from sfactory.config.flags import Flag, assigned, config_of, type_text, value_text
from sfactory.config.schema import flag, flag_info
from sfactory.errors import ConfigError

_WIDTH = 110
_INDENT = " " * 6
# Flags that say where the run is; train's rules for their values hold here, too.
_WHERE = ("experiment", "train_dir")


@dataclass(frozen=True)
class EnjoyConfig:
    """Which run to play, how, and for how long."""

    experiment: str = flag("default_experiment", "name of the run to play")
    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment")
    load_checkpoint_kind: Literal["latest", "best"] = flag("latest", "checkpoint to play")
    max_num_episodes: int = flag(20, "whole episodes to play", ge=1)
    max_num_frames: int = flag(
        1_000_000_000,
        "stop after this many frames (env steps x env_frameskip); an episode cut off does not count",
        ge=1,
    )
    eval_deterministic: bool = flag(
        False, "True takes the most probable action, False draws actions at random as training does"
    )
    seed: int | None = flag(None, "seed of environment and actions; drawn at random and reported if not given", ge=0)


@functools.cache
def enjoy_flags() -> Mapping[str, Flag]:
    """The flags of enjoy by name."""
    hints = get_type_hints(EnjoyConfig)
    return types.MappingProxyType(
        {
            field.name: Flag(field.name, "enjoy", hints[field.name], field.default, flag_info(field))
            for field in dataclasses.fields(EnjoyConfig)
        }
    )


def read_enjoy_line(argv: Sequence[str], *, prog: str) -> EnjoyConfig:
    """The settings that ``argv`` (without the program's name) asks for; ``prog`` is the module named in ``--help``.

    Raises ConfigError with every problem there is. With ``--help`` the flags are printed to stdout and
    SystemExit(0) is raised, whatever else is wrong.
    """
    line = scan(argv, enjoy_flags(), takes_config=False)
    if line.help:
        print(_help(prog), end="")
        raise SystemExit(0)
    values: dict[str, Any] = line.values
    config = EnjoyConfig(**values)
    problems = [*line.problems, *_value_problems(config, line.broken)]
    if problems:
        raise ConfigError(problems)
    return config


def _value_problems(config: EnjoyConfig, broken: set[str]) -> list[str]:
    """What is wrong with values that could be read."""
    problems: list[str] = []
    for name, known in enjoy_flags().items():
        value = getattr(config, name)
        text = None if name in broken else value_problem(known, value)
        if text is not None:
            problems.append(f"{assigned(name, value)}: {text}")
    where = config_of({name: getattr(config, name) for name in _WHERE})
    return problems + [problem.text for problem in find_problems(where, broken) if problem.flags[0] in _WHERE]


def _help(prog: str) -> str:
    lines = [
        f"usage: python -m {prog} --experiment=NAME [--flag=value ...]",
        "",
        "Plays whole episodes with a checkpoint of a run. Flags are given as --name=value or --name value, with",
        "dashes or underscores; booleans as True or False. Environment and network are those of the run.",
        "",
    ]
    for known in enjoy_flags().values():
        facts = [f"default {value_text(known.default)}", *filter(None, [range_text(known.info)])]
        text = f"{known.info.help} [{'; '.join(facts)}]"
        lines.append(f"  --{known.name} {type_text(known)}")
        lines += textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines) + "\n"
