"""Reads command lines, and writes flags as the words of a command line.

The forms are ``--name=value`` and ``--name value``, with dashes or underscores; lists are separated by spaces, or
written as in JSON, and a boolean without a value is True.
Nothing is abbreviated and nothing is positional, so every token has one meaning. For names that other trainers have
for their flags, errors say what they are here.
"""

from __future__ import annotations

import functools
import itertools
import json
import numbers
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType

from sfactory.config.ancestors import ancestor_hint, commands_with
from sfactory.config.env_families import arguments_of, find_family
from sfactory.config.env_names import env_name_of
from sfactory.config.field import FlagInfo
from sfactory.config.flags import Flag, Reading, all_flags, coerce, did_you_mean, shown, strict_json, value_text
from sfactory.config.import_strings import name_of_program
from sfactory.errors import ConfigError

# Settings of the command line, not of the run.
_FILE = FlagInfo("YAML, TOML or JSON file with names of flags and their values", path=True)
CONFIG = Flag("config", "", str, "flags.yaml", _FILE)
_PRINTS = FlagInfo("print the value and source of every flag, as a JSON file, and stop")
PRINT_CONFIG = Flag("print_config", "", bool, False, _PRINTS)
# Sample Factory's examples give it, and it is what is done anyway.
ALGO = Flag("algo", "", str, "APPO", FlagInfo("the algorithm"))
# What has one name in one command and another in another one.
_SAME_THING = (
    ("eval_episodes", "episodes", "max_num_episodes"),
    ("eval_workers", "workers"),
    ("num_workers", "workers"),
    ("eval_video", "save_video"),
    ("train_for_env_steps", "steps"),
)


@dataclass
class CommandLine(Reading):
    """The content of a command line. ``words``: values of what is no flag of a run, such as --config.

    help: what is to be explained, "" for the most important; None if ``--help`` was not given. unknown: flags that do
    not exist, with their values and the places of their problems.
    """

    help: str | None = None
    unknown: dict[str, tuple[str, int]] = field(default_factory=dict)
    words: dict[str, object] = field(default_factory=dict)


def scan(argv: Sequence[str], flags: Mapping[str, Flag]) -> CommandLine:
    """Read all of ``argv`` by ``flags``; problems are collected, never raised."""
    line = CommandLine()
    seen: dict[str, str] = {}
    position = 0
    while position < len(argv):
        token = argv[position]
        position += 1
        if asks_for_help([token]):
            topic = token.partition("=")[2] or "".join(argv[position : position + 1])
            line.help = "" if topic.startswith("-") else topic.replace("-", "_")
            continue
        if not token.startswith("--") or token.lstrip("-")[:1] in ("", "="):
            line.problems.append(_stray(token, argv[position - 2] if position > 1 else "", flags))
            continue
        typed, equals, text = token[2:].partition("=")
        name = typed.replace("-", "_")
        words = [text] if equals else _following(argv[position:], flags.get(name))
        position += 0 if equals else len(words)
        if name not in flags:
            line.unknown[name] = " ".join(words), len(line.problems)
            line.problems.append(_unknown(typed, name, flags))
        elif name in seen:
            twice = f"{seen[name]}, then {shown(' '.join(words))}"
            line.problems.append(f"--{name}: given more than once ({twice}); give it once")
            line.broken.add(name)
        else:
            seen[name] = shown(" ".join(words))
            if words:
                line.take(flags[name], " ".join(words))
            elif flags[name].type is bool:
                line.values[name] = True
            else:
                line.problems.append(f"--{name}: needs a value{_value_advice(flags[name])}")
                line.broken.add(name)
    return line


