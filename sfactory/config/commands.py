"""Room: a command beside train. In: a dataclass of its flags, argv. Out: the dataclass, or every problem of the line.

Such a command works on runs that are there, whose own config.json says how environment and network are made, or starts
runs that bring their own flags. So it takes none of train's other flags, and train takes none of its own.

Room: the settings of ``sfactory.export``. In: argv. Out: ``ExportConfig``, or every problem of the line at once.

Room: the command line of ``sfactory.plot``. In: argv. Out: ``PlotConfig``, or every problem of the line at once.
"""

from __future__ import annotations

import dataclasses
import functools
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_type_hints

from sfactory.config.argv import scan
from sfactory.config.field import flag, flag_info
from sfactory.config.flags import Flag, assigned, config_of, did_you_mean, shown, type_text, value_text
from sfactory.config.validation import find_problems, range_text, value_problem
from sfactory.errors import ConfigError

_WIDTH = 110
_INDENT = " " * 6
# Flags that say where the run is; train's rules for their values hold here, too.
_WHERE = ("experiment", "train_dir")
_FORM = "Flags are given as --name=value or --name value, with dashes or underscores; booleans as True or False."

# Flags that do not go together, or have a form of their own: their names, and what is wrong.
Clash = tuple[set[str], str]
Settings = TypeVar("Settings")


class Command(Generic[Settings]):
    """The command line of ``python -m sfactory.<name>``. ``kind``: the dataclass of its flags."""

    def __init__(
        self,
        kind: type[Settings],
        name: str,
        about: str,
        clashes: Callable[[Settings], list[Clash]],
        usage: str = "--experiment=NAME",
    ) -> None:
        """``about``: what ``--help`` says of it; ``usage``: the flag that it cannot do without."""
        self._kind, self._name, self._about, self._clashes, self._usage = kind, name, about, clashes, usage

    @functools.cached_property
    def flags(self) -> Mapping[str, Flag]:
        """Its flags by name."""
        hints = get_type_hints(self._kind)
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self._kind)  # type: ignore[arg-type]
        return types.MappingProxyType(
            {
                field.name: Flag(field.name, self._name, hints[field.name], field.default, flag_info(field))
                for field in fields
            }
        )

    def read(self, argv: Sequence[str], *, prog: str) -> Settings:
        """What ``argv`` (without the program's name) asks for; ``prog`` is the module named in ``--help``.

        Raises ConfigError with every problem there is. With ``--help`` the flags are printed to stdout and
        SystemExit(0) is raised, whatever else is wrong.
        """
        line = scan(argv, self.flags, takes_config=False)
        if line.help:
            print(self._help(prog), end="")
            raise SystemExit(0)
        settings = self._kind(**line.values)
        problems = [*line.problems, *self._value_problems(settings, line.broken)]
        if problems:
            raise ConfigError(problems)
        return settings

    def _value_problems(self, settings: Settings, broken: set[str]) -> list[str]:
        """What is wrong with values that could be read."""
        problems: list[str] = []
        for name, known in self.flags.items():
            value = getattr(settings, name)
            text = None if name in broken else value_problem(known, value)
            if text is not None:
                problems.append(f"{assigned(name, value)}: {text}")
        problems += [text for names, text in self._clashes(settings) if not broken.intersection(names)]
        names = [name for name in _WHERE if name in self.flags]
        where = config_of({name: getattr(settings, name) for name in names})
        return problems + [problem.text for problem in find_problems(where, broken) if problem.flags[0] in names]

    def _help(self, prog: str) -> str:
        lines = [f"usage: python -m {prog} {self._usage} [--flag=value ...]", ""]
        lines += [*textwrap.wrap(f"{self._about} {_FORM}", _WIDTH), ""]
        for known in self.flags.values():
            facts = [f"default {value_text(known.default)}", *filter(None, [range_text(known.info)])]
            text = f"{known.info.help} [{'; '.join(facts)}]"
            lines.append(f"  --{known.name} {type_text(known)}")
            lines += textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        return "\n".join(lines) + "\n"


SUFFIX = ".safetensors"


@dataclass(frozen=True)
class ExportConfig:
    """Which weights to export, and into which file."""

    experiment: str = flag("default_experiment", "name of the run whose weights are exported")
    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment")
    load_checkpoint_kind: Literal["latest", "best", "milestone"] = flag(
        "latest", "checkpoint to export: the newest, the best, or the newest of those that are kept for ever"
    )
    checkpoint_env_steps: int | None = flag(
        None,
        "export exactly the checkpoint of this env step, of any kind, or of the kind that load_checkpoint_kind names "
        "if that is best or milestone",
        ge=0,
    )
    policy_index: int = flag(0, "policy to export, of a run that trains several", ge=0)
    out: str = flag("", "file to write, which does not exist yet; its name ends in .safetensors")


