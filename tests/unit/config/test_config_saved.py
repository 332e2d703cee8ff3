"""A saved config comes back as it was, and decides what may change when its run is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfactory.config.flags import config_of, values_of
from sfactory.config.saved_config import FROZEN, NOTED, check_resume, diff, read_config, write_config
from sfactory.config.schema import Config
from sfactory.errors import ConfigError, ResourceError

CONFIG = config_of(
    {"env": "m:f", "env_kwargs": {"a": [1, {"b": None}]}, "encoder_mlp_layers": (), "seed": 3, "learning_rate": 1e-3}
)


def test_a_written_config_is_read_back_equal(tmp_path: Path) -> None:
    path = write_config(tmp_path, CONFIG, {"seed": "command line"})

    saved = read_config(tmp_path)

    assert path == tmp_path / "config.json"
    assert saved is not None
    assert config_of(saved.values) == CONFIG
    assert saved.sources == {"seed": "command line"}
    assert saved.warnings == ()
    assert json.loads(path.read_text())["format_version"] == 1


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_config(tmp_path, Config(), {})
    write_config(tmp_path, CONFIG, {})

    saved = read_config(tmp_path)

    assert saved is not None
    assert saved.values["env"] == "m:f"
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_directory_that_cannot_be_written_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="another --train_dir"):
        write_config(tmp_path / "missing", CONFIG, {})


def test_a_run_without_config_json_has_none(tmp_path: Path) -> None:
    assert read_config(tmp_path) is None
    assert read_config(tmp_path / "missing") is None


def test_keys_of_other_versions_are_left_out_with_a_warning(tmp_path: Path) -> None:
    content = {"format_version": 1, "config": {"gamma": 0.5, "old_flag": 3}, "sources": {}}
    (tmp_path / "config.json").write_text(json.dumps(content))

    saved = read_config(tmp_path)

    assert saved is not None
    assert saved.values == {"gamma": 0.5}
    assert len(saved.warnings) == 1
    assert "old_flag" in saved.warnings[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "not valid JSON"),
        ('{"format_version": 1, "con', "not valid JSON"),
        ("[]", "no object under the key 'config'"),
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

    assert len(caught.value.problems) == 1
    assert str(tmp_path / "config.json") in caught.value.problems[0]
    assert expected in caught.value.problems[0]
    assert "another --experiment" in caught.value.problems[0]


def test_a_run_keeps_no_wish_to_be_tuned(tmp_path: Path) -> None:
    config = config_of({**values_of(CONFIG), "autotune": True, "autotune_seconds": 1.0, "num_workers": 7})
    write_config(tmp_path, config, {"autotune": "command line", "num_workers": "autotune"})

    saved = read_config(tmp_path)

    assert saved is not None
    assert (saved.values["autotune"], saved.values["autotune_seconds"], saved.values["num_workers"]) == (False, 3.0, 7)
    assert saved.sources == {"num_workers": "autotune"}
    assert "autotune" not in saved.resumable


def test_diff_lists_old_and_new_values() -> None:
    new = values_of(config_of({**values_of(CONFIG), "gamma": 0.5, "seed": None}))

    assert diff(values_of(CONFIG), new) == [("seed", 3, None), ("gamma", 0.99, 0.5)]
    assert diff({"seed": 3}, {"gamma": 1.0}) == []


def test_frozen_and_noted_flags_do_not_overlap() -> None:
    assert {"env", "encoder_mlp_layers", "nonlinearity", "use_spectral_norm", "use_cpc", "optimizer"} <= FROZEN
    assert {"gamma", "learning_rate", "batch_size", "env_kwargs", "use_target_net"} <= NOTED
    assert not FROZEN & NOTED


def test_how_the_network_computes_may_change_since_its_weights_stay_what_they_are() -> None:
    assert not {"amp", "cuda_graphs"} & (FROZEN | NOTED)


def test_frozen_differences_are_refused_all_at_once(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG, {})
    saved = read_config(tmp_path)
    assert saved is not None
    changed = config_of({**values_of(CONFIG), "env": "m:g", "nonlinearity": "relu", "gamma": 0.5})

    with pytest.raises(ConfigError) as caught:
        check_resume(saved, changed)

    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].startswith("--env=m:g")
    assert "m:f" in caught.value.problems[0]
    assert "--nonlinearity=elu" in caught.value.problems[1]


def test_noted_differences_warn_and_free_ones_pass(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG, {})
    saved = read_config(tmp_path)
    assert saved is not None
    changed = {"gamma": 0.5, "batch_size": 2048, "learning_rate": 0.1, "num_workers": 7, "train_for_env_steps": 5}

    warnings = check_resume(saved, config_of({**values_of(CONFIG), **changed}))

    assert [line.split("=")[0] for line in warnings] == ["--batch_size", "--gamma", "--learning_rate"]
