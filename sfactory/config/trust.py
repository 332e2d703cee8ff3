"""Refuses code that only the files of a run name: a run directory may come from a stranger.

A flag names code if its value has a module to import: ``--env=my_envs:make``, ``--observers my_hooks:Watcher``. Env
kwargs are data of the env, but for references (Gymnasium's wrappers of older gyms import them) and for what the family
of the env declares: see ``code_kwargs`` of EnvFamily. The user trusts code by naming it on the command line, or all of
it with ``--trust_run_dir=True``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from sfactory.config.argv import assignment
from sfactory.config.env_families import find_family
from sfactory.config.flags import assigned, shown

TRUST = "trust_run_dir"
NETWORKS = ("encoder", "core", "decoder", "model")
CODE_FLAGS = ("env", "env_kwargs", "wrapper", "policy_mapping", "observers", "after_train_step", *NETWORKS)

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w./-]*")
_PATH = re.compile(r"[/\\~].*|(.*[/\\])?\.\.([/\\].*)?")  # of a folder where scripts may be


def untrusted(
    values: Mapping[str, object], files: Mapping[str, Path | str], known: Collection[str] = CODE_FLAGS
) -> list[str]:
    """A problem for each value that names code and that only a file of a run gives; nothing is imported.

    files: by flag, the file that its value comes from; flags that the user has set are not in it. known: the flags of
    CODE_FLAGS that the command has.
    """
    problems: list[str] = []
    for name in CODE_FLAGS:
        if name in files and names_code(name, values[name], str(values.get("env", ""))):
            typed = shlex.join(assignment(name, values[name]))
            repeat = f"{typed}, or " if name in known and typed == shown(typed) else ""
            problems.append(
                f"{assigned(name, values[name])}: only {files[name]} names this code, and a file of a run may come "
                f"from anyone; if you trust it, add {repeat}--{TRUST}=True"
            )
    return problems


def names_code(name: str, value: object, env: str) -> bool:
    """Whether this value of a flag of CODE_FLAGS has a module to import, or more that runs. env: the env's name."""
    if name == "env":
        # Of "vector:CartPole-v1" the family names no module; of "pettingzoo:my_envs.chess" it imports one.
        prefix: str = getattr(find_family(str(value)), "prefix", "")
        rest = str(value).removeprefix(prefix)
        return ":" in rest or _PATH.fullmatch(rest) is not None
    if name == "env_kwargs":
        return any(_REFERENCE.fullmatch(text) for text in _texts(value)) or _carry_code(value, env)
    return any(":" in text for text in _texts(value))


def _carry_code(kwargs: object, env: str) -> bool:
    """Whether the family of ``env``, or of the id that it has behind a module, declares that these carry code.

    Names are compared as letters and digits alone. A line end may begin another setting, where a package reads a text.
    """
    families = map(find_family, {env, env.rpartition(":")[2]})
    carriers = [part for family in families for part in getattr(family, "code_kwargs", ())]
    if not carriers:
        return False
    names = [re.sub(r"[\W_]", "", name).lower() for name in _names(kwargs)]
    has_line_end = any(len(text.splitlines()) > 1 for text in (*_names(kwargs), *_texts(kwargs)))
    return has_line_end or any(part in name for part in carriers for name in names)


def _names(value: object) -> Iterator[str]:
    """All keys in a value."""
    if isinstance(value, Mapping):
        yield from map(str, value)
        yield from _names(list(value.values()))
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _names(element)


def _texts(value: object) -> Iterator[str]:
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _texts(element)
