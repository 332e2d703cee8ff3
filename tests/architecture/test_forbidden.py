"""What the code does without: the wall clock, globals, swallowed exceptions, rooms without a noun, and what runs code
that came as data, writes where others can guess, or deletes more than it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import Source, code, parse

VAGUE_NAMES = frozenset({"util", "utils", "manager", "managers", "helper", "helpers", "misc", "common"})
FORBIDDEN_CALLS = {
    "time.time": "durations want time.monotonic: the wall clock jumps",
    "locals": "say which names are meant",
    **dict.fromkeys(
        ("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open"),
        "loads code with data",
    ),
    **dict.fromkeys(
        ("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load"), "use yaml.safe_load: others make objects"
    ),
    "eval": "runs what came as text",
    "exec": "runs what came as text",
    "os.system": "a shell reads more into a name than a name",
    "os.popen": "a shell reads more into a name than a name",
    "tempfile.mktemp": "somebody else may take the name first",
    "shutil.rmtree": "deletes whatever is below; name what goes",
}
# By their own names they are forbidden, too.
FORBIDDEN_NAMES = {tuple(name.split(".")) for name in FORBIDDEN_CALLS if "." in name} | {("torch", "load")}
FORBIDDEN_MODULES = frozenset({"dill", "cloudpickle", "joblib", "shelve"})
UNSAFE_LOADERS = frozenset({"Loader", "FullLoader", "UnsafeLoader"})
UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX)\b")


def dotted(node: ast.expr) -> str:
    """The name a call is made by: "time.time", "locals", or "" if it is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def forbidden_nodes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, reason) of each construct that has no place here."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=func, keywords=keywords):
                if reason := FORBIDDEN_CALLS.get(dotted(func)):
                    yield node.lineno, f"{dotted(func)}(): {reason}"
                yield from ((node.lineno, reason) for reason in forbidden_arguments(dotted(func), keywords))
            case ast.Attribute(value=ast.Name(id="yaml"), attr=attr) if attr in UNSAFE_LOADERS:
                yield node.lineno, f"yaml.{attr}: use yaml.SafeLoader"
            case ast.Import(names=names):
                for name in names:
                    if name.name.split(".")[0] in FORBIDDEN_MODULES:
                        yield node.lineno, f"import {name.name}: loads code with data"
            case ast.ImportFrom(module=module, names=names):
                for name in names:
                    if (module, name.name) in FORBIDDEN_NAMES or module in FORBIDDEN_MODULES:
                        yield node.lineno, f"from {module} import {name.name}"
            case ast.Global():
                yield node.lineno, "global: state belongs to an object"
            case ast.ExceptHandler(type=None):
                yield node.lineno, "bare except: catches even KeyboardInterrupt"


def forbidden_arguments(name: str, keywords: list[ast.keyword]) -> Iterator[str]:
    """A reason for each argument by name, given or missing, with which a call has no place here."""
    given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in keywords}
    if given.get("weights_only", True) is not True or (name == "torch.load" and "weights_only" not in given):
        yield "weights_only is not the constant True: loads code with data"
    if "shell" in given and given["shell"] is not False:
        yield "shell is not the constant False: a shell reads more into a name than a name"


def violations(source: Source) -> list[str]:
    """All that is forbidden in one file, one line each."""
    found = [f"{source.path}:{line}: {reason}" for line, reason in forbidden_nodes(source.tree)]
    for line, text in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(text):
            found.append(f"{source.path}:{line}: unfinished: {text.strip()}")
    for part in Path(source.path).with_suffix("").parts:
        if VAGUE_NAMES & set(part.split("_")):
            found.append(f"{source.path}: {part!r} names no thing")
    return found


def test_the_code_does_without_what_is_forbidden() -> None:
    problems = [problem for source in code() for problem in violations(source)]

    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\nstart = time.time()",
        "from time import time",
        "import pickle\npickle.loads(b'')",
        "from pickle import load",
        "torch.load(path)",
        "torch.load(path, map_location='cpu')",
        "from torch import load",
        "pickle.Unpickler(file)",
        "marshal.loads(data)",
        "import cloudpickle",
        "from dill import loads",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
        "from yaml import full_load",
        "yaml.compose(text, Loader=yaml.Loader)",
        "eval(text)",
        "exec(compile(text, path, 'exec'))",
        "os.system(command)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=flag)",
        "path = tempfile.mktemp()",
        "from tempfile import mktemp",
        "shutil.rmtree(folder)",
        "from shutil import rmtree",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "def f():\n    global x\n    x = 1",
        "try:\n    f()\nexcept:\n    pass",
        "names = locals()",
        "x = 1  # " + "TODO: finish",
    ],
)
def test_what_is_forbidden_is_found(text: str) -> None:
    assert len(violations(parse("sfactory/x.py", text))) == 1


def test_a_module_without_a_noun_is_found() -> None:
    assert len(violations(parse("sfactory/runner/process_utils.py", ""))) == 1


def test_what_only_looks_alike_passes() -> None:
    text = (
        "import time\ntime.monotonic()\ntorch.load(path, weights_only=True)\ntry:\n    f()\nexcept OSError:\n    raise"
        "\nmodel.eval()\nyaml.safe_load(text)\nyaml.compose(text, Loader=yaml.SafeLoader)\npickle.dumps(value)\n"
        "tempfile.mkdtemp()\njson.load(file)\nsubprocess.run(command)"
    )

    assert violations(parse("sfactory/runner/manage.py", text)) == []
