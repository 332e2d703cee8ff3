"""Imports point one way: from the front doors down to errors and clock, never up and never across."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.source import Source, code, parse

# Lowest first. A room imports itself and rooms of lower rows; rooms of one row do not import each other.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__init__", "errors", "clock", "timeouts", "atomic", "seeds"}),
    frozenset({"system"}),
    frozenset({"config"}),
    frozenset({"spec", "messages", "layout"}),
    frozenset({"algo", "model", "env", "pbt", "checkpoint_file"}),
    frozenset({"shared", "checkpoint"}),
    frozenset({"process", "inference"}),
    frozenset({"actor", "learner"}),
    frozenset({"experiment"}),
    frozenset({"planning", "play", "launch"}),
    frozenset({"supervise"}),
    frozenset({"report"}),
    frozenset({"benchmark"}),
    frozenset({"runner"}),
    frozenset({"train", "enjoy", "export", "plot", "launcher", "api", "__main__"}),
)
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
ALGO_MAY_IMPORT = frozenset({"algo"})
# What the package itself hands out, once it is asked for.
PUBLIC = frozenset({"api", "launch", "report"})
ENVS_MAY_IMPORT = frozenset({"env", "errors", "spec"})


def rooms_imported(source: Source) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of sfactory in the file, wherever it stands."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            # Names of the package itself, such as __version__, are no rooms.
            names = [f"sfactory.{alias.name}" for alias in node.names if not alias.name.startswith("__")]
            modules = names if node.module == "sfactory" else [node.module]
        else:
            continue
        for module in modules:
            package, _, rest = module.partition(".")
            if package == "sfactory":
                yield node.lineno, rest.split(".")[0] if rest else "__init__"
            elif package in ("envs", "sfactory_envs"):
                yield node.lineno, "sfactory_envs"


def upward_imports(source: Source) -> list[str]:
    """What the file imports against the order of LAYERS, one line each."""
    room = source.room
    if room not in HEIGHT:
        return [f"{source.path}: room {room!r} has no place in LAYERS; give it one"]
    problems = []
    for line, other in rooms_imported(source):
        if other == room or (source.path == "sfactory/__init__.py" and other in PUBLIC):
            continue
        if other not in HEIGHT:
            problems.append(f"{source.path}:{line}: {room} imports {other}, which has no place in the core")
        elif HEIGHT[other] >= HEIGHT[room]:
            problems.append(f"{source.path}:{line}: {room} imports {other}, which is not below it")
    return problems


def test_rooms_import_only_what_is_below_them() -> None:
    problems = [problem for source in code("sfactory") for problem in upward_imports(source)]

    assert problems == []


def test_algo_is_pure() -> None:
    problems = [
        f"{source.path}:{line}: algo imports {room}"
        for source in code("sfactory/algo")
        for line, room in rooms_imported(source)
        if room not in ALGO_MAY_IMPORT
    ]

    assert problems == []


def test_env_families_know_only_the_interface_for_envs() -> None:
    problems = [
        f"{source.path}:{line}: an env family imports {room}"
        for source in code("envs")
        for line, room in rooms_imported(source)
        if room not in ENVS_MAY_IMPORT
    ]

    assert problems == []


def test_actors_know_the_acting_policy_but_not_the_policy_worker() -> None:
    loops = [
        source.path
        for source in code("sfactory/actor")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "sfactory.inference.policy_worker"
    ]

    assert loops == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sfactory/actor/x.py", "from sfactory.learner.trainer import Trainer"),
        ("sfactory/learner/x.py", "def f():\n    import sfactory.actor.central_actor"),
        ("sfactory/shared/x.py", "from sfactory.runner import parallel"),
        ("sfactory/config/x.py", "from sfactory import train"),
        ("sfactory/env/x.py", "import sfactory_envs.classic_control"),
        ("sfactory/runner/x.py", "import envs.classic_control"),
        ("sfactory/algo/x.py", "from sfactory.model.encoders import MlpEncoder"),
        ("sfactory/pbt/x.py", "from sfactory.runner import parallel"),
        ("sfactory/manager/x.py", "import os"),
        ("sfactory/runner/x.py", "from sfactory.api import run"),
        ("sfactory/__init__.py", "from sfactory.runner import session"),
    ],
)
def test_an_import_against_the_order_is_found(path: str, text: str) -> None:
    assert len(upward_imports(parse(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sfactory/actor/x.py", "from sfactory.actor.recorder import Recorder\nfrom sfactory.shared import slots"),
        ("sfactory/runner/x.py", "from sfactory import __version__\nimport numpy"),
        ("sfactory/train.py", "from sfactory.runner.session import Session"),
        ("sfactory/__init__.py", "from sfactory.api import run"),
    ],
)
def test_an_import_along_the_order_passes(path: str, text: str) -> None:
    assert upward_imports(parse(path, text)) == []
