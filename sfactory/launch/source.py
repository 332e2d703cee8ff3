"""Room: where a description comes from. In: ``--run``. Out: a ``RunDescription``, or every problem that there is."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sfactory.config.flags import assigned, did_you_mean
from sfactory.config.references import Unresolved, described, find_object
from sfactory.errors import ConfigError, named
from sfactory.launch.description import Experiment, RunDescription
from sfactory.launch.search import (
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
            raise Unresolved(f"it is {described(found)}; it must be a sfactory.launch.description.RunDescription")
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
