"""Errors have a headline, the place where foreign code raised is known, and its texts are bounded and clean."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest
import torch

from sfactory.config.import_strings import import_current_directory
from sfactory.errors import (
    MOST_OF_REPORT,
    CheckpointError,
    ConfigError,
    LearnerDied,
    SFactoryError,
    WorkerDied,
    clean,
    named,
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
    assert pickle.loads(pickle.dumps(error)).headline == headline  # as one process tells another


def test_place_where_foreign_code_raised_is_reported_and_not_that_in_a_library() -> None:
    with pytest.raises(ZeroDivisionError) as ours:
        _ = 1 // 0
    with pytest.raises(gymnasium.error.Error) as theirs:
        gymnasium.make("NoSuchEnv-v0")
    assert theirs.value.__traceback__ is not None
    theirs.value.__traceback__ = theirs.value.__traceback__.tb_next  # without the frame of this test

    with pytest.raises(RuntimeError) as in_torch:
        torch.nn.Linear(2, 3)(torch.zeros(5))

    assert f"{Path(__file__).name}:" in raised_at(ours.value)
    assert f"{Path(__file__).name}:" in raised_at(in_torch.value)
    assert raised_at(theirs.value) == ""


def test_a_place_is_reported_although_the_current_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 // 0

    assert f"{__file__}:" in raised_at(raised.value)
    import_current_directory()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_exhausted_memory_is_answered_with_flags(error: Exception) -> None:
    last = traceback_of(error).splitlines()[-1]

    assert last.startswith("out of memory: ")
    assert "--microbatch_size" in last
    assert traceback_of(RuntimeError("shapes differ")).splitlines()[-1] == "RuntimeError: shapes differ"


def test_a_gpu_for_one_process_is_answered_with_what_to_do() -> None:
    error = RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCompile with ...")

    last = traceback_of(error).splitlines()[-1]

    assert "busy or unavailable;" in last
    assert "--inference=local" in last


HOSTILE = "\x1b[31mred\x00\x07\r\x9b" + "x" * 10_000_000 + "\u202eend"


def raised(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@pytest.mark.parametrize("shown", [named, traceback_of, lambda error: str(WorkerDied(traceback_of(error)).headline)])
def test_foreign_texts_are_shown_without_control_characters_and_their_middle(
    shown: Callable[[BaseException], str],
) -> None:
    text = shown(raised(HOSTILE))

    assert len(text) <= MOST_OF_REPORT + 200
    assert "ValueError: \\x1b[31mred\\x00\\x07\\r\\x9bxxx" in text
    assert "characters are left out here]" in text
    assert text.rstrip().endswith("\\u202eend")
    assert all(c.isprintable() or c in "\n\t" for c in text)


@pytest.mark.parametrize(("text", "shown"), [("No such level.", "No such level"), ("wait...", "wait..."), (".", "")])
def test_a_foreign_text_ends_without_a_period_as_the_sentence_goes_on(text: str, shown: str) -> None:
    assert named(raised(text)) == f"ValueError: {shown}".removesuffix(": ")


def test_a_text_without_hidden_characters_stays_as_it_is() -> None:
    text = 'line 1\n\tline 2: "Grüße 世界 \U0001f600"'

    assert clean(text) == text
    assert clean("abcdef", 4) == "ab [2 characters are left out here] ef"


def test_many_long_causes_are_bounded_together() -> None:
    error: BaseException = ValueError("first")
    for number in range(50):
        following = RuntimeError(f"{number} " + "y" * 100_000)
        following.__cause__ = error
        error = following

    text = traceback_of(error)

    assert len(text) <= MOST_OF_REPORT + 200
    assert text.startswith("ValueError: first")
    assert "RuntimeError: 49 y" in text