def say_arguments(line: CommandLine, env: str) -> None:
    """Say of flags that do not exist, and are arguments of ``env``, how these are given; of one's own code may be.

    Names that other trainers have are not taken for arguments of one's own code.
    """
    name_of_env = env_name_of(env) if line.unknown and env else ""
    known = arguments_of(name_of_env) if name_of_env else set()
    is_own = ":" in name_of_env and find_family(name_of_env) is None
    for name, (text, at) in line.unknown.items():
        if not (name in known or is_own):
            continue
        try:
            value = strict_json({"True": "true", "False": "false", "": "true"}.get(text, text))
        except ValueError:  # it is text
            value = text
        kwargs = shlex.quote(json.dumps({name: value}, ensure_ascii=False))
        if name in known:
            line.problems[at] = f"--{name}: no flag, but an argument of {shown(env)}: --env_kwargs={shown(kwargs)}"
        elif not ancestor_hint(name, all_flags()):
            line.problems[at] += f"; arguments of {shown(env)} are given as --env_kwargs={shown(kwargs)}"


def asks_for_help(words: Iterable[str]) -> bool:
    """Whether ``--help``, ``--help=TOPIC`` or ``-h`` is among ``words``."""
    return any(word == "-h" or word.partition("=")[0] == "--help" for word in words)


def _following(tokens: Sequence[str], flag: Flag | None) -> list[str]:
    """The tokens that belong to the flag before them: one, or all before the next flag if it may take a list."""
    # A single dash begins a negative number, never a flag.
    words = list(itertools.takewhile(lambda token: not token.startswith("--"), tokens))
    return words if flag is None or flag.is_list else words[:1]


def _value_advice(flag: Flag) -> str:
    if flag.is_list:
        return f": {flag.example()}, or --{flag.name}= for an empty list"
    if flag.choices:
        return f", one of {', '.join(flag.choices)}"
    return f": --{flag.name}=..." if flag.default == "" else f", for example {flag.example()}"


def _unknown(typed: str, name: str, known: Collection[str]) -> str:
    alike = [other for names in _SAME_THING if name in names for other in names if other in known]
    if alike:
        owners = "sfactory.train" if name in all_flags() else commands_with(name)
        here = " or ".join(f"--{other}" for other in alike)
        return f"--{shown(typed)} is a flag of {owners}, not of this command; here it is {here}"
    if name in all_flags():
        own = ": a run has its own in config.json" if "experiment" in known else ""
        return f"--{shown(typed)} is a flag of sfactory.train, not of this command; leave it out{own}"
    hint = ancestor_hint(name, known, prefix="--")
    if hint:
        return f"--{shown(typed)}: {hint}"
    positive = name.removeprefix("no_")
    if positive != name and positive in known:
        return f"--{shown(typed)}: unknown flag; switch it off with --{positive}=False"
    near = did_you_mean(name, [*known, "help"], prefix="--")
    if owners := commands_with(name):
        return f"--{shown(typed)} is a flag of {owners}, not of this command{near}"
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


