"""Room: what is to be run. In: command lines and what varies in them. Out: named runs, or every problem there is.

from sfactory.launch.description import Experiment, RunDescription
from sfactory.launch.search import ParamGrid, seeds

RUNS = RunDescription(
    "cartpole",
    [Experiment("gamma", "--env=CartPole-v1", ParamGrid([("seed", seeds(3)), ("gamma", [0.9, 0.99])]))],
)
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sfactory.config.flags import value_text
from sfactory.config.words import words_of
from sfactory.errors import ConfigError
from sfactory.launch.search import Parameters, ParamList

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
