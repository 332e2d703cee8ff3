"""Names are terms of the field, and sentences have no hard words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.source import Source, code, parse

# Metaphors that were names once. "stage" is not among them: benchmarks and residual networks have stages.
PRIVATE = frozenset(
    {"belt", "crew", "nursery", "birth", "births", "casting", "breeding", "mending", "remedy", "wiring", "outbox"}
    | {"aside", "keeper", "ledger", "genealogy", "tally", "desk", "door", "room", "sleepers", "lives", "scheme"}
)
VAGUE = frozenset({"util", "utils", "manager", "managers", "helper", "helpers", "misc", "common"})  # for files
# Words that make sentences hard to read for those who learned English later.
HARD = re.compile(r"(?<![A-Za-z])(?:[Tt]old|[Aa]new|[Ww]hoever|[Nn]obody)(?![A-Za-z])|Room:")
NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_HERE = "tests/architecture/test_words.py"


def words_of(name: str) -> set[str]:
    """The lowercase words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def private_names(source: Source) -> Iterator[str]:
    """Each module, class or function of the file that has a private word in its name, one line each."""
    names = [(1, part) for part in Path(source.path).with_suffix("").parts]
    names += [(node.lineno, node.name) for node in ast.walk(source.tree) if isinstance(node, NAMED)]
    for line, name in names:
        if found := words_of(name) & PRIVATE:
            yield f"{source.path}:{line}: {name} ({', '.join(sorted(found))})"


def hard_words(source: Source) -> list[str]:
    """Each hard word of the file, one line each."""
    lines = enumerate(source.text.splitlines(), 1)
    return [f"{source.path}:{line}: {word}" for line, text in lines for word in HARD.findall(text)]


def test_files_have_names_that_say_something() -> None:
    assert [source.path for source in code() if words_of(source.path) & VAGUE] == []


def test_names_are_the_terms_of_the_field() -> None:
    assert [name for source in code("sfactory") for name in private_names(source)] == []


def test_sentences_have_no_hard_words() -> None:
    sources = [source for source in code("sfactory", "envs", "scripts", "tests") if source.path != _HERE]

    assert [word for source in sources for word in hard_words(source)] == []


def test_private_names_and_hard_words_are_found() -> None:
    source = parse("sfactory/belt/x.py", 'class SplitTally: ...\ndef may_told(): "It is made anew"\ndef told_by(): ...')

    assert len(list(private_names(source))) == 2
    assert len(hard_words(source)) == 3
