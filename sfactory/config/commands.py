"""Command lines of the commands beside train: flags as a dataclass, and the settings of most.

They work on saved runs, which have a config.json, or start runs with flags of their own; train takes none of these.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from sfactory.config.argv import say_arguments, scan
from sfactory.config.field import flag
from sfactory.config.flags import Flag, assigned, config_of, did_you_mean, flags_of, shown
from sfactory.config.help_text import called_as, command_help
from sfactory.config.run_rules import experiment_of
from sfactory.config.saved_config import PAGE_NAME, list_of_runs, run_dirs
from sfactory.config.sections.sampling import WrapperConfig
from sfactory.config.validation import find_problems, value_problem
from sfactory.errors import ConfigError

# Flags that say where the run is; train's rules for their values hold here, too.
_WHERE = ("experiment", "train_dir")
_INSTEAD_OF_A_RUN = ("policy_file", "load_from_hub")  # flags that give a policy without a run

# Flags that do not go together, or have a form of their own: the flag to blame, the problem, the other flags.
Clash = tuple[str, str, tuple[str, ...]]
Settings = TypeVar("Settings")


class Command(Generic[Settings]):
    """The command line of ``python -m sfactory.<name>``. ``kind``: the dataclass of its ``flags``."""

    def __init__(
        self,
        kind: type[Settings],
        name: str,
        about: str,
        clashes: Callable[[Settings], Iterable[Clash]],
        usage: str = "--experiment=NAME",
    ) -> None:
        """``about``: what ``--help`` says the command does; ``usage``: what its command line begins with."""
        self.flags: Mapping[str, Flag] = types.MappingProxyType(flags_of(name, kind))
        self._kind, self._clashes = kind, clashes
        self._help = name, usage, about

    def read(self, argv: Sequence[str], problems: Sequence[str] = ()) -> Settings:
        """The settings that ``argv`` (without the program's name) asks for.

        Raises ConfigError with every problem, those in ``problems`` first. With ``--help`` prints the flags to stdout
        and raises SystemExit(0), whatever else is wrong.
        """
        line = scan(argv, self.flags)
        if line.help is not None:
            print(command_help(*self._help, self.flags.values()), end="", flush=True)
            raise SystemExit(0)
        settings = self._kind(**line.values)
        if "env_kwargs" in self.flags:
            say_arguments(line, str(line.values.get("env", "")))
        if found := [*problems, *line.problems, *self._value_problems(settings, line.broken)]:
            raise ConfigError(found)
        return settings

    def _value_problems(self, settings: Settings, broken: set[str]) -> list[str]:
        """Problems of the values that could be read."""
        values = {name: getattr(settings, name) for name in self.flags}
        problems = [
            f"{assigned(name, values[name])}: {text}"
            for name, known in self.flags.items()
            if name not in broken and (text := value_problem(known, values[name])) is not None
        ]
        problems += [
            f"{assigned(name, values[name])}: {text}"
            for name, text, others in self._clashes(settings)
            if not broken.intersection((name, *others))
        ]
        given_otherwise = any(values.get(name) for name in _INSTEAD_OF_A_RUN)
        if values.get("experiment") == "" and not given_otherwise and "experiment" not in broken:
            problems.append(_which_run(str(values.get("env", "")), Path(str(values.get("train_dir", "")))))
        where = {name: values[name] for name in _WHERE if name in values}
        return problems + [p.text for p in find_problems(config_of(where), broken) if p.flags[0] in where]


def _words_before_flags(argv: Sequence[str]) -> list[str]:
    return list(takewhile(lambda token: not token.startswith("-"), argv))


def _which_run(env: str, train_dir: Path) -> str:
    """The problem of a line that names no run: the run that train named after the ``env``, or what there is."""
    named = experiment_of(env)
    meant = f"did you mean {assigned('experiment', named)}?" if named and (train_dir / named).is_dir() else ""
    there = meant or (list_of_runs(train_dir) if train_dir.is_dir() else f"there is no {train_dir}")
    return f"--experiment: of which run? give its name, --experiment=NAME; {there}"


@dataclass(frozen=True)
class PolicyFlags:
    """Which policy of which run to load, at which checkpoint."""

    experiment: str = flag("", "name of the run")
    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment", path=True)
    load_checkpoint_kind: Literal["latest", "best", "milestone"] = flag(
        "latest", "checkpoint to load: the newest, the best policy, or the newest milestone (never deleted)"
    )
    checkpoint_env_steps: int | None = flag(
        None, "load the checkpoint of exactly this env step: any kind, or of load_checkpoint_kind if not latest", ge=0
    )
    policy_index: int = flag(0, "policy to load, of a run that trains several", ge=0)
    env: str = flag("", "the run's environment, repeated: needed if it is code, module:name, unless trust_run_dir=True")
    trust_run_dir: bool = flag(False, "True runs the code that config.json of the run names, as module:name")


@dataclass(frozen=True)
class EvaluateConfig(PolicyFlags):
    """Which policy to evaluate, and how."""

    checkpoints: Literal["chosen", "all"] = flag(
        "chosen",
        "all: evaluates every checkpoint of the policy, with the same seed; the result is that of the best, beside the "
        "mean of each",
    )
    episodes: int = flag(100, "whole episodes to play, exactly so many", ge=1, le=10_000_000)
    workers: int = flag(0, "processes that play an equal share each; 0: one per core, and per ten episodes", ge=0)
    env_kwargs: Mapping[str, Any] = flag({}, "keyword arguments for the environment's factory beside the run's")
    eval_deterministic: bool = flag(False, "True takes the most probable action; False samples as training does")
    seed: int | None = flag(None, "seed of environments and actions; drawn at random and reported if not given", ge=0)
    csv: str = flag("", "file to write with a line for each episode, which must not exist yet", path=True)

    def workers_of(self, cores: int) -> int:
        """How many processes play."""
        return min(self.workers or min(cores, -(-self.episodes // 10)), self.episodes)


def _evaluate_clashes(config: EvaluateConfig) -> Iterator[Clash]:
    if config.csv and (Path(config.csv).exists() or not Path(config.csv).absolute().parent.is_dir()):
        yield "csv", "exists already, or is in no folder that exists; give another name", ()
    if config.checkpoints == "all" and (config.checkpoint_env_steps, config.load_checkpoint_kind) != (None, "latest"):
        yield "checkpoints", "evaluates all: leave --checkpoint_env_steps and --load_checkpoint_kind out", ()


_EVALUATE = Command(
    EvaluateConfig,
    "evaluate",
    "Plays episodes with a checkpoint of a run in several processes, and reports mean, deviation, interquartile mean "
    "and their 95% intervals.",
    _evaluate_clashes,
)
evaluate_flags, read_evaluate_line = _EVALUATE.flags, _EVALUATE.read

ENDINGS: Mapping[str, str] = types.MappingProxyType(
    {"safetensors": ".safetensors", "onnx": ".onnx", "torch_export": ".pt2", "numpy": ".npz"}
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ExportConfig(PolicyFlags):
    """Which policy to export, in which format, and where to."""

    format: Literal["safetensors", "onnx", "torch_export", "numpy"] = flag(
        "safetensors",
        "safetensors: the weights with their description; onnx, torch_export: the acting policy as a function of "
        "observations; numpy: an MLP policy as arrays, and beside them a module that acts by NumPy alone",
    )
    out: str = flag(
        "",
        "file to write, which must not exist yet; its name ends in .safetensors, .onnx, .pt2 or .npz, as the format "
        "is; empty: the run's name with that ending, in the current directory, or none if push_to_hub is given",
        path=True,
    )
    push_to_hub: str = flag(
        "", "repository of the Hugging Face Hub, USER/NAME, that the weights are uploaded to, with a model card"
    )


def repository_problem(name: str) -> str | None:
    """What is wrong with the name of a repository of the Hugging Face Hub; None if nothing is."""
    return None if not name or _REPOSITORY.fullmatch(name) else "must be of the form USER/NAME"


def _export_clashes(config: ExportConfig) -> Iterator[Clash]:
    name, ending = Path(config.out).name, ENDINGS[config.format]
    if config.out and (not name.endswith(ending) or name == ending or "\0" in config.out):
        other = next((kind for kind, end in ENDINGS.items() if name.endswith(end) and kind != config.format), None)
        advice = f", or say --format={other}" if other else ""
        yield "out", f"must be a file with a name that ends in {ending}, --out=cartpole{ending}{advice}", ("format",)
    if text := repository_problem(config.push_to_hub):
        yield "push_to_hub", text, ()
    if config.push_to_hub and config.format != "safetensors":
        yield "push_to_hub", "weights go to the Hub as safetensors; leave out --format", ("format",)


_EXPORT = Command(
    ExportConfig,
    "export",
    "Writes the policy of a checkpoint into a file for other programs, or onto the Hugging Face Hub.",
    _export_clashes,
)
export_flags, read_export_line = _EXPORT.flags, _EXPORT.read

_RUNS = "RUN is the folder of a run or of several, or its name in --train_dir."
SUFFIXES = (".svg", ".png")
POPULATION, CURVES, COMPARE = "population", "curves", "compare"
VERSUS = "vs"  # between the two groups of runs that are compared
_PICTURES = {POPULATION: "RUN", CURVES: "RUN ...", COMPARE: f"RUN ... {VERSUS} RUN ..."}  # and the words after each


@dataclass(frozen=True)
class PlotConfig:
    """Which picture of which runs to draw, and into which file."""

    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment", path=True)
    out: str = flag(
        "", "file to write, .svg or .png; empty: population.svg of the run, or curves.svg, compare.svg", path=True
    )
    metric: str = flag("train/episode_return_mean", "what curves and compare draw: a name in metrics.jsonl")
    over: Literal["env_steps", "frames", "minutes"] = flag(
        "env_steps", "their horizontal axis; minutes are of training"
    )
    label: str = flag("", "text of their vertical axis; empty: what the metric is")


class Plot(NamedTuple):
    """A picture (a key of _PICTURES) of runs, in two groups where they are compared, drawn into ``out``."""

    picture: str
    groups: tuple[tuple[Path, ...], ...]
    out: Path
    settings: PlotConfig


def _plot_clashes(config: PlotConfig) -> Iterator[Clash]:
    if config.out and not config.out.endswith(SUFFIXES):
        yield "out", f"must be a file with a name that ends in {' or '.join(SUFFIXES)}", ()


_PLOT = Command(
    PlotConfig,
    "plot",
    "population draws the returns of every member, which policy replaced which, and each hyperparameter over time; of "
    "a population of runs RUN is the --pbt_dir. "
    "curves draws runs, those that differ in nothing but the seed as one interquartile mean in its 95% interval. "
    f"compare draws two groups of runs, with {VERSUS} between them, and how probable it is that one is better. {_RUNS}",
    _plot_clashes,
    usage=" | ".join(f"{picture} {words}" for picture, words in _PICTURES.items()),
)
plot_flags = _PLOT.flags


def read_plot_line(argv: Sequence[str]) -> Plot:
    """The plot that ``argv`` asks for: words, then flags; otherwise as ``Command.read``."""
    given = _words_before_flags(argv)
    settings = _PLOT.read(argv[len(given) :], _picture_problems(given))
    picture, *words = given
    at = words.index(VERSUS) if picture == COMPARE else len(words)
    of_population = picture == POPULATION
    sides = [side for side in (words[:at], words[at + 1 :]) if side]
    run_dirs(words[:at] + words[at + 1 :], settings.train_dir, of_population, says=False)  # names what is missing
    groups = tuple(tuple(run_dirs(side, settings.train_dir, any_folder=of_population)) for side in sides)
    default = (groups[0][0] if of_population else Path()) / f"{picture}{SUFFIXES[0]}"
    return Plot(picture, groups, Path(settings.out or default), settings)


def _picture_problems(words: Sequence[str]) -> list[str]:
    usages = [f"{called_as('plot')} {picture} {runs} [--out=FILE]" for picture, runs in _PICTURES.items()]
    if not words:
        return [f"what is to be drawn? write {', or '.join(usages)}"]
    picture, *runs = words
    if picture not in _PICTURES:
        near = did_you_mean(picture, list(_PICTURES))
        return [f"{shown(picture)!r} cannot be drawn; there is {', '.join(_PICTURES)}{near}"]
    usage = f"write {usages[list(_PICTURES).index(picture)]}"
    if not runs:
        return [f"of which run? {usage}, where {_RUNS}"]
    if picture == POPULATION:
        return [f"{shown(word)!r}: unexpected; {usage}" for word in runs[1:]]
    separators = [at for at, word in enumerate(runs) if word == VERSUS]
    if picture == COMPARE and (len(separators) != 1 or separators[0] in (0, len(runs) - 1)):
        return [f"which runs are compared with which? {usage}"]
    return []


@dataclass(frozen=True)
class PageConfig:
    """Which page to write of runs, or whether to serve it while they train."""

    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment", path=True)
    out: str = flag("", "HTML file to write; empty: report.html in the run's folder, of several runs here", path=True)
    serve: bool = flag(
        False, "True writes no file: the page is at http://127.0.0.1:PORT, follows the runs, until Ctrl-C"
    )
    port: int = flag(8008, "port of serve, on this machine alone; 0 takes a free one", ge=0, le=65535)


class Page(NamedTuple):
    """A page of runs: written into ``out`` or, if that is None, served at ``port``. find: what ``runs`` are by now."""

    runs: tuple[Path, ...]
    out: Path | None
    port: int
    find: Callable[[], Sequence[Path]]


def _page_clashes(config: PageConfig) -> Iterator[Clash]:
    if config.out and not config.out.endswith(".html"):
        yield "out", "must be a file with a name that ends in .html", ()
    if config.out and config.serve:
        yield "out", "no file is written with --serve=True; leave one of them out", ("serve",)
    if config.port != page_flags["port"].default and not config.serve:
        yield "port", "needs --serve=True", ("serve",)


_PAGE = Command(
    PageConfig,
    "report_page",
    "Writes one HTML file that shows runs: their curves, speed, settings, population, videos and faults. It needs no "
    f"network. {_RUNS}",
    _page_clashes,
    usage="RUN ...",
)
page_flags = _PAGE.flags


def read_page_line(argv: Sequence[str]) -> Page:
    """The page that ``argv`` asks for: words, then flags; otherwise as ``Command.read``."""
    words = _words_before_flags(argv)
    problems = [] if words else [f"of which runs? write {called_as('report_page')} RUN ..., with the name of each"]
    settings = _PAGE.read(argv[len(words) :], problems)
    runs = tuple(run_dirs(words, settings.train_dir))
    folder = runs[0] if len(runs) == 1 else Path()
    out = Path(settings.out) if settings.out else folder / PAGE_NAME
    find = partial(run_dirs, words, settings.train_dir, says=False)
    return Page(runs, None if settings.serve else out, settings.port, find)


@dataclass(frozen=True)
class MatchConfig:
    """Which saved policies play against each other, and how often."""

    train_dir: str = flag("./train_dir", "directory that holds one folder per experiment", path=True)
    episodes: int = flag(
        100, "episodes of each pair of policies, an even number; they change sides after half of them", ge=2
    )
    snapshots: int = flag(
        4, "milestones of each run that also play, spread over its past, if it is named without a policy", ge=0, le=64
    )
    eval_deterministic: bool = flag(False, "True takes the most probable action; False samples as training does")
    seed: int = flag(0, "seed of environment and actions", ge=0)
    env: str = flag("", "the runs' environment, repeated: needed if it is code, module:name, unless trust_run_dir=True")
    trust_run_dir: bool = flag(False, "True runs the code that config.json of the runs names, as module:name")


_MATCH = Command(
    MatchConfig,
    "match",
    "Plays saved policies against each other, and rates them. RUN is the folder of a run, or its name in --train_dir; "
    "RUN:0:best is the best checkpoint of its policy 0, RUN:0:500000 the milestone of that env step.",
    lambda config: (
        [("episodes", "must be even: the policies change sides after half of them", ())] * (config.episodes % 2)
    ),
    usage="RUN[:POLICY[:KIND]] ...",
)
match_flags = _MATCH.flags


def read_match_line(argv: Sequence[str]) -> tuple[list[str], MatchConfig]:
    """The runs and settings that ``argv`` asks for: words, then flags; otherwise as ``Command.read``."""
    words = _words_before_flags(argv)
    problems = [] if words else [f"who plays? write {called_as('match')} RUN ..., with the name of each run"]
    return words, _MATCH.read(argv[len(words) :], problems)


@dataclass(frozen=True)
class CheckConfig(WrapperConfig):
    """Which environment to check, in which wrappers, and for how long."""

    env: str = flag("", "environment: a Gymnasium id, a family name, or module:function")
    env_kwargs: Mapping[str, Any] = flag({}, "keyword arguments for the environment's factory, as a JSON object")
    env_frameskip: int | None = flag(None, "frames per env step; none: 1, or what the environment's family has", ge=1)
    ignore_obs_keys: tuple[str, ...] = flag((), "keys of observations that the network would not read")
    info_action_mask: Literal["auto", "on", "off"] = flag("auto", 'whether info["action_mask"] is read, as in training')
    obs_layout: tuple[str, ...] = flag((), "how observations are read, KEY=LAYOUT, as in training: KEY=mask is kept to")
    steps: int = flag(1000, "env steps to make", ge=1, le=1_000_000)
    seed: int = flag(0, "seed of environment and actions", ge=0)
    reset_timeout_seconds: float = flag(120.0, "time limit of each call of the environment", gt=0)


_CHECK = Command(
    CheckConfig,
    "check_env",
    "Steps an environment in a process of its own; reports what is wrong with it, what it costs, and which flags fit.",
    lambda config: (),
    usage="--env=ENV",
)
check_flags, read_check_line = _CHECK.flags, _CHECK.read
