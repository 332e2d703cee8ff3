"""Settings that do not go together are refused, blaming one of them and saying what would be right instead."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.rules import RULES
from sfactory.config.validation import check
from tests.support.broken_settings import BROKEN, SYNCHRONOUS


@pytest.fixture(autouse=True)
def _no_extra_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)


def problems(**values: Any) -> list[str]:
    return check(config_of({"env": "CartPole-v1", **values}), chosen=values)


def is_idle(blamed: str, values: dict[str, Any]) -> bool:
    config = config_of({"env": "CartPole-v1", **values})
    return any(rule.idle and rule.flags[0] == blamed and rule.find(config) for rule in RULES)


def numbers_in(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", text)}


@pytest.mark.parametrize(("blamed", "values"), BROKEN, ids=[f"{i}-{name}" for i, (name, _) in enumerate(BROKEN)])
def test_every_rule_speaks_alone_when_it_is_broken_and_blames_its_first_flag(
    blamed: str, values: dict[str, Any]
) -> None:
    config = config_of({"env": "CartPole-v1", **values})

    found = check(config, chosen=values)

    assert len(found) == 1, found
    assert re.match(rf"--{blamed}[= :]", found[0]), found[0]
    assert any(found[0].endswith(f": {rule.find(config)}") for rule in RULES)


def test_no_rule_goes_untried() -> None:
    configs = [config_of({"env": "CartPole-v1", **values}) for _, values in BROKEN]

    untried = [rule.flags for rule in RULES if all(rule.find(config) is None for config in configs)]

    assert untried == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {**SYNCHRONOUS, "max_sample_requests_in_flight_per_worker": 2},
            "--max_sample_requests_in_flight_per_worker=2: must be 0 where collection waits for the learner anyway "
            "(async_rl=False or num_batches_to_accumulate=0)",
        ),
        (
            {"num_batches_to_accumulate": 0, "max_sample_requests_in_flight_per_worker": 1},
            "--max_sample_requests_in_flight_per_worker=1: must be 0 where collection waits for the learner anyway "
            "(async_rl=False or num_batches_to_accumulate=0)",
        ),
        (
            {"lr_adaptive_min": 0.001, "lr_adaptive_max": 0.0005},
            "--lr_adaptive_min=0.001: must be at most lr_adaptive_max (0.0005)",
        ),
        (
            {"continuous_tanh_scale": 2.0},
            "--continuous_tanh_scale=2.0: needs --adaptive_stddev=False: a standard deviation that the network gives "
            "could not follow the squashed mean",
        ),
        (
            {"normalize_input": False, "normalize_input_keys": ("speed", "map")},
            "--normalize_input_keys speed map: has no effect with --normalize_input=False: leave one of the two out",
        ),
        (
            {"save_milestones_sec": 0.0},
            "--save_milestones_sec=0.0: must be greater than 0, or -1 to save no milestones",
        ),
        (
            {"save_milestones_sec": -0.5},
            "--save_milestones_sec=-0.5: must be greater than 0, or -1 to save no milestones",
        ),
        (
            {"serial_mode": True, "benchmark": True},
            "--serial_mode=True: a benchmark measures the processes of a run, and serial mode has none: leave one of "
            "the two out",
        ),
        (
            {"serial_mode": True, "num_workers": 2, "policy_workers_per_policy": 2},
            "--policy_workers_per_policy=2: must be 1 in serial mode, where everything runs one after the other",
        ),
    ],
)
def test_the_advice_names_what_would_be_right(values: dict[str, Any], expected: str) -> None:
    assert problems(**values) == [expected]


@pytest.mark.parametrize(
    "values",
    [
        {"max_sample_requests_in_flight_per_worker": 2},
        {"lr_adaptive_min": 0.001, "lr_adaptive_max": 0.001},
        {"continuous_tanh_scale": 2.0, "adaptive_stddev": False},
        {"normalize_input_keys": ("speed",)},
        {"save_milestones_sec": 0.001},
        {"save_milestones_sec": -1.0},
        {"serial_mode": True},
        {"benchmark": True},
        {"lr_schedule": "linear_decay", "train_for_frames": 1_000_000},
        {"lr_schedule": "linear_decay", "train_for_env_steps": 1_000_000},
    ],
)
def test_what_goes_together_passes(values: dict[str, Any]) -> None:
    assert problems(**values) == []


@pytest.mark.parametrize(("recurrence", "nearest"), [(5, {4, 8}), (3, {2, 4}), (13, {8, 16})])
def test_a_recurrence_that_is_no_divisor_is_refused_with_the_nearest_that_are(
    recurrence: int, nearest: set[int]
) -> None:
    found = problems(rollout=16, batch_size=64, recurrence=recurrence)

    assert len(found) == 1, found
    _, _, advice = found[0].rpartition("nearest")
    assert found[0].startswith(f"--recurrence={recurrence}: must be a divisor of rollout (16)")
    assert numbers_in(advice) == nearest
    assert all(problems(rollout=16, batch_size=64, recurrence=each) == [] for each in nearest)


@pytest.mark.parametrize("recurrence", [-1, 1, 2, 4, 8, 16])
def test_a_recurrence_that_is_a_divisor_passes(recurrence: int) -> None:
    assert problems(rollout=16, batch_size=64, recurrence=recurrence) == []


def test_no_recurrence_at_all_is_refused() -> None:
    found = problems(rollout=16, batch_size=64, recurrence=0)

    assert len(found) == 1
    assert found[0].startswith("--recurrence=0: must be a divisor of rollout (16)")


@pytest.mark.parametrize(
    ("sizes", "right"),
    [
        # A dataset of 432 steps is no multiple of 256; 3 x 256 is.
        ({"batch_size": 144, "num_batches_per_epoch": 3}, {256}),
        ({"batch_size": 144}, {256}),
        ({"batch_size": 400}, {256, 512}),
        ({"batch_size": 192, "num_batches_per_epoch": 2}, {128, 256}),
    ],
)
def test_a_synchronous_dataset_that_is_no_whole_number_of_rounds_is_refused_with_sizes_that_are(
    sizes: dict[str, int], right: set[int]
) -> None:
    found = problems(**{**SYNCHRONOUS, **sizes})

    assert len(found) == 1, found
    _, _, advice = found[0].rpartition("nearest")
    offered = numbers_in(advice.rpartition("batch_size")[2])
    assert found[0].startswith("--async_rl=False: ")
    assert "batch_size" in advice, found[0]
    assert right <= offered, found[0]
    assert all(problems(**{**SYNCHRONOUS, **sizes, "batch_size": each}) == [] for each in right)


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_a_synchronous_dataset_of_one_round_passes_however_it_is_cut(batches: int) -> None:
    assert problems(**{**SYNCHRONOUS, "batch_size": 256 // batches, "num_batches_per_epoch": batches}) == []


def test_the_size_of_datasets_is_free_where_collection_goes_on() -> None:
    assert problems(**{**SYNCHRONOUS, "async_rl": True, "batch_size": 144, "num_batches_per_epoch": 3}) == []


IDLE = [(name, values) for name, values in BROKEN if is_idle(name, values)]


@pytest.mark.parametrize(("blamed", "values"), IDLE, ids=[f"{i}-{name}" for i, (name, _) in enumerate(IDLE)])
def test_a_value_without_effect_is_refused_only_where_somebody_chose_it(blamed: str, values: dict[str, Any]) -> None:
    config = config_of({"env": "CartPole-v1", **values})

    assert check(config, chosen=values.keys() - {blamed}) == []
    assert "leave it out, or add --" in check(config, chosen={blamed})[0]