def export_flags() -> Mapping[str, Flag]:
    """The flags of export by name."""
    return _COMMAND.flags


def read_export_line(argv: Sequence[str], *, prog: str) -> ExportConfig:
    """The settings that ``argv`` asks for, see ``Command.read``."""
    return _COMMAND.read(argv, prog=prog)


def _clashes(config: ExportConfig) -> list[Clash]:
    name = Path(config.out).name
    if name.endswith(SUFFIX) and name != SUFFIX and "\0" not in config.out:
        return []
    return [
        ({"out"}, f"{assigned('out', config.out)}: must be a file whose name ends in {SUFFIX}, --out=cartpole{SUFFIX}")
    ]


_COMMAND = Command(
    ExportConfig,
    "export",
    "Writes the weights of a checkpoint into a safetensors file, which holds numbers alone and no code.",
    _clashes,
)


KINDS = ("population",)
SUFFIXES = (".svg", ".png")


@dataclass(frozen=True)
class PlotConfig:
    """Which picture of which run to draw, and into which file."""

    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment")
    out: str = flag("", "file to write, whose name ends in .svg or .png; empty: population.svg in the run's folder")


@dataclass(frozen=True)
class Plot:
    """What is drawn: a picture of ``kind`` of the run in ``run_dir``, into ``out``."""

    kind: str
    run_dir: Path
    out: Path


def read_plot_line(argv: Sequence[str], *, prog: str) -> Plot:
    """What ``argv`` asks for. Raises ConfigError with every problem; --help prints and raises SystemExit(0)."""
    words = []
    for token in argv:
        if token.startswith("-"):
            break
        words.append(token)
    known = plot_flags()
    line = scan(argv[len(words) :], known, takes_config=False)
    if line.help:
        print(_help(prog, known), end="")
        raise SystemExit(0)
    settings = PlotConfig(**{name: str(value) for name, value in line.values.items()})
    problems = [*_word_problems(words, prog), *line.problems]
    if settings.out and not settings.out.endswith(SUFFIXES):
        problems.append(f"{assigned('out', settings.out)}: must be a file whose name ends in {' or '.join(SUFFIXES)}")
    if problems:
        raise ConfigError(problems)
    kind, run = words
    run_dir = _run_dir(run, settings.train_dir)
    return Plot(kind, run_dir, Path(settings.out) if settings.out else run_dir / f"{kind}{SUFFIXES[0]}")


def plot_flags() -> dict[str, Flag]:
    """The flags of plot by name."""
    return {field.name: Flag(field.name, "plot", str, field.default, flag_info(field)) for field in fields(PlotConfig)}


def _word_problems(words: Sequence[str], prog: str) -> list[str]:
    usage = f"write python -m {prog} {KINDS[0]} RUN [--out=FILE]"
    if not words:
        return [f"what is to be drawn? {usage}"]
    if words[0] not in KINDS:
        near = did_you_mean(words[0], KINDS)
        return [f"{shown(words[0])!r}: is nothing that can be drawn; there is {', '.join(KINDS)}{near}"]
    if len(words) == 1:
        return [f"of which run? {usage}, where RUN is its folder, or its name in --train_dir"]
    return [f"{shown(word)!r}: unexpected; {usage}" for word in words[2:]]


def _run_dir(run: str, train_dir: str) -> Path:
    """The folder of that name in ``train_dir``; else the folder itself. Raises ConfigError if there is neither."""
    found = [path for path in (Path(train_dir) / run, Path(run)) if path.is_dir()]
    if found:
        return found[0]
    raise ConfigError([f"there is no run {shown(run)!r}, neither in {train_dir} nor as a folder from {Path.cwd()}"])


def _help(prog: str, known: dict[str, Flag]) -> str:
    lines = [
        f"usage: python -m {prog} population RUN [--flag=value ...]",
        "",
        "Draws a population: returns of every member, who took over from whom, each hyperparameter over time.",
        "RUN is the folder of a run, or its name in --train_dir.",
        "",
    ]
    for each in known.values():
        lines += [f"  --{each.name} text", f"      {each.info.help} [default {value_text(each.default) or 'empty'}]"]
    return "\n".join(lines) + "\n"
