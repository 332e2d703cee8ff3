"""What autotune finds is set against a grid by hand that keeps to the same bounds."""

from __future__ import annotations

import pytest

from scripts.autotune_check import Setting, chosen, empty, grid, most_envs, told, verdict
from scripts.trainer import benchmark
from sfactory.benchmark.autotune import MOST_DATASETS_A_ROUND, datasets_a_round, require_short_lag
from sfactory.config.resolve import read_command_line
from sfactory.config.schema import Config
from sfactory.layout import Layout

RATES = {
    "autotuned": [95.0, 180.0, 100.0],
    "best by hand": [90.0, 190.0, 90.0],
    "second by hand": [100.0, 200.0, 80.0],
}


def config_of(env: str, *flags: str) -> Config:
    return read_command_line([*empty(env), *flags], prog="train").config


@pytest.mark.parametrize(("env", "most"), [("CartPole-v1", 128), ("atari_breakout", 64)])
def test_the_grid_has_as_many_envs_as_autotune_may_choose_and_half_as_many(env: str, most: int) -> None:
    assert most_envs(config_of(env)) == most

    layouts = []
    for setting in grid(most):
        config = config_of(env, *setting.flags)
        layouts.append(Layout.plan(config.sampling, config.learner, config.sampling.inference))  # type: ignore[arg-type]
        require_short_lag(layouts[-1], MOST_DATASETS_A_ROUND)

    assert {datasets_a_round(layout) for layout in layouts} == {1.0, 2.0}


def test_the_grid_goes_over_workers_envs_splits_and_inference() -> None:
    settings = grid(128)

    assert len(settings) == len(set(settings)) == 6 + 12
    assert Setting("local", 4, 16, 1) in settings
    assert Setting("central", 1, 128, 2) in settings
    assert {setting.splits for setting in settings if setting.inference == "local"} == {1}


def test_the_grid_leaves_out_splits_without_envs() -> None:
    assert [setting for setting in grid(4) if setting.workers == 4] == [
        Setting("local", 4, 1, 1),
        Setting("central", 4, 1, 1),
    ]


def test_what_autotune_has_chosen_is_read_from_the_command_that_it_tells() -> None:
    tuning = benchmark([*empty("CartPole-v1"), "--autotune=True"], 4.0)
    lines = (
        "[10:00:00] autotune: chosen: inference=local num_workers=2: 90,000 env steps/s\n"
        "[10:00:00] autotune: the same without it: /usr/bin/python -m sfactory.train --env=CartPole-v1 --device=cpu "
        "--benchmark=True --benchmark_stage=full --benchmark_seconds=4 --inference=local --num_workers=2\n"
        "[10:00:01] pure simulation: 2 processes, 4 s\n"
    )

    assert chosen(lines, tuning) == ["--inference=local", "--num_workers=2"]
    with pytest.raises(SystemExit, match="autotune told no command"):
        chosen("nothing", tuning)


def test_autotune_is_compared_round_by_round_with_the_better_setting_by_hand() -> None:
    found = verdict(RATES)

    # By medians the second is better than what looked best: 95 of 100, 180 of 200, 100 of 80.
    assert found["compared_with"] == "second by hand"
    assert found["ratio"] == {"median": 0.95, "min": 0.9, "max": 1.25}
    assert found["within_bounds"] is True


@pytest.mark.parametrize(("rate", "within"), [(90.0, True), (89.0, False)])
def test_more_than_a_tenth_below_is_out_of_bounds(rate: float, within: bool) -> None:
    rates = {"autotuned": [rate], "best by hand": [100.0], "second by hand": [50.0]}

    assert verdict(rates)["within_bounds"] is within


def test_the_table_tells_both_settings_and_the_ratio() -> None:
    settings = {"autotuned": ["--a=1"], "best by hand": ["--b=2"], "second by hand": ["--c=3", "--d=4"]}

    line = told({"CartPole-v1": {"settings": settings, **verdict(RATES)}}).splitlines()[-1]

    assert line == ("| CartPole-v1 | `--a=1`: 100 env steps/s | `--c=3 --d=4`: 100 env steps/s | 95% (90-125) |")
