"""Every setting that cannot work is refused, with what would work instead."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import pytest

from sfactory.config.flags import all_flags, coerce, config_of, is_of_type, parse_text, type_text, value_text, values_of
from sfactory.config.schema import Config
from sfactory.config.validation import check, check_env_name

INF = math.inf
SPEC_FIELDS = [flag for flag in all_flags().values() if flag.info.ge is not None or flag.info.gt is not None]


def problems(**values: object) -> list[str]:
    return check(config_of({"env": "CartPole-v1", **values}))


def test_the_defaults_of_the_schema_lack_only_an_environment() -> None:
    found = check(Config())

    assert len(found) == 1
    assert found[0].startswith("--env=: an environment is required")
    assert problems() == []


@pytest.mark.parametrize("flag", SPEC_FIELDS, ids=lambda flag: flag.name)
def test_every_bounded_flag_refuses_what_lies_beyond_its_bounds(flag: object) -> None:
    info = flag.info  # type: ignore[attr-defined]
    name: str = flag.name  # type: ignore[attr-defined]
    is_list: bool = flag.is_list  # type: ignore[attr-defined]
    wrong = [info.gt] if info.gt is not None else [info.ge - 1]
    wrong += [] if info.le is None else [info.le + 1]
    wrong += [] if info.lt is None else [info.lt]

    for value in wrong:
        number = int(value) if isinstance(all_flags()[name].default, int) or is_list or name == "seed" else float(value)
        found = problems(**{name: (number,) if is_list else number})

        assert len(found) == 1, found
        assert found[0].startswith(f"--{name}")
        assert "must be" in found[0]


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
@pytest.mark.parametrize("name", [name for name, flag in all_flags().items() if flag.type is float])
def test_no_real_number_may_be_nan_or_infinite(name: str, value: float) -> None:
    assert "must be a finite number" in problems(**{name: value})[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gamma": 1.5}, "--gamma=1.5: must be at most 1.0"),
        ({"encoder_mlp_layers": (64, 0)}, "--encoder_mlp_layers 64 0: every element must be at least 1"),
        (
            {"num_envs_per_worker": 7},
            "--num_envs_per_worker=7: must be a multiple of worker_num_splits (2): nearest are 6 and 8",
        ),
        ({"num_envs_per_worker": 1}, "nearest is 2"),
        ({"batch_size": 1000}, "--batch_size=1000: must be a multiple of rollout (32): nearest are 992 and 1024"),
        ({"batch_size": 8}, "nearest is 32"),
        ({"sampler_only": True}, "add --benchmark=True"),
        ({"lr_schedule": "linear_decay"}, "--train_for_env_steps"),
        ({"inference": "local", "policy_workers_per_policy": 2, "num_workers": 4}, "--inference=central"),
        ({"policy_workers_per_policy": 3, "num_workers": 2}, "must be at most num_workers (2)"),
        ({"nonlinearity": "selu"}, "must be one of elu, relu, tanh"),
        ({"rollout": "32"}, "must be of type int"),
        ({"num_workers": True}, "must be of type int"),
        ({"rollout": 2**63}, "must be at most 2^63 - 1"),
        ({"train_dir": ""}, "must name a directory"),
        ({"train_dir": "a\0b"}, "must name a directory"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(values: dict[str, object], expected: str) -> None:
    found = problems(**values)

    assert len(found) == 1, found
    assert expected in found[0]


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "-x", "a b", "a" * 101, "a\n", "ä", "a\\b"])
def test_an_experiment_is_a_plain_name(name: str) -> None:
    assert "must be a plain name" in problems(experiment=name)[0]


@pytest.mark.parametrize("name", ["a", "0", "cartpole_1.2-b", "a" * 100])
def test_plain_experiment_names_pass(name: str) -> None:
    assert problems(experiment=name) == []


def test_linear_decay_passes_once_the_end_is_known() -> None:
    assert problems(lr_schedule="linear_decay", train_for_env_steps=1_000_000) == []


@pytest.mark.parametrize("flag", all_flags().values(), ids=lambda flag: flag.name)
def test_every_default_survives_the_way_over_text_and_over_data(flag: object) -> None:
    flag = all_flags()[flag.name]  # type: ignore[attr-defined]

    assert is_of_type(flag.type, flag.default)
    assert parse_text(flag, value_text(flag.default)) == flag.default
    assert coerce(flag, flag.default) == flag.default
    assert type_text(flag)


def test_values_and_config_are_the_same_thing_twice() -> None:
    config = dataclasses.replace(Config(), algo=dataclasses.replace(Config().algo, gamma=0.5))

    assert values_of(config)["gamma"] == 0.5
    assert config_of(values_of(config)) == config


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
        ("no_such_module_here:make", "module 'no_such_module_here' cannot be found from"),
        ("no_such_module_here:Thing-v0", "module 'no_such_module_here' cannot be found from"),
        ("json.nothing:make", "package 'json' does not hold it"),
        ("this.that:make", "'this' is a module, not a package"),
        (":make", "module:function"),
        ("json:", "module:function"),
        ("a:b:c", "module:function"),
        ("my-envs:make", "not the name of a module"),
    ],
)
def test_unknown_environment_names_are_refused_with_advice(name: str, expected: str) -> None:
    found = check_env_name(name)

    assert len(found) == 1
    assert found[0].startswith(f"--env={name}: ")
    assert expected in found[0]


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


def test_a_missing_module_is_reported_with_the_directory_it_was_sought_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert str(tmp_path) in check_env_name("no_such_module_here:make")[0]
