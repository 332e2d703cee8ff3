"""Imports point one way: from the commands down to errors and clock, never up or sideways."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.source import Source, code, parse

# Lowest first. A package imports itself and packages of lower rows, but no other package of its own row.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__init__", "errors", "clock", "packages", "seeds", "statistics"}),
    frozenset({"system"}),
    frozenset({"atomic"}),
    frozenset({"config"}),
    frozenset({"ranks"}),
    frozenset({"tensor_spec", "plain_spaces"}),
    frozenset({"action_heads"}),
    frozenset({"spec", "messages", "layout"}),
    frozenset({"algo", "model", "env", "pbt"}),
    frozenset({"shared", "checkpoint"}),
    frozenset({"process", "inference"}),
    frozenset({"actor", "learner"}),
    frozenset({"resident", "remote"}),
    frozenset({"experiment"}),
    frozenset({"exporting"}),
    frozenset({"planning", "play", "launch", "results"}),
    frozenset({"supervise"}),
    frozenset({"report"}),
    frozenset({"benchmark"}),
    frozenset({"runner"}),
    frozenset(
        {"train", "enjoy", "evaluate", "envs", "export", "match", "check_env", "plot", "report_page", "launcher"}
        | {"api", "cli", "remote_actors"}
    ),
    frozenset({"__main__"}),
)
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
# What sfactory/__init__.py imports when one of its names is first used.
PUBLIC = frozenset({"api", "launch", "play", "report", "runner"})
ENVS_MAY_IMPORT = frozenset({"env", "errors", "packages", "spec"})


def imported_packages(source: Source) -> Iterator[tuple[int, str]]:
    """(line, package) of every import of sfactory in the file, also inside functions."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            # Names of sfactory itself, such as __version__, are no packages.
            names = [f"sfactory.{alias.name}" for alias in node.names if not alias.name.startswith("__")]
            modules = names if node.module == "sfactory" else [node.module]
        else:
            continue
        for module in modules:
            first, _, rest = module.partition(".")
            if first == "sfactory":
                yield node.lineno, rest.split(".")[0] if rest else "__init__"
            elif first in ("envs", "sfactory_envs"):
                yield node.lineno, "sfactory_envs"


def upward_imports(source: Source) -> list[str]:
    """Each import of the file that breaks the order of LAYERS, one line each."""
    package = source.package
    if package not in HEIGHT:
        return [f"{source.path}: {package!r} is not in LAYERS"]
    problems = []
    for line, other in imported_packages(source):
        if other == package or (source.path == "sfactory/__init__.py" and other in PUBLIC):
            continue
        if HEIGHT.get(other, len(LAYERS)) >= HEIGHT[package] or package == "algo":
            problems.append(f"{source.path}:{line}: {package} imports {other}, which is not below it")
    return problems


def test_packages_import_only_lower_ones() -> None:
    assert [problem for source in code("sfactory") for problem in upward_imports(source)] == []


def test_envs_and_actors_import_few_modules() -> None:
    of_envs = [(source.path, *found) for source in code("envs") for found in imported_packages(source)]
    of_actors = [source.path for source in code("sfactory/actor") if "inference.policy_worker" in source.text]

    assert [found for found in of_envs if found[2] not in ENVS_MAY_IMPORT | {"sfactory_envs"}] == []
    assert of_actors == []


@pytest.mark.parametrize(
    ("path", "text", "problems"),
    [
        ("sfactory/actor/x.py", "from sfactory.learner.trainer import Trainer", 1),
        ("sfactory/learner/x.py", "def f():\n    import sfactory.actor.central_actor", 1),
        ("sfactory/config/x.py", "from sfactory import train", 1),
        ("sfactory/env/x.py", "import sfactory_envs.classic_control", 1),
        ("sfactory/algo/x.py", "from sfactory.errors import ConfigError", 1),
        ("sfactory/manager/x.py", "import os", 1),
        ("sfactory/__init__.py", "from sfactory.supervise import monitors", 1),
        ("sfactory/actor/x.py", "from sfactory.actor.recorder import Recorder\nfrom sfactory.shared import slots", 0),
        ("sfactory/runner/x.py", "from sfactory import __version__\nimport numpy", 0),
        ("sfactory/__init__.py", "from sfactory.api import run", 0),
    ],
)
def test_imports_that_break_the_order_are_found(path: str, text: str, problems: int) -> None:
    assert len(upward_imports(parse(path, text))) == problems