_BY_NAME = (
    "processes of a run import what they call by its name: write a function at the top level of a module, "
    "def make(...): return ..., and give that"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def words_of(values: Mapping[str, object]) -> list[str]:
    """The words that set these flags, which are read as ``plain_of(values)``; raises ConfigError as that does."""
    return [word for name, value in plain_of(values).items() for word in assignment(name, value)]


def plain_of(values: Mapping[str, object]) -> dict[str, object]:
    """``values`` as Python's own data: lists for arrays and tuples, texts for paths, ``module:name`` for classes and
    functions, ``env`` and ``env_kwargs`` for a partial of an env.

    Raises ConfigError with a line for each value that no flag can have. Does not check that such flags exist and take
    these values.
    """
    plain: dict[str, object] = {}
    problems: list[str] = []
    for name, value in _without_partial(values).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(f"{shown(repr(name))}: must be the name of a flag, without its dashes")
            continue
        try:
            plain[name] = _plain(all_flags().get(name.replace("-", "_")), value)
        except ValueError as error:
            problems.append(f"--{name}: {error}")
    if problems:
        raise ConfigError(problems)
    return plain


def _plain(flag: Flag | None, value: object) -> object:
    """``value`` as Python's own data; ``flag``: the one of a run that it is for. Raises ValueError if it has none."""
    value = _without_array(value)
    if isinstance(value, Mapping):
        return _in_json(value)
    is_list = isinstance(value, list | tuple)
    plain = [_plain_element(each) for each in (value if isinstance(value, list | tuple) else [value])]
    if flag is not None and any(each is None for each in plain):
        try:
            coerce(flag, plain if is_list else None)
        except ValueError:
            raise ValueError("None is no value of this flag; leave it out") from None
    return plain if is_list else plain[0]


def _plain_element(value: object) -> object:
    plain = os.fspath(value) if isinstance(value, os.PathLike) else _named(_without_array(value))
    if plain is None or isinstance(plain, bool | numbers.Real | str):
        return plain
    kind = type(value).__qualname__
    raise ValueError(f"a {kind} cannot be given; give a bool, a number, text, a list, a mapping, a class or None")


def _without_array(value: object) -> object:
    """Numbers and arrays of numpy and torch as Python's, and any other value as it is."""
    plain = None if isinstance(value, type) else getattr(value, "tolist", None)
    return plain() if callable(plain) else value


def _without_partial(values: Mapping[str, object]) -> Mapping[str, object]:
    """``values``; an env that is a ``functools.partial`` becomes its class or function, and env_kwargs.

    Those that env_kwargs has already stay. Raises ConfigError if not all can be given by name.
    """
    env, more = values.get("env"), values.get("env_kwargs") or {}
    if not isinstance(env, functools.partial):
        return values
    if env.args or not isinstance(more, Mapping):
        raise ConfigError(["--env: a partial gives all its arguments by name, and env_kwargs beside it is a mapping"])
    return {**values, "env": env.func, "env_kwargs": {**env.keywords, **more}}


def _named(value: object) -> object:
    """``module:name`` of a class or function, and any other value as it is.

    Raises ValueError for one that other processes cannot import by its name.
    """
    if isinstance(value, functools.partial | MethodType):
        raise ValueError(f"a {type(value).__name__} cannot be given: {_BY_NAME}")
    if not isinstance(value, type | FunctionType):
        return value
    module, name = value.__module__, value.__qualname__
    if name == "<lambda>":
        raise ValueError(f"a lambda cannot be given: {_BY_NAME}")
    if getattr(sys.modules.get(module), name, None) is not value:
        raise ValueError(
            f"{name} of {module} is not a name of its module, by which processes of a run import it: define it at the "
            "top level of a module, not inside a function or a class"
        )
    if module == "__main__" and not (module := name_of_program()):
        raise ValueError(
            f"{name} is defined in a program, and the processes of a run cannot import its file by its name: give the "
            "file a name such as my_train.py, or move it to a module, and import it from there"
        )
    return f"{module}:{name}"


def _in_json(value: object) -> object:
    """``value`` as JSON has it: numbers and arrays of numpy and torch as Python's. Raises ValueError if it has none."""
    value = _without_array(value)
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{odd[0]!r} is a key that is no text, and a JSON object has no others")
        return {key: _in_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value).__qualname__
    raise ValueError(f"a {kind} cannot be given in a mapping; give bools, numbers, texts, lists, mappings or None")


def assignment(name: str, value: object) -> list[str]:
    """The words that set one flag; a list that cannot be separated by spaces is written as in JSON."""
    if not isinstance(value, list | tuple):
        return [f"--{name}={value_text(value)}"]
    texts = [value_text(element) for element in value]
    # A word with two dashes would be taken for a flag, one with a bracket for the begin of a list, none for nothing.
    odd = any(text.split() != [text] or text.startswith(("--", "[")) or asks_for_help([text]) for text in texts)
    if odd or [text.lower() for text in texts] == ["none"]:
        return [f"--{name}={json.dumps(texts, ensure_ascii=False)}"]
    return [f"--{name}", *texts] if texts else [f"--{name}="]
