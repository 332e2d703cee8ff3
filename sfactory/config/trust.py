"""Refuses code that only the files of a run name: a run directory may come from a stranger.

A flag names code if its value has a module to import: ``--env=my_envs:make``, ``--observers my_hooks:Watcher``. The
user trusts such code by naming it on the command line, or all of it with ``--trust_run_dir=True``.
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
# env_kwargs are data of the env; yet some envs import what they name (Gymnasium's wrappers of older gyms).
NETWORKS = ("encoder", "core", "decoder", "model")
CODE_FLAGS = ("env", "env_kwargs", "wrapper", "policy_mapping", "observers", "after_train_step", *NETWORKS)

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w./-]*")


def untrusted(
    values: Mapping[str, object], files: Mapping[str, Path | str], known: Collection[str] = CODE_FLAGS
) -> list[str]:
    """A problem for each value that names code and that only a file of a run gives; nothing is imported.

    files: by flag, the file that its value comes from; flags that the user has set are not in it. known: the flags of
    CODE_FLAGS that the command has.
    """
    problems: list[str] = []
    for name in CODE_FLAGS:
        if name in files and names_code(name, values[name]):
            typed = shlex.join(assignment(name, values[name]))
            repeat = f"{typed}, or " if name in known and typed == shown(typed) else ""
            problems.append(
                f"{assigned(name, values[name])}: only {files[name]} names this code, and a file of a run may come "
                f"from anyone; if you trust it, add {repeat}--{TRUST}=True"
            )
    return problems


def names_code(name: str, value: object) -> bool:
    """Whether this value of a flag of CODE_FLAGS has a module to import."""
    if name == "env":
        # Of "vector:CartPole-v1" the family names no module; of "pettingzoo:my_envs.chess" it imports one.
        prefix: str = getattr(find_family(str(value)), "prefix", "")
        return ":" in str(value).removeprefix(prefix)
    if name == "env_kwargs":
        return any(_REFERENCE.fullmatch(text) for text in _texts(value))
    return any(":" in text for text in _texts(value))


def _texts(value: object) -> Iterator[str]:
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _texts(element)
