"""Room: what is to be run. In: command lines and what varies in them. Out: named runs, or every problem there is.

from sfactory.launch.run_description import Experiment, RunDescription
from sfactory.launch.param_search import ParamGrid, seeds

RUNS = RunDescription(
    "cartpole",
    [Experiment("gamma", "--env=CartPole-v1", ParamGrid([("seed", seeds(3)), ("gamma", [0.9, 0.99])]))],
)

Room: where a description comes from. In: ``--run``. Out: a ``RunDescription``, or every problem that there is.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sfactory.config.argv import words_of
from sfactory.config.flags import assigned, did_you_mean, value_text
from sfactory.config.import_strings import Unresolved, described, find_object
from sfactory.errors import ConfigError, named
from sfactory.launch.param_search import (
    Choice,
    Distribution,
    IntUniform,
    Key,
    LogUniform,
    Parameters,
    ParamGrid,
    ParamList,
    RandomSearch,
    Uniform,
)

MODULE = "sfactory.train"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME = 100  # that an experiment may have
_HASH_DIGITS = 8


class Planned(NamedTuple):
    """One run: its name, the flags of its trainer, and variables of its environment."""

    name: str
    words: tuple[str, ...]
    env_vars: Mapping[str, str]


@dataclass(frozen=True)
class Experiment:
    """A command line, what varies in it, and the environment variables of its runs.

    cmd: flags of sfactory.train, as text or as words; ``python -m sfactory.train`` may stand before them.
    """

    base_name: str
    cmd: str | Sequence[str]
    param_generator: Parameters = field(default_factory=ParamList)
    env_vars: Mapping[str, str] = field(default_factory=dict)

    def runs(self, suffix: str = "") -> list[Planned]:
        """Its runs, with ``suffix`` after each name; raises ConfigError."""
        problems: list[str] = []
        if not isinstance(self.base_name, str) or not _NAME.fullmatch(self.base_name):
            problems.append("its name must be of letters, digits, '.', '_' or '-', and begin with a letter or digit")
        words: list[str] = []
        try:
            words = _flag_words(self.cmd)
        except ValueError as error:
            problems.append(f"cmd: {error}")
        problems += _variable_problems(self.env_vars)
        problems += _generator_problems(self.param_generator)
        planned: list[Planned] = []
        if not problems:
            for values in self.param_generator.combinations():
                try:
                    varied = words_of(values)
                except ConfigError as error:
                    problems += error.problems
                    continue
                name = name_of(self.base_name, values, _LONGEST_NAME - len(suffix)) + suffix
                planned.append(Planned(name, (*words, *varied), dict(self.env_vars)))
        if problems:
            raise ConfigError([f"experiment {self.base_name!r}: {problem}" for problem in dict.fromkeys(problems)])
        return planned


@dataclass(frozen=True)
class RunDescription:
    """All that is to be run, in a folder called ``run_name``."""

    run_name: str
    experiments: Sequence[Experiment]

    def runs(self, suffix: str = "") -> list[Planned]:
        """All runs of all experiments, in order; raises ConfigError with everything that is wrong."""
        problems: list[str] = []
        if not isinstance(self.run_name, str) or not _NAME.fullmatch(self.run_name):
            problems.append(
                f"run_name={self.run_name!r}: becomes a folder: letters, digits, '.', '_' or '-', and a letter or "
                "digit first"
            )
        given: object = self.experiments
        if not isinstance(given, Sequence) or not given:
            problems.append("experiments: must be a list of at least one Experiment")
            raise ConfigError(problems)
        planned: list[Planned] = []
        for experiment in given:
            if not isinstance(experiment, Experiment):
                problems.append(f"experiments: {experiment!r} is no Experiment")
                continue
            try:
                planned += experiment.runs(suffix)
            except ConfigError as error:
                problems += error.problems
        twice = [name for name, count in Counter(run.name for run in planned).items() if count > 1]
        problems += [f"{name}: several runs have this name; give their experiments other names" for name in twice]
        if problems:
            raise ConfigError(problems)
        return planned


def name_of(base: str, values: Mapping[str, object], longest: int = _LONGEST_NAME) -> str:
    """The name of the run with these settings: ``base``, then each flag with its value.

    It depends on nothing else, so a list or a grid may grow, and the runs that were there keep their names. A name
    that would be too long, or hold what a folder's name must not, ends with a hash of the settings instead.
    """
    if not values:
        return base
    told = "".join(f"_{name}_{value_text(_as_tuple(value))}" for name, value in values.items())
    name = base + told.replace(" ", "-")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    if plain == name and len(name) <= longest:
        return name
    text = json.dumps(values, default=str, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{plain[: longest - _HASH_DIGITS - 1]}_{digest}"


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _flag_words(cmd: object) -> list[str]:
    """The flags of a command line; raises ValueError if it is none of the trainer's."""
    if isinstance(cmd, str):
        words = shlex.split(cmd)
    elif isinstance(cmd, Sequence) and all(isinstance(word, str) for word in cmd):
        words = list(cmd)
    else:
        raise ValueError(f"{cmd!r} must be text, or a list of words")
    if words[1:3] == ["-m", MODULE]:
        words = words[3:]
    if words and not words[0].startswith("--"):
        raise ValueError(f"{words[0]!r}: must be flags of {MODULE}, with 'python -m {MODULE}' before them or without")
    return words


