"""Classes and functions of the user are found by their names, and an error says why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.config.flags import config_of
from sfactory.config.import_strings import Unresolved, find_callable
from sfactory.config.validation import check

IMPORTING = """
from functools import partial
from os import system
from random import shuffle
from subprocess import Popen
if __name__ == "__main__":
    import sys

    class Hidden: ...
class Shown:
    def method(self): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_things.py").write_text(IMPORTING + "class Watcher: ...\nnumber = 3\nmake = partial(Watcher)")
    (tmp_path / "named_folder").mkdir()
    (tmp_path / "named_folder" / "inner.py").write_text("class Watcher: ...")
    (tmp_path / "named_badly.py").write_text("raise RuntimeError('bad day')")
    (tmp_path / "named_leaving.py").write_text("raise SystemExit('no licence')")
    (tmp_path / "named_needing.py").write_text("import no_such_package_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def problems_of(name: str) -> list[str]:
    """Those of flags that name a function or class."""
    flags = {"observers": (name,), "wrapper": (name,), "num_policies": 2, "policy_mapping": name}
    return check(config_of({"env": "CartPole-v1", **flags}))


def test_classes_and_functions_are_found() -> None:
    assert find_callable("named_things:Watcher").__qualname__ == "Watcher"
    assert type(find_callable("named_things:make")()).__name__ == "Watcher"
    assert find_callable("numpy.random:default_rng").__name__ == "default_rng"
    assert find_callable("named_things.py:Watcher") is find_callable("./named_things.py:Watcher")
    assert find_callable("named_things.py:Watcher") is find_callable("named_things:Watcher")
    assert find_callable("named_folder/inner.py:Watcher").__module__ == "named_folder.inner"
    assert problems_of("named_things.py:Watcher") == problems_of("named_folder/inner.py:Watcher") == []
    assert len(problems_of("named_things/py:Watcher")) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Watcher", "it must be module:name"),
        ("named_things:Watcher.method", "it must be module:name"),
        ("named_things:Wacher", "did you mean named_things:Watcher?"),
        ("named_things:xyz", "name a function or class that it has"),
        ("named_things:method", "name a function or class that it has"),
        ("named_things.py:Hidden", "an import does not define what is under if __name__"),
        ("named_things:number", "'number' is a builtins.int; it must be a function or class"),
        ("no_such_module_here:Watcher", "run the command in the folder that holds it"),
        ("named_needing:Watcher", "install 'no_such_package_here', which it imports"),
        ("no_such_module_here.py:Watcher", "module 'no_such_module_here' cannot be imported"),
        ("/tmp/named_things.py:Watcher", "name its file by a path within the current directory"),
        ("../named_things.py:Watcher", "name its file by a path within the current directory"),
        ("os.py:system", "'os' is a module of Python's standard library"),
        ("named_badly:Watcher", "RuntimeError: bad day; correct the module"),
        ("named_leaving:Watcher", "SystemExit: no licence"),
        ("os:system", "'os' is a module of Python's standard library"),
        ("os.path:join", "'os' is a module of Python's standard library"),
        ("builtins:eval", "'builtins' is a module of Python's standard library"),
        ("named_things:system", "it is posix.system: 'posix' is a module of Python's standard library"),
        ("named_things:Popen", "it is subprocess.Popen"),
        ("named_things:shuffle", "it is random.Random.shuffle"),
    ],
)
def test_what_cannot_be_found_is_explained(name: str, expected: str) -> None:
    with pytest.raises(Unresolved) as caught:
        find_callable(name)

    assert expected in str(caught.value)
