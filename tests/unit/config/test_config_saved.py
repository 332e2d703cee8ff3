"""A saved config comes back as it was, and decides what may change when its run is resumed."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from sfactory.config.flags import all_flags, coerce, config_of, values_of
from sfactory.config.saved_config import FROZEN, NOTED, SavedConfig, check_resume, read_config, write_config
from sfactory.config.schema import Config
from sfactory.errors import ConfigError, ResourceError

CONFIG = config_of(
    {"env": "m:f", "env_kwargs": {"a": [1, {"b": None}]}, "encoder_mlp_layers": (), "seed": 3, "learning_rate": 1e-3}
)


def saved_in(folder: Path) -> SavedConfig:
    saved = read_config(folder)
    assert saved is not None
    return saved


def test_a_written_config_replaces_the_file_and_is_read_back_equal(tmp_path: Path) -> None:
    assert read_config(tmp_path) is read_config(tmp_path / "missing") is None
    write_config(tmp_path, Config(), {})
    path = write_config(tmp_path, CONFIG, {"seed": "command line"})

    saved = saved_in(tmp_path)

    assert [entry.name for entry in tmp_path.iterdir()] == [path.name] == ["config.json"]
    assert config_of(saved.values) == CONFIG
    assert saved.sources == {"seed": "command line"}
    assert saved.warnings == ()
    with pytest.raises(ResourceError, match="another --train_dir"):
        write_config(tmp_path / "missing", CONFIG, {})


def test_the_deepest_value_that_is_accepted_can_be_saved_and_read(tmp_path: Path) -> None:
    flag, deep = all_flags()["env_kwargs"], lambda depth: '{"a": ' * depth + "1" + "}" * depth
    config = config_of({"env_kwargs": coerce(flag, deep(50))})
    write_config(tmp_path, config, {})

    assert saved_in(tmp_path).values["env_kwargs"] == config.run.env_kwargs
    with pytest.raises(ValueError, match="more than 50 brackets deep"):
        coerce(flag, deep(51))


def test_keys_of_other_versions_are_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"format_version": 1, "config": {"gamma": 0.5, "old_flag": 3}}')

    saved = saved_in(tmp_path)

    # Flags that are newer than the file have the values that the run was trained with.
    older = {"normalize_actions": False, "one_hot_max": 0, "obs_layout": ("by_rank",), "critic_obs_keys": ()}
    assert saved.values == {"gamma": 0.5, **older}
    assert ["old_flag" in warning for warning in saved.warnings] == [True]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "not valid JSON"),
        ('{"format_version": 1, "config": 3}', "no object under the key 'config'"),
        ('{"format_version": 2, "config": {}}', "resume with the version that wrote it"),
        ('{"format_version": 1, "config": {"gamma": "high"}}', "--gamma=high"),
        ('{"format_version": 1, "config": {"gamma": NaN}}', "not valid JSON"),
    ],
)
def test_a_damaged_config_json_is_refused_by_name_and_with_advice(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "config.json").write_text(content)

    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)

    (problem,) = caught.value.problems
    assert str(tmp_path / "config.json") in problem
    assert expected in problem
    assert "another --experiment" in problem


def test_settings_of_one_start_and_of_tuning_are_not_kept(tmp_path: Path) -> None:
    of_one_start = {"autotune": True, "autotune_seconds": 1.0, "restart_behavior": "restart"}
    config = config_of({**values_of(CONFIG), **of_one_start, "load_checkpoint_kind": "best", "num_workers": 7})
    write_config(tmp_path, config, {"autotune": "command line", "num_workers": "autotune"})

    saved = saved_in(tmp_path)

    assert config_of(saved.values) == config_of({**values_of(CONFIG), "num_workers": 7})
    assert saved.sources == {"num_workers": "autotune"}
    assert not {*of_one_start, "load_checkpoint_kind"} & saved.resumable.keys()


def test_frozen_differences_are_refused_all_at_once(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG, {})
    frozen = {"env": "m:g", "optimizer": "adamw", "encoder_mlp_layers": (8,), "nonlinearity": "relu", "use_cpc": True}

    with pytest.raises(ConfigError) as caught:
        check_resume(saved_in(tmp_path), config_of({**values_of(CONFIG), **frozen, "gamma": 0.5}))

    problems = sorted(caught.value.problems)
    assert [re.split("[= ]", line)[0] for line in problems] == [f"--{name}" for name in sorted(frozen)]
    assert all(old in line for old, line in zip(("", "m:f", "elu", "adam", "False"), problems, strict=True))


def test_noted_differences_warn_and_free_ones_pass(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG, {})
    noted = {"gamma": 0.5, "batch_size": 2048, "learning_rate": 0.1, "use_target_net": True, "env_frameskip": 4}
    free = {"num_workers": 7, "train_for_env_steps": 5, "amp": "bf16", "cuda_graphs": True}

    changed = check_resume(saved_in(tmp_path), config_of({**values_of(CONFIG), **noted, **free}))

    assert sorted(line.split("=")[0] for line in changed) == [f"--{name}" for name in sorted(noted)]
    assert not FROZEN & NOTED


def test_another_seed_is_noted_and_none_asks_for_no_seed(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG, {})
    saved = saved_in(tmp_path)

    other = check_resume(saved, config_of({**values_of(CONFIG), "seed": 4}))
    assert other == ["--seed=4: the run was started with --seed=3"]
    assert check_resume(saved, config_of({**values_of(CONFIG), "seed": None})) == []
    drawn_later = dataclasses.replace(saved, values={**saved.values, "seed": None})
    assert check_resume(drawn_later, config_of({**values_of(CONFIG), "seed": 4})) == []
