"""Any command line and any file give a Config, or a ConfigError with one line for each problem."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sfactory.config.enjoy import EnjoyConfig, read_enjoy_line
from sfactory.config.flags import all_flags, config_of
from sfactory.config.resolve import Resolved, read_command_line
from sfactory.config.saved_config import CONFIG_NAME, write_config
from sfactory.config.validation import check
from sfactory.errors import ConfigError
from tests.support.mutations import Mutation, mutations

T = TypeVar("T")
SECONDS = 10.0  # for one line, on a busy machine; most take a few milliseconds

NAMES = st.sampled_from([*all_flags(), "config", "no_such_flag", "ancestor", "num_wokers"])
# What an operating system can hand over: anything but NUL, bytes that are no UTF-8 as lone surrogates.
TYPED = st.text(st.characters(exclude_characters="\0", exclude_categories=[]), max_size=40)
SPECIAL = [
    *("True", "false", "none", "nan", "-inf", "1e9999", "1e-9999", "9" * 400, "0x10", "1_000", "٣", "", " "),
    *("{}", '{"a": 1}', "[" * 5000, '{"a":' * 5000, '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}"),
    *("a" * 100_000, "../x", "/", ".", "-", "--", "=", "a:b", "a.b:c:d", "CartPole-v1", "ALE/Pong-v5"),
]
WORDS = TYPED | st.integers().map(str) | st.floats().map(str) | st.sampled_from(SPECIAL)
ASSIGNED = st.builds("{}{}={}".format, st.sampled_from(["--", "--", "-"]), NAMES, WORDS)
TOKENS = ASSIGNED | st.builds("--{}".format, NAMES | WORDS) | WORDS
LINES = st.lists(TOKENS, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TYPED,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TYPED, inner, max_size=4),
    max_leaves=12,
)
MAPPINGS = st.dictionaries(NAMES | TYPED, JSON, max_size=8)


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fuzz(examples: int) -> settings:
    """So many cases; files that one of them leaves are written over by the next."""
    fine = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, deadline=None, suppress_health_check=fine)


def answered(argv: list[str]) -> Resolved | None:
    """What a command line means; None if it is refused as it should be. Fails if it takes long or ends otherwise."""
    started = time.monotonic()
    resolved = read(read_command_line, argv)
    assert time.monotonic() - started < SECONDS
    assert resolved is None or check(resolved.config) == []
    return resolved


def read(reader: Callable[..., T], argv: list[str]) -> T | None:
    """What a reader of command lines makes of one; None if it is refused line by line, or asks for help."""
    try:
        return reader(argv)
    except ConfigError as error:
        problems = error.problems
    except SystemExit as error:
        problems = ["help"] if error.code == 0 and {"--help", "-h"} & set(argv) else []
    assert problems
    assert not any("\n" in line for line in problems)
    assert all(line.encode() for line in problems)  # a terminal can show them
    return None


@fuzz(600)
@given(line=LINES)
def test_any_command_line_is_a_config_or_refused_line_by_line(line: list[str]) -> None:
    answered(line)
    assert isinstance(read(read_enjoy_line, line), EnjoyConfig | None)


STUMBLED_OVER = ("", "nan", "-1", "9" * 400, "1e9999", "\udcff", "[" * 3000, "None", "{}", "a\nb")


def takes_or_refuses(flag: str, words: Iterable[str]) -> None:
    for word in words:
        answered(["--env=CartPole-v1", f"--{flag}={word}"])


@pytest.mark.parametrize("flag", all_flags())
def test_every_flag_takes_or_refuses_words_that_others_stumble_over(flag: str) -> None:
    first = 3 * list(all_flags()).index(flag) % len(STUMBLED_OVER)
    takes_or_refuses(flag, (STUMBLED_OVER * 2)[first : first + 3])


@pytest.mark.long
def test_every_flag_takes_or_refuses_each_word_that_others_stumble_over() -> None:
    for flag in all_flags():
        takes_or_refuses(flag, STUMBLED_OVER)


def from_file(name: str, content: bytes) -> Resolved | None:
    """What a config file means. Its name says whether it is JSON or YAML."""
    Path(name).write_bytes(content)
    return answered(["--env=CartPole-v1", f"--config={name}"])


@pytest.mark.parametrize("name", ["flags.json", "flags.yaml"])
@fuzz(300)
@given(mapping=MAPPINGS)
@example(mapping={"train_dir": "\ud800"})
def test_any_mapping_in_a_file_is_a_config_or_refused_line_by_line(name: str, mapping: dict[str, Any]) -> None:
    # JSON is YAML but for its escapes of lone surrogates.
    from_file(name, json.dumps(mapping).encode())


@fuzz(300)
@given(name=st.sampled_from(["flags.json", "flags.yaml"]), content=st.binary(max_size=300))
def test_any_bytes_are_a_config_or_refused(name: str, content: bytes) -> None:
    from_file(name, content)


ALIASES = "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40))
# Each of these came out of PyYAML's reader, or of what stood behind it, as something else than a YAML error.
YAML = {
    "a word as a boolean": "gamma: !!bool maybe",
    "a word as a date": "gamma: !!timestamp soon",
    "a number of any length": "num_workers: 0x" + "f" * 8000,
    "a number in a list": "encoder_mlp_layers: [0x" + "f" * 8000 + "]",
    "a python object": "gamma: !!python/object/apply:os.system ['touch marker']",
    "a python name": "gamma: !!python/name:os.system",
    "itself": "&a env_kwargs: &b {x: *b}",
    "aliases of aliases": ALIASES,
    "an alias of aliases": f"{ALIASES}gamma: *a40",
    "a merge of nothing": "<<: 1",
    "a key that is a list": "[1, 2]: 3",
    "deep": "[" * 3000,
    "deep mapping": "{a: " * 3000,
    "a date": "gamma: 2001-01-01",
    "binary": "gamma: !!binary aGk=",
    "base sixty": "num_workers: 1:99:99",
    "control characters": "gamma: \x01",
    "equals": "=: =",
}


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_readers_stumble_over_is_refused_in_seconds(name: str, tmp_path: Path) -> None:
    resolved = from_file("flags.yaml", YAML[name].encode())

    assert resolved is None
    assert not (tmp_path / "marker").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The config.json of a run."""
    config = config_of({"env": "CartPole-v1", "train_dir": "train_dir", "experiment": "run", "gamma": 0.9})
    return write_config(tmp_path_factory.mktemp("saved"), config, {"gamma": "command line"}).read_bytes()


def answered_beside(content: bytes) -> None:
    """Resume a run that has this config.json."""
    path = Path("train_dir/run") / CONFIG_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    answered(["--env=CartPole-v1", "--train_dir=train_dir", "--experiment=run"])


@fuzz(300)
@given(mutation=mutations(8000))
def test_a_damaged_config_of_a_run_is_read_or_refused_by_its_path(saved: bytes, mutation: Mutation) -> None:
    answered_beside(mutation.applied(saved))


@fuzz(300)
@given(mapping=MAPPINGS, sources=JSON, version=st.sampled_from([1, 1, 1, True, 2, None, "1"]))
def test_any_json_as_the_config_of_a_run_is_read_or_refused(
    mapping: dict[str, Any], sources: object, version: object
) -> None:
    answered_beside(json.dumps({"format_version": version, "config": mapping, "sources": sources}).encode())
