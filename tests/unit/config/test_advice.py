"""Settings that work and are seldom meant are warned of, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from sfactory.config.flags import config_of
from sfactory.config.resolve import read_command_line
from sfactory.config.validation import check, warnings_of


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"publish_interval": 1000, "num_epochs": 2, "num_batches_per_epoch": 4},
            "--publish_interval=1000: weights may be 1003 updates old when they are replaced, and steps are masked "
            "from max_policy_lag (1000) on",
        ),
        (
            {"vtrace_rho": 0.5},
            "--vtrace_rho=0.5: is below vtrace_c (1.0): V-trace is known to converge for vtrace_rho >= vtrace_c",
        ),
        (
            {"vtrace_c": None},
            "--vtrace_rho=1.0: is below vtrace_c (None): V-trace is known to converge for vtrace_rho >= vtrace_c",
        ),
        (
            {"num_batchers": 2, "num_workers": 3, "num_batches_to_accumulate": 3},
            "--num_batchers=2: more than half of num_workers (3): one batcher assembles what several workers collect",
        ),
        (
            {"minibatch_ring_size": 2, "num_batches_to_accumulate": 3},
            "--minibatch_ring_size=2: with --num_epochs=1 each dataset is passed over once, so that turning over "
            "several changes nothing",
        ),
    ],
)
def test_what_is_seldom_meant_is_warned_of_and_allowed(values: dict[str, Any], expected: str) -> None:
    config = config_of({"env": "CartPole-v1", **values})

    assert warnings_of(config) == [expected]
    assert check(config, chosen=values) == []


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"publish_interval": 1000, "num_epochs": 2},
        {"vtrace_rho": None, "vtrace_c": None},
        {"vtrace_rho": 0.5, "vtrace_c": 0.5},
        {"vtrace_rho": 0.5, "with_vtrace": False},
        {"num_workers": 1},
        {"num_batchers": 2, "num_workers": 4},
        {"minibatch_ring_size": 2, "num_epochs": 2},
    ],
)
def test_what_is_usual_is_not_warned_of(values: dict[str, Any]) -> None:
    assert warnings_of(config_of(values)) == []


def test_the_command_line_hands_warnings_on() -> None:
    warnings = read_command_line(["--env=Taxi-v4", "--vtrace_c=2"], prog="sfactory.train").warnings

    assert len(warnings) == 1
    assert warnings[0].startswith("--vtrace_rho=1.0: is below vtrace_c (2.0)")
