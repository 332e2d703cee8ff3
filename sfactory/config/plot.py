"""Room: the command line of ``sfactory.plot``. In: argv. Out: ``PlotConfig``, or every problem of the line at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from sfactory.config.argv import scan
from sfactory.config.flag import flag, flag_info
from sfactory.config.flags import Flag, assigned, did_you_mean, shown, value_text
from sfactory.errors import ConfigError

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
