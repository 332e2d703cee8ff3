"""Errors have a headline, and the place where foreign code raised is known."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from sfactory.errors import (
    CheckpointError,
    ConfigError,
    LearnerDied,
    SFactoryError,
    WorkerDied,
    raised_at,
    traceback_of,
)


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


def test_place_where_foreign_code_raised_is_reported_unless_it_is_gymnasium_itself() -> None:
    with pytest.raises(ZeroDivisionError) as ours:
        _ = 1 // 0
    with pytest.raises(gymnasium.error.Error) as theirs:
        gymnasium.make("NoSuchEnv-v0")
    assert theirs.value.__traceback__ is not None
    theirs.value.__traceback__ = theirs.value.__traceback__.tb_next  # without the frame of this test

    assert f"{Path(__file__).name}:" in raised_at(ours.value)
    assert raised_at(theirs.value) == ""


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_exhausted_memory_is_answered_with_flags(error: Exception) -> None:
    last = traceback_of(error).splitlines()[-1]

    assert last.startswith("out of memory: ")
    assert "--microbatch_size" in last
    assert traceback_of(RuntimeError("shapes differ")).splitlines()[-1] == "RuntimeError: shapes differ"
