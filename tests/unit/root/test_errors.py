"""Errors say in one line what happened, and where code that is not ours raised."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from sfactory.errors import CheckpointError, ConfigError, LearnerDied, SFactoryError, WorkerDied, raised_at


@pytest.mark.parametrize(
    ("error", "headline"),
    [
        (CheckpointError("it does not fit:\n  gru -> lstm"), "it does not fit:"),
        (ConfigError(["--gamma: too large"]), "--gamma: too large"),
        (ConfigError(["--gamma: too large", "--seed: no number", "--env: unknown"]), "--gamma: too large (and 2 more)"),
        (WorkerDied("Traceback:\n  File x\nsf-actor-0 failed: ValueError"), "sf-actor-0 failed: ValueError"),
        (LearnerDied("sf-learner-0 was killed"), "sf-learner-0 was killed"),
        (CheckpointError(), "CheckpointError"),
    ],
    ids=str,
)
def test_the_headline_is_the_line_that_says_what_happened(error: SFactoryError, headline: str) -> None:
    assert error.headline == headline


def test_where_code_of_others_raised_is_told() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 // 0

    assert f"{Path(__file__).name}:" in raised_at(caught.value)
    assert raised_at(caught.value).endswith("in test_where_code_of_others_raised_is_told)")


def test_gymnasium_itself_is_no_place_to_look_at() -> None:
    with pytest.raises(gymnasium.error.Error) as caught:
        gymnasium.make("NoSuchEnv-v0")
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without the frame of this test

    assert raised_at(error) == ""