def _variable_problems(variables: object) -> list[str]:
    if not isinstance(variables, Mapping):
        return [f"env_vars: {variables!r} must be a mapping of names to text"]
    return [
        f"env_vars: {name!r}={value!r}: a variable has a name of letters, digits and '_', and text as its value"
        for name, value in variables.items()
        if not (isinstance(name, str) and _VARIABLE.fullmatch(name) and isinstance(value, str) and "\0" not in value)
    ]


def _generator_problems(generator: object) -> list[str]:
    if not (hasattr(generator, "problems") and hasattr(generator, "combinations")):
        return [f"param_generator: {generator!r} must be a ParamList, a ParamGrid or a RandomSearch"]
    found: list[str] = generator.problems()
    return found


_SUFFIX = ".toml"
_BY_DEFAULT = "RUN_DESCRIPTION"  # of a module that is named alone
_RANGES: Mapping[str, Callable[[Any, Any], Distribution]] = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "int_uniform": IntUniform,
}
_OF_FILE = ("run_name", "experiments")
_OF_EXPERIMENT = ("base_name", "cmd", "env_vars", "list", "grid", "random")
_OF_RANDOM = ("count", "seed", "parameters")


def description_of(reference: str) -> RunDescription:
    """What ``--run=reference`` names; raises ConfigError if that is no description."""
    if reference.endswith(_SUFFIX):
        return _of_file(Path(reference))
    try:
        found = find_object(reference if ":" in reference else f"{reference}:{_BY_DEFAULT}")
        if callable(found):
            found = _made(found)
        if not isinstance(found, RunDescription):
            raise Unresolved(f"it is {described(found)}; it must be a sfactory.launch.run_description.RunDescription")
    except Unresolved as error:
        raise ConfigError([f"{assigned('run', reference)}: {error}"]) from error
    return found


def _made(maker: Callable[[], object]) -> object:
    """What a user's function gives; raises Unresolved."""
    try:
        return maker()
    # Foreign code may raise anything, and may even call sys.exit.
    except (Exception, SystemExit) as error:
        raise Unresolved(
            f"it is called without arguments to make the description, and raised {named(error)}"
        ) from error


def _of_file(path: Path) -> RunDescription:
    where = assigned("run", str(path))
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"{error.strerror or error}; the path counts from {Path.cwd()}"
        raise ConfigError([f"{where}: cannot be read: {reason}"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{where}: is not valid TOML: {' '.join(str(error).split())}"]) from error
    problems = _unknown("", content, _OF_FILE)
    tables = content.get("experiments", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append("experiments: must be tables, which begin with [[experiments]]")
        tables = []
    experiments = [_experiment(index, table, problems) for index, table in enumerate(tables)]
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem in problems])
    return RunDescription(content.get("run_name", path.stem), experiments)


def _experiment(index: int, table: Mapping[str, Any], problems: list[str]) -> Experiment:
    name = table.get("base_name", "")
    where = f"experiment {name!r}: " if name else f"experiment {index + 1}: "
    problems += _unknown(where, table, _OF_EXPERIMENT)
    problems += [f"{where}needs {word}" for word in ("base_name", "cmd") if word not in table]
    ways = [word for word in ("list", "grid", "random") if word in table]
    if len(ways) > 1:
        problems.append(f"{where}has {' and '.join(ways)}; give one of them")
    parameters: Parameters = ParamList()
    if "list" in table:
        parameters = ParamList(table["list"])
    elif "grid" in table:
        grid = table["grid"]
        if isinstance(grid, dict):
            parameters = ParamGrid({_key(name): values for name, values in grid.items()})
        else:
            problems.append(f"{where}grid must be a table of flags, each with a list of values")
    elif "random" in table:
        parameters = _random(where, table["random"], problems)
    return Experiment(name, table.get("cmd", ""), parameters, table.get("env_vars", {}))


def _random(where: str, table: object, problems: list[str]) -> Parameters:
    if not isinstance(table, dict) or not isinstance(table.get("parameters"), dict) or "count" not in table:
        problems.append(f"{where}random must be a table with count, and with parameters, a table of flags")
        return ParamList()
    problems += _unknown(f"{where}random: ", table, _OF_RANDOM)
    parameters: dict[Key, Distribution] = {}
    for name, declared in table["parameters"].items():
        distribution = _distribution(declared)
        if distribution is None:
            problems.append(
                f"{where}random, {name}: must be one of {{uniform = [low, high]}}, {{log_uniform = [low, high]}}, "
                "{int_uniform = [low, high]} and {choice = [values]}"
            )
        else:
            parameters[_key(name)] = distribution
    return RandomSearch(parameters, table["count"], table.get("seed", 0))


def _distribution(declared: object) -> Distribution | None:
    if not isinstance(declared, dict) or len(declared) != 1:
        return None
    ((word, values),) = declared.items()
    if word == "choice":
        return Choice(values)
    if word in _RANGES and isinstance(values, list) and len(values) == 2:
        return _RANGES[word](*values)
    return None


def _key(name: str) -> Key:
    """In TOML flags that vary jointly are one key, with commas."""
    parts = tuple(part.strip() for part in name.split(","))
    return parts[0] if len(parts) == 1 else parts


def _unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    return [
        f"{where}{word!r} is unknown" + (did_you_mean(word, known) or "; there are " + ", ".join(known))
        for word in table
        if word not in known
    ]
