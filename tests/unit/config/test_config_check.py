"""Values beyond their bounds and unknown environments are refused, with what would work instead."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from sfactory.config.flags import Flag, all_flags, coerce, config_of, is_of_type, type_text, value_text
from sfactory.config.schema import Config
from sfactory.config.validation import check, check_env_name

BOUNDED = [flag for flag in all_flags().values() if flag.info.ge is not None or flag.info.gt is not None]


def problems(**values: Any) -> list[str]:
    return check(config_of({"env": "CartPole-v1", **values}))


def test_the_defaults_lack_only_an_environment() -> None:
    (problem,) = check(Config())

    assert problem.startswith("--env=: an environment is required")
    assert problems() == []


@pytest.mark.parametrize("flag", BOUNDED, ids=lambda flag: flag.name)
def test_every_bounded_flag_refuses_what_lies_beyond_its_bounds(flag: Flag) -> None:
    info, name = flag.info, flag.name
    wrong: list[Any] = [info.gt if info.ge is None else info.ge - 1, info.le and info.le + 1, info.lt]

    for value in (each for each in wrong if each is not None):
        number = int(value) if isinstance(flag.default, int) or flag.is_list or name == "seed" else float(value)
        (problem,) = problems(**{name: (number,) if flag.is_list else number})

        assert problem.startswith(f"--{name}")
        assert "must be" in problem


@pytest.mark.parametrize("name", [name for name, flag in all_flags().items() if flag.type is float])
def test_no_real_number_may_be_nan_or_infinite(name: str) -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert "must be a finite number" in problems(**{name: value})[0]


@pytest.mark.parametrize("flag", all_flags().values(), ids=lambda flag: flag.name)
def test_every_default_survives_the_way_over_text_and_over_data(flag: Flag) -> None:
    assert is_of_type(flag.type, flag.default)
    assert coerce(flag, value_text(flag.default)) == flag.default
    assert coerce(flag, flag.default) == flag.default
    assert type_text(flag)


@pytest.mark.parametrize("name", ["CartPole-v1", "CartPole", "Taxi-v4", "os:getcwd", "json.decoder:JSONDecoder"])
def test_known_environment_names_pass(name: str) -> None:
    assert check_env_name(name) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CartPol-v1", "did you mean CartPole-v1?"),
        ("cartpole-v1", "did you mean CartPole-v1?"),
        ("CartPole-v99", "there are CartPole-v0, CartPole-v1"),
        ("Nowhere/Thing-v5", "--env=package:Nowhere/Thing-v5"),
        ("not an id", "CartPole-v1"),
        ("no_such_module_here:make", f"module 'no_such_module_here' cannot be found from {Path.cwd()}"),
        ("json.nothing:make", "package 'json' does not hold it"),
        ("this.that:make", "'this' is a module, not a package"),
        (":make", "module:function"),
        ("json:", "module:function"),
        ("a:b:c", "module:function"),
        ("my-envs:make", "not the name of a module"),
    ],
)
def test_unknown_environment_names_are_refused_with_advice(name: str, expected: str) -> None:
    (problem,) = check_env_name(name)

    assert problem.startswith(f"--env={name}: ")
    assert expected in problem


def test_a_module_in_the_current_directory_is_found_without_being_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "explosive_envs.py").write_text("raise RuntimeError('executed')\n")
    (tmp_path / "explosive_package").mkdir()
    (tmp_path / "explosive_package" / "__init__.py").write_text("raise RuntimeError('executed')\n")
    (tmp_path / "explosive_package" / "inner.py").write_text("")

    assert check_env_name("explosive_envs:make") == []
    assert check_env_name("explosive_package.inner:make") == []
    assert "does not hold it" in check_env_name("explosive_package.outer:make")[0]
    assert not {"explosive_envs", "explosive_package"} & set(sys.modules)
