"""Wrong values, values that do not go together and unknown environments are refused, with what would work instead."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.registration import EnvSpec, registry
from hypothesis import given
from hypothesis import strategies as st

from sfactory.config.env_names import env_name_of
from sfactory.config.flags import Flag, all_flags, coerce, config_of, is_of_type, type_text, value_text
from sfactory.config.points import parse_points
from sfactory.config.schema import Config
from sfactory.config.validation import RULES, check, check_env_name, find_problems, warnings_of
from tests.support.broken_settings import BROKEN, CPC, OWN_CRITIC, REPLAY, SYNCHRONOUS

BOUNDED = [flag for flag in all_flags().values() if flag.info.ge is not None or flag.info.gt is not None]
RING = {"minibatch_ring_size": 2, "num_epochs": 2}
TARGET = {"use_target_net": True, "target_update_interval": 8, "target_tau": 0.5, "target_worker_clip": 1.5}
SMALL = {"rollout": 16, "batch_size": 64}
GAE = {"with_vtrace": False}
PBT: dict[str, Any] = {"with_pbt": True, "num_policies": 4}
WRONG_NAMES = ["a/b", "../x", ".hidden", "-x", "a b", "a" * 101, "a\n", "ä", "a\\b"]
BATCHERS = {"num_batchers": 2, "num_workers": 2, "num_batches_to_accumulate": 3}


@pytest.fixture(autouse=True)
def _no_extra_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)


def problems(**values: Any) -> list[str]:
    return check(config_of({"env": "CartPole-v1", **values}), chosen=values)


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CartPol-v1", "did you mean CartPole-v1?"),
        ("CartPole-v99", "there are CartPole-v0, CartPole-v1"),
        ("Nowhere/Thing-v5", "--env=package:Nowhere/Thing-v5"),
        ("not an id", "CartPole-v1"),
        ("__main__:make", "name the file of the program"),
        ("no_such_module_here:make", f"module 'no_such_module_here' cannot be found from {Path.cwd()}"),
        ("gymnasium.nothing:make", "package 'gymnasium' does not hold it"),
        ("typing_extensions.that:make", "'typing_extensions' is a module, not a package"),
        ("os:system", "'os' is a module of Python's standard library"),
        ("json.nothing:make", "'json' is a module of Python's standard library"),
        ("this:Zen-v0", "'this' is a module of Python's standard library"),
        (":make", "module:function"),
        ("a:b:c", "module:function"),
        ("my-envs:make", "not the name of a module"),
    ],
)
def test_unknown_environment_names_are_refused_with_advice(name: str, expected: str) -> None:
    (problem,) = check_env_name(name)

    assert problem.startswith(f"--env={name}: ")
    assert expected in problem


def test_an_id_like_those_that_an_imported_package_has_registered_is_answered_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry, "MiniGarden-Empty-v0", EnvSpec("MiniGarden-Empty-v0"))

    (mistyped,), (later,) = check_env_name("MiniGarden-Emptyy-v0"), check_env_name("MiniGarden-Empty-v5")

    assert mistyped.endswith("; did you mean MiniGarden-Empty-v0?")
    assert later.endswith("; there are MiniGarden-Empty-v0")


def test_known_environments_and_modules_are_found_without_being_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "explosive_envs.py").write_text("raise RuntimeError('executed')\n")
    (tmp_path / "explosive_package").mkdir()
    (tmp_path / "explosive_package" / "__init__.py").write_text("raise RuntimeError('executed')\n")
    (tmp_path / "explosive_package" / "inner.py").touch()

    for name in ("explosive_envs:make", "explosive_package.inner:make", "gymnasium:make", "CartPole", "Taxi-v4"):
        assert check_env_name(name) == []
    assert "does not hold it" in check_env_name("explosive_package.outer:make")[0]
    assert env_name_of("explosive_package/inner.py:make") == "explosive_package.inner:make"
    assert env_name_of("gymnasium/core.py:make") == "gymnasium.core:make"
    for file in ("nofile.py", "explosive_package/outer.py", "../explosive_envs.py"):
        (problem,) = check_env_name(env_name_of(f"{file}:make"))
        assert problem.startswith(f"--env={file}:make: there is no {file} below {tmp_path}")


def test_the_env_in_place_of_the_name_of_its_run_is_answered_with_that_name(tmp_path: Path) -> None:
    (tmp_path / "MinAtar-Breakout-v1").mkdir()

    for version, answer in ((1, "in --train_dir; did you mean MinAtar-Breakout-v1?"), (0, "in --train_dir")):
        values = {"env": "CartPole-v1", "experiment": f"MinAtar/Breakout-v{version}", "train_dir": str(tmp_path)}
        (problem,) = check(config_of(values))
        assert problem.endswith(answer)


def test_a_mistyped_function_is_found_in_the_source_unless_it_may_have_hidden_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("typing_errors.py").write_text("def make():\n    raise ValueError\n")
    Path("hiding_names.py").write_text("globals()['ma' + 'k'] = dict\n")

    assert "did you mean typing_errors:make?" in check_env_name("typing_errors:mak")[0]
    assert check_env_name("hiding_names:mak") == []
    assert not {"explosive_envs", "explosive_package"} & set(sys.modules)


@pytest.mark.parametrize(("blamed", "values"), BROKEN, ids=[f"{i}-{name}" for i, (name, _) in enumerate(BROKEN)])
def test_a_broken_rule_gives_one_problem_that_blames_its_first_flag(blamed: str, values: dict[str, Any]) -> None:
    config = config_of({"env": "CartPole-v1", **values})
    (found,) = check(config, chosen={blamed})

    assert re.match(rf"--{blamed}[= :]", found), found
    rule = next(rule for rule in RULES if found.endswith(f": {rule.find(config)}"))
    if rule.idle:
        assert found not in check(config, chosen=values.keys() - {blamed}), "the user did not choose it"
        assert "leave it out, or add --" in check(config, chosen={blamed})[0]


def test_every_rule_is_broken_by_a_row_of_the_table() -> None:
    configs = [config_of({"env": "CartPole-v1", **values}) for _, values in BROKEN]

    assert [rule.flags for rule in RULES if all(rule.find(config) is None for config in configs)] == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gamma": 1.5}, "--gamma=1.5: must be at most 1.0"),
        ({"encoder_mlp_layers": (64, 0)}, "--encoder_mlp_layers 64 0: every element must be at least 1"),
        ({"nonlinearity": "selu"}, "must be one of elu, relu, tanh"),
        ({"rollout": "32"}, "must be of type int"),
        ({"num_workers": True}, "must be of type int"),
        ({"rollout": 2**63}, "must be at most 2^63 - 1"),
        ({"num_envs_per_worker": 7}, "multiple of worker_num_splits (2): nearest are 6 and 8"),
        ({"batch_size": 1000}, "rollout (32): nearest are 992 and 1024"),
        ({"batch_size": 8}, "nearest is 32"),
        ({"train_dir": "a\0b"}, "directory"),
        ({"save_milestones_sec": -0.5}, "-1"),
        ({**SMALL, "recurrence": 0}, "divisor"),
        ({**SMALL, "recurrence": 5}, "4 and 8"),
        # A dataset of 432 steps is no multiple of 256; 3 x 256 is.
        ({**SYNCHRONOUS, "batch_size": 144, "num_batches_per_epoch": 3}, "batch_size 256"),
        ({**SYNCHRONOUS, "batch_size": 400}, "batch_size 256 or 512"),
        ({**SYNCHRONOUS, "batch_size": 192, "num_batches_per_epoch": 2}, "batch_size 128 or 256"),
        (RING, "--num_batches_to_accumulate=3"),
        ({**RING, **BATCHERS, "minibatch_ring_size": 4}, "--num_batches_to_accumulate=6"),
        ({**RING, **SYNCHRONOUS, "train_in_background_thread": False}, "async_rl=False and train_in_background"),
        ({"learner_queue_policy": "drop_oldest", **BATCHERS}, "--num_batches_to_accumulate=4"),
        ({**REPLAY, "replay_proportion": 3.5, "batch_size": 64, "num_batches_per_epoch": 2}, "has 4 rows"),
        ({"microbatch_size": 1024}, "nearest is 512"),
        ({"microbatch_size": 8, **GAE, "use_rnn": True}, "nearest is 32"),
        ({"microbatch_size": 16, "batch_size": 32}, "leave it at 0"),
        # The divisors of a number of any size are found in time.
        ({"microbatch_size": 3, **GAE, "rollout": 1, "batch_size": 2**62}, "nearest are 2 and 4"),
        ({"lr_schedule": "kl_adaptive"}, "did you mean kl_adaptive_epoch or kl_adaptive_minibatch?"),
        ({"lr_schedule": "0:1e-3,20:1e-4,10:0"}, "constant, linear_decay"),
        *(
            ({schedule: f"linear_decay{shares}", "train_for_env_steps": 1000}, "linear_decay:0.6:0.9")
            for schedule in ("lr_schedule", "exploration_loss_coeff_schedule")
            for shares in (":", ":0.5", ":0.9:0.6", ":0:1.5", ":-1:1", ":nan:1", ":a:b", ":0:0.5:1")
        ),
        ({"observers": ("my_hooks:Watch", "my_watcher", "my_hooks:", "a b:C")}, "'my_hooks:', 'a b:C'"),
        *(({"experiment": name}, "must be a plain name") for name in WRONG_NAMES),
    ],
)
def test_a_refusal_names_what_would_be_right(values: dict[str, Any], expected: str) -> None:
    (found,) = problems(**values)

    assert expected in found


@pytest.mark.parametrize(
    "values",
    [
        {"max_sample_requests_in_flight_per_worker": 2, "gae_lambda": 0.9},
        {"lr_schedule": "kl_adaptive_epoch", "lr_adaptive_min": 0.001, "lr_adaptive_max": 0.001},
        {"continuous_distribution": "squashed", "freeze": ("encoder", "policy", "value"), "use_rnn": True},
        {"continuous_tanh_scale": 2.0, "adaptive_stddev": False, "normalize_input_keys": ("speed",)},
        *({"save_milestones_sec": seconds} for seconds in (0.001, -1.0)),
        {"lr_schedule": "linear_decay", "train_for_frames": 1_000_000},
        {"exploration_loss_coeff_schedule": "linear_decay:0.5:1", "train_for_frames": 1_000_000},
        {**SMALL, "recurrence": 16},
        SYNCHRONOUS,
        *({**SYNCHRONOUS, "batch_size": 256 // count, "num_batches_per_epoch": count} for count in (2, 4)),
        {**SYNCHRONOUS, "async_rl": True, "batch_size": 144, "num_batches_per_epoch": 3},
        {**RING, "num_batches_to_accumulate": 3, "ring_warmup": 1, "ring_nonblocking": True},
        {**RING, **BATCHERS, "num_batches_to_accumulate": 4},
        BATCHERS,
        {**REPLAY, "replay_include_new": True, "max_replay_lag": 5},
        {**REPLAY, "serial_mode": True},
        {**REPLAY, "replay_proportion": 3.0, "batch_size": 64, "num_batches_per_epoch": 2},
        *({"microbatch_size": size, **GAE} for size in (1, 512)),
        {"vtrace_drop_last_ts": True, "rollout": 2},
        *({"vtrace_pg_rho": 2.0, **weighted} for weighted in ({"policy_loss": "pg"}, {"vtrace_adv_weighting": "rho"})),
        {"kl_target": 0.01, "kl_loss_coeff": 0.2},
        TARGET,
        {"exploration_loss_coeff_schedule": "0:0.01, 1e6:0", "exploration_loss": "symmetric_kl"},
        {**OWN_CRITIC, "value_lr": 0.0},
        {"encoder": "my_networks:Own", "nonlinearity": "tanh", "use_layer_norm": True, "decoder_mlp_layers": (8,)},
        {"model": "my_networks:Own", "amp": "bf16", "normalize_returns": False},
        {**CPC, "cpc_forward_steps": 31, "cpc_forward_subsample": 31, "observers": ("my_hooks:Watch", "a.b:C")},
        *({"experiment": name} for name in ("a", "0", "cartpole_1.2-b", "a" * 100)),
    ],
)
def test_settings_that_go_together_pass(values: dict[str, Any]) -> None:
    assert problems(**values) == []


def test_optimizers_of_the_extra_are_accepted_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pytest.importorskip("pytorch_optimizer")
    assert problems(optimizer="lamb") == problems(optimizer="muon", weight_decay=0.1) == []


def test_a_flag_that_is_wrong_by_itself_suspends_its_rules() -> None:
    config = config_of({"env": "CartPole-v1", "rollout": 0, "batch_size": 999})

    assert [problem.flags for problem in find_problems(config)] == [("rollout",)]
    assert find_problems(config, skip={"rollout"}) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"publish_interval": 1000, "num_epochs": 2, "num_batches_per_epoch": 4}, "1003 updates"),
        ({"vtrace_rho": 0.5}, "--vtrace_rho=0.5"),
        ({"vtrace_c": None}, "vtrace_c (None)"),
        ({"num_batchers": 2, "num_workers": 3, "num_batches_to_accumulate": 3}, "half of num_workers"),
        ({"minibatch_ring_size": 2, "num_batches_to_accumulate": 3}, "--num_epochs=1"),
        (
            {"num_workers": 4, "num_envs_per_worker": 64, "rollout": 128, "num_batches_to_accumulate": 0},
            "the 32768 that the actors collect at a time",
        ),
        ({"gae_lambda": 0.9}, "or add --with_vtrace=False"),
        ({"learning_rate": 0.05, "lr_schedule": "kl_adaptive_epoch"}, "lr_adaptive_max (0.01)"),
        ({"learning_rate": 1e-7, "lr_schedule": "kl_adaptive_minibatch"}, "lr_adaptive_min (1e-06)"),
        ({"exploration_loss": "none", "exploration_loss_coeff": 0.01}, "or add --exploration_loss=entropy"),
        ({"rnn_size": 256}, "or add --use_rnn=True"),
        ({"recurrence": 1}, "--recurrence=1: has no effect as it is"),
        ({"obs_layout": ("camera=hwc", "camera=flat")}, "a key has two layouts, of which the last one counts"),
        ({**PBT, "train_for_env_steps": 500_000}, "--pbt_start_mutation=50000 --pbt_period_env_steps=50000"),
        ({**PBT, "train_for_frames": 4_000_000, "env_frameskip": 4}, "training ends after 1000000: "),
        ({**PBT, "num_policies": 2, "policy_mapping": "red_*=0,blue_*=1"}, "copy one that has learned another task"),
        ({**PBT, "train_for_env_steps": 5, "pbt_start_mutation": 5}, "--pbt_start_mutation=1 "),
        ({**PBT, "train_for_env_steps": 5, "pbt_start_mutation": 4}, "each policy has one turn alone"),
        ({**PBT, "train_for_env_steps": 5, "pbt_start_mutation": 2, "pbt_period_env_steps": 3}, "one turn alone, as"),
        ({"save_best_metric": "reward", "train_for_env_steps": 99_999}, "--save_best_after=0"),
        ({"save_best_metric": "x", "save_best_every_sec": 1.0, "train_for_env_steps": 5}, "--save_best_metric=x: "),
        ({"save_best_every_sec": 1.0, "train_for_frames": 40, "env_frameskip": 4}, "training ends after 10: "),
        ({"init_from": "run", "init_parts": ("encoder", "core")}, "--init_parts encoder core: if its run has"),
        ({"init_from": "run", "init_parts": ("model",)}, "here they are normalized by new statistics: add normalizer"),
        ({"freeze": ("encoder",)}, "--freeze encoder: its inputs are normalized by statistics that go on changing"),
        ({"init_from": "run", "init_parts": ("normalizer", "model"), "freeze": ("encoder", "normalizer")}, None),
        ({"init_from": "run", "init_parts": ("core", "value"), "freeze": ("core", "policy"), "use_rnn": True}, None),
        ({"init_from": "run", "init_parts": ("encoder",), "freeze": ("model",), "normalize_input": False}, None),
        ({}, None),
        (PBT, None),
        ({**PBT, "policy_mapping": "agent"}, None),
        ({**PBT, "train_for_env_steps": 5, "pbt_start_mutation": 2, "pbt_period_env_steps": 2}, None),
        ({"train_for_env_steps": 5}, None),
        ({"publish_interval": 1000, "num_epochs": 2}, None),
        ({"vtrace_rho": 0.5, "vtrace_c": 0.5}, None),
        ({"vtrace_rho": 0.5, **GAE}, None),
        ({"num_batchers": 2, "num_workers": 4}, None),
        ({"minibatch_ring_size": 2, "num_epochs": 2}, None),
        ({"num_workers": 4, "num_envs_per_worker": 64, "rollout": 128}, None),
        ({"num_workers": 4, "num_envs_per_worker": 8, "rollout": 32, "num_batches_to_accumulate": 0}, None),
        ({"gae_lambda": 0.9, **GAE}, None),
        ({"gae_lambda": 0.9, "rnd": True}, None),
        ({"learning_rate": 0.05}, None),
        ({"learning_rate": 0.01, "lr_schedule": "kl_adaptive_epoch"}, None),
        ({"rnn_size": 256, "rnn_type": "lstm", "recurrence": 1, "use_rnn": True}, None),
        ({"save_best_metric": "reward", "train_for_env_steps": 100_000}, None),
        ({"save_best_metric": "reward", "save_best_after": 0, "train_for_env_steps": 5}, None),
    ],
)
def test_unusual_settings_give_one_warning_and_others_none(values: dict[str, Any], expected: str | None) -> None:
    warnings = warnings_of(config_of({"env": "CartPole-v1", **values}), chosen=values)

    assert len(warnings) == (expected is not None)
    assert all(expected in line for line in warnings if expected)
    assert expected is None or problems(**values) == []


def test_a_value_without_effect_that_the_user_did_not_set_is_no_warning() -> None:
    assert warnings_of(config_of({"env": "CartPole-v1", "rnn_size": 256}), chosen=["env"]) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no points"),
        ("5e-4", "'5e-4' is not a point STEPS:VALUE"),
        ("0:1,", "'' is not a point STEPS:VALUE"),
        ("0:1:2", "'0:1:2' is not a point STEPS:VALUE"),
        ("10:1", "the first point must be at step 0, and is at 10"),
        ("0:1,20:1,10:1", "steps must rise, and 10 follows 20"),
        ("0:1,10:1,10:2", "step 10 stands twice"),
        ("0:1,5:-1e-9", "the value of '5:-1e-9' must be at least 0"),
        ("0:nan", "both numbers of '0:nan' must be finite"),
    ],
)
def test_wrong_points_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        parse_points(text)


@given(
    steps=st.sets(st.floats(min_value=1e-3, max_value=1e12), max_size=5),
    values=st.lists(st.floats(min_value=0, max_value=1e6), min_size=6, max_size=6),
)
def test_every_rising_list_that_begins_at_zero_is_read_back_exactly(steps: set[float], values: list[float]) -> None:
    points = tuple(zip([0.0, *sorted(steps)], values, strict=False))

    assert parse_points(",".join(f"{step!r}:{value!r}" for step, value in points)) == points
    assert parse_points(" 0 : 0.01 , 1_000_000:5e-4") == ((0.0, 0.01), (1e6, 5e-4))
