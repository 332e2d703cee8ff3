"""What a launcher runs: experiments with command lines and varying settings, from Python or a TOML file."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sfactory import atomic
from sfactory.config.argv import plain_of, words_of
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
_MAX_NAME_LENGTH = 100
_HASH_DIGITS = 8
_DEFAULT_OBJECT = "RUN_DESCRIPTION"  # of a module without :object
_FILE_KEYS = ("run_name", "experiments")
_EXPERIMENT_KEYS = ("base_name", "cmd", "env_vars", "list", "grid", "random")
_RANDOM_KEYS = ("count", "seed", "parameters")
_RANGES = {"uniform": Uniform, "log_uniform": LogUniform, "int_uniform": IntUniform}


class Planned(NamedTuple):
    """One run: its name, its flags of sfactory.train, and its environment variables."""

    name: str
    words: tuple[str, ...]
    env_vars: Mapping[str, str]


@dataclass(frozen=True)
class Experiment:
    """A command line with varying settings, and the environment variables of its runs.

    cmd: flags of sfactory.train, as text or as a list of words, with or without ``python -m sfactory.train``.
    """

    base_name: str
    cmd: str | Sequence[str]
    param_generator: Parameters = field(default_factory=ParamList)
    env_vars: Mapping[str, str] = field(default_factory=dict)

    def runs(self, suffix: str = "") -> list[Planned]:
        """All runs of the experiment; ``suffix`` is appended to each name. Raises ConfigError."""
        problems = _name_problems("its name", self.base_name)
        words: list[str] = []
        try:
            words = _flag_words(self.cmd)
        except ValueError as error:
            problems.append(f"cmd: {error}")
        problems += _variable_problems(self.env_vars)
        generator: object = self.param_generator
        if isinstance(generator, Parameters):
            problems += generator.problems()
        else:
            problems.append(f"param_generator: {generator!r} must be a ParamList, ParamGrid or RandomSearch")
        planned: list[Planned] = []
        for values in [] if problems else self.param_generator.combinations():
            try:
                plain = plain_of(values)  # the texts of functions and objects are others in each process
            except ConfigError as error:
                problems += error.problems
                continue
            name = name_of(self.base_name, plain, _MAX_NAME_LENGTH - len(suffix)) + suffix
            planned.append(Planned(name, (*words, *words_of(plain)), dict(self.env_vars)))
        if problems:
            raise ConfigError([f"experiment {self.base_name!r}: {problem}" for problem in dict.fromkeys(problems)])
        return planned


@dataclass(frozen=True)
class RunDescription:
    """All experiments of a launcher, in a directory named ``run_name``."""

    run_name: str
    experiments: Sequence[Experiment]

    def runs(self, suffix: str = "") -> list[Planned]:
        """All runs of all experiments, in order; raises ConfigError with all problems."""
        problems = _name_problems(f"run_name={self.run_name!r}:", self.run_name)
        given: object = self.experiments
        if not isinstance(given, Sequence) or not given:
            raise ConfigError([*problems, "experiments: must be a list of at least one Experiment"])
        planned: list[Planned] = []
        for experiment in given:
            try:
                if not isinstance(experiment, Experiment):
                    raise ConfigError([f"experiments: {experiment!r} is not an Experiment"])
                planned += experiment.runs(suffix)
            except ConfigError as error:
                problems += error.problems
        twice = [name for name, count in Counter(run.name for run in planned).items() if count > 1]
        problems += [
            f"{name}: several runs have this name; rename their experiments, or take out what is varied twice"
            for name in twice
        ]
        if problems:
            raise ConfigError(problems)
        return planned


def name_of(base: str, values: Mapping[str, object], longest: int = _MAX_NAME_LENGTH) -> str:
    """The name of the run with these settings: ``base``, then each flag with its value; ``values`` are of ``plain_of``.

    It depends on nothing else, so runs keep their names when a list or grid grows. A name that is too long or not a
    valid directory name ends with a hash of the settings, and so does one that hides where a list is separated.
    """
    if not values:
        return base
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    name = base + "".join(f"_{name}_{value_text(value)}" for name, value in tuples.items()).replace(" ", "-")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    has_spaces = any(
        " " in value_text(text)
        for value in tuples.values()
        for text in (value if isinstance(value, tuple) else (value,))
    )
    if plain == name and len(name) <= longest and not has_spaces:
        return name
    text = json.dumps(values, default=str, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{plain[: longest - _HASH_DIGITS - 1]}_{digest}"


def _name_problems(subject: str, name: object) -> list[str]:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return []
    return [f"{subject} must consist of letters, digits, '.', '_' and '-', and start with a letter or digit"]


def _flag_words(cmd: object) -> list[str]:
    """The flags of a command line; raises ValueError if it is not one of sfactory.train."""
    if isinstance(cmd, str):
        words = shlex.split(cmd)
    elif isinstance(cmd, Sequence) and all(isinstance(word, str) for word in cmd):
        words = list(cmd)
    else:
        raise ValueError(f"{cmd!r} must be text, or a list of words")
    if words[1:3] == ["-m", MODULE]:
        words = words[3:]
    if words and not words[0].startswith("--"):
        raise ValueError(f"{words[0]!r}: must be flags of {MODULE}, with or without 'python -m {MODULE}'")
    return words


def _variable_problems(variables: object) -> list[str]:
    if not isinstance(variables, Mapping):
        return [f"env_vars: {variables!r} must be a mapping of names to text"]
    return [
        f"env_vars: {name!r}={value!r}: a name must consist of letters, digits and '_', and a value must be text"
        for name, value in variables.items()
        if not (isinstance(name, str) and _VARIABLE.fullmatch(name) and isinstance(value, str) and "\0" not in value)
    ]


def description_of(reference: str) -> RunDescription:
    """The description that ``--run=reference`` refers to; raises ConfigError."""
    if reference.endswith(".toml"):
        return _read_file(Path(reference))
    try:
        found = find_object(reference if ":" in reference else f"{reference}:{_DEFAULT_OBJECT}")
        if callable(found):
            try:
                found = found()
            except (Exception, SystemExit) as error:  # the user's code may even call sys.exit
                raise Unresolved(f"it raised {named(error)} when called without arguments") from error
        if not isinstance(found, RunDescription):
            raise Unresolved(f"it is {described(found)}; it must be a sfactory.launch.run_description.RunDescription")
    except Unresolved as error:
        raise ConfigError([f"{assigned('run', reference)}: {error}"]) from error
    return found


def _read_file(path: Path) -> RunDescription:
    where = assigned("run", str(path))
    try:
        content = tomllib.loads(atomic.read_bytes(path).decode())
    except OSError as error:
        reason = f"{error.strerror or error}; the path is relative to {Path.cwd()}"
        raise ConfigError([f"{where} cannot be read: {reason}"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{where} is not valid TOML: {' '.join(str(error).split())}"]) from error
    problems = _unknown("", content, _FILE_KEYS)
    tables = content.get("experiments", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append("experiments: must be tables that start with [[experiments]]")
        tables = []
    experiments = [_experiment(index, table, problems) for index, table in enumerate(tables)]
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem in problems])
    return RunDescription(content.get("run_name", path.stem), experiments)


def _experiment(index: int, table: Mapping[str, Any], problems: list[str]) -> Experiment:
    name = table.get("base_name", "")
    where = f"experiment {name!r}: " if name else f"experiment {index + 1}: "
    problems += _unknown(where, table, _EXPERIMENT_KEYS)
    problems += [f"{where}needs {word}" for word in ("base_name", "cmd") if word not in table]
    kinds = [word for word in ("list", "grid", "random") if word in table]
    if len(kinds) > 1:
        problems.append(f"{where}has {' and '.join(kinds)}; give one of them")
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
    problems += _unknown(f"{where}random: ", table, _RANDOM_KEYS)
    parameters: dict[Key, Distribution] = {}
    for name, declared in table["parameters"].items():
        match list(declared.items()) if isinstance(declared, dict) else []:
            case [("choice", values)]:
                parameters[_key(name)] = Choice(values)
            case [(kind, [low, high])] if kind in _RANGES:
                parameters[_key(name)] = _RANGES[kind](low, high)
            case _:
                problems.append(
                    f"{where}random, {name}: must be one of {{uniform = [low, high]}}, {{log_uniform = [low, high]}}, "
                    "{int_uniform = [low, high]} and {choice = [values]}"
                )
    return RandomSearch(parameters, table["count"], table.get("seed", 0))


def _key(name: str) -> Key:
    """In TOML, flags that vary together are one key with commas."""
    parts = tuple(part.strip() for part in name.split(","))
    return parts[0] if len(parts) == 1 else parts


def _unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    return [
        f"{where}{word!r} is unknown" + (did_you_mean(word, known) or "; there are " + ", ".join(known))
        for word in table
        if word not in known
    ]
