"""Envs that fail in their first reset get three tries, each in a new process; few actors start at once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from sfactory.errors import ExitCode
from tests.support.files import json_rows
from tests.support.long import long
from tests.support.trainer import ENDLESS, RunTrainer, TrainerRun

ACTOR = "sf-actor-1"
ENVS = 4


def flags(folder: Path, **env_kwargs: object) -> dict[str, object]:
    return {
        "env": "tests.support.envs:FirstResets",
        "env_kwargs": {"folder": str(folder), **env_kwargs},
        "num_envs_per_worker": ENVS,
        "train_for_env_steps": ENDLESS,
    }


def faulty(folder: Path, how: str, times: int, **env_kwargs: object) -> dict[str, object]:
    return flags(folder, process=ACTOR, how=how, times=times, **env_kwargs)


def events(folder: Path, name: str, event: str) -> list[dict[str, Any]]:
    return [row for row in json_rows(folder / name) if row["event"] == event]


def failed_seeds(folder: Path, times: int) -> list[int]:
    """The seeds with which the first env was reset in the first ``times`` processes, and in the one that came after."""
    first: dict[int, int] = {}
    for line in events(folder, ACTOR, "first reset"):
        first.setdefault(line["pid"], line["seed"])
    return list(first.values())[: times + 1]


def assert_gets_ready(run: TrainerRun, folder: Path, actors: int = 2, envs: int = ENVS) -> None:
    """All envs of all actors had their first reset in the end; then the run is stopped, and ends as it should."""
    names = [f"sf-actor-{actor}" for actor in range(actors)]
    run.wait_until(lambda: all(len(events(folder, name, "was reset")) >= envs for name in names))
    run.signal_group(signal.SIGINT)
    run.assert_ended(ExitCode.SIGINT)


def assert_failed(run: TrainerRun, *words: str) -> None:
    run.assert_ended(ExitCode.FAULTS)
    for word in (ACTOR, *words):
        assert word in run.last_stderr_line, run.report(f"{word!r} is missing in the last line")


@pytest.mark.parametrize(
    ("how", "times", "inference", "reason"),
    [
        long("raise", 1, "central", "ConnectionError: the simulator refused the connection"),
        ("kill", 2, "local", "sf-actor-1 was killed by SIGSEGV"),
        ("leave", 1, "central", "sf-actor-1 ended with exit code 0"),
    ],
)
def test_actor_that_dies_in_its_first_reset_is_replaced(
    run_trainer: RunTrainer, tmp_path: Path, how: str, times: int, inference: str, reason: str
) -> None:
    run = run_trainer(**faulty(tmp_path, how, times), inference=inference)

    assert_gets_ready(run, tmp_path)
    warnings = [line for line in run.stderr.splitlines() if reason in line and "replaced" in line]
    assert len(warnings) == times, run.report("wrong number of warnings")
    assert f"try {times + 1} of 3" in warnings[-1]
    seeds = failed_seeds(tmp_path, times)
    assert len(seeds) == len(set(seeds)) == times + 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "ConnectionError: the simulator refused the connection"),
        long("exit", "SystemExit: the simulator asked to leave"),
        long("kill", "was killed by SIGSEGV"),
    ],
)
def test_actor_that_dies_in_every_first_reset_fails_the_run_after_three_tries(
    run_trainer: RunTrainer, tmp_path: Path, how: str, words: str
) -> None:
    run = run_trainer(**faulty(tmp_path, how, 99))

    assert_failed(run, words, "tried 3 times")
    assert len(failed_seeds(tmp_path, 99)) == 3
    assert run.stderr.count("replaced (try ") == 2
    if how != "kill":
        assert "Traceback (most recent call last)" in run.stderr
        assert "in reset" in run.stderr


def test_actor_that_hangs_in_its_first_reset_is_replaced_and_the_place_is_shown(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    # The limit holds for the probe as well, so it must leave a busy machine time to start one process. It bounds each
    # first reset and not their sum: those of the other actor take 7.2 s.
    flags = faulty(tmp_path, "hang", 1, reset_s=0.6) | {"num_envs_per_worker": 12}
    run = run_trainer(**flags, reset_timeout_seconds=5)

    assert_gets_ready(run, tmp_path, envs=12)
    assert run.stderr.count("replaced") == 1
    for words in ("sf-actor-1 hung here:", "envs.py", "took longer than --reset_timeout_seconds=5", "try 2 of 3"):
        assert words in run.stderr, run.report(f"does not say {words}")


def test_env_that_raises_in_its_constructor_in_an_actor_is_not_tried_again(
    run_trainer: RunTrainer, tmp_path: Path
) -> None:
    run = run_trainer(**faulty(tmp_path, "raise", 99, in_constructor=True))

    assert_failed(run, "the simulator refused the connection")
    assert "tried" not in run.last_stderr_line
    assert len(events(tmp_path, ACTOR, "constructor")) == 1
    assert "Traceback (most recent call last)" in run.stderr


def test_few_actors_start_at_once_each_with_the_gpu_it_was_given(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    starts = {"num_workers": 5, "max_workers_starting": 2, "batch_size": 512, "actor_worker_gpus": (1, 0)}
    run = run_trainer(**flags(tmp_path, making_s=0.05, reset_s=0.05), **starts)

    assert_gets_ready(run, tmp_path, actors=5)
    made = [events(tmp_path, f"sf-actor-{actor}", "making") for actor in range(5)]
    begins = [lines[0]["at"] for lines in made]
    ends = [events(tmp_path, f"sf-actor-{actor}", "was reset")[-1]["at"] for actor in range(5)]
    at_once = [sum(begin <= moment < end for begin, end in zip(begins, ends, strict=True)) for moment in begins]
    assert max(at_once) <= 2, at_once
    for actor, lines in enumerate(made):
        gpu = "10"[actor % 2]
        assert [line["CUDA_VISIBLE_DEVICES"] for line in lines] == [gpu] * ENVS
        assert lines[0]["EGL_DEVICE_ID"] == gpu
