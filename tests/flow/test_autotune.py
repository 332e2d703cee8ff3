"""Autotune measures whole runs, trains with what it has chosen, and is done with it."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from sfactory.config.flags import values_of
from sfactory.config.resolve import read_command_line
from sfactory.config.saved_config import read_config
from sfactory.errors import ExitCode
from tests.support.trainer import RunTrainer, TrainerRun

pytestmark = pytest.mark.long

STEPS = 4096
TUNING_S = 240.0  # some ten trials of a few seconds each, on a busy machine
LINE = re.compile(r"\] autotune +\d+: (.*?): ")
# Left to autotune and the env's family; everything else is given.
FREE: dict[str, Any] = {"inference": None, "num_envs_per_worker": None, "learner_num_threads": 1, "batch_size": 512}
TUNE: dict[str, Any] = {"autotune": True, "autotune_seconds": 0.3}


def settings_tried(run: TrainerRun) -> list[str]:
    return [line[1] for line in map(LINE.search, run.stderr.splitlines()) if line is not None]


def words_of_the_command(run: TrainerRun) -> list[str]:
    command = re.search(r"autotune: the same without it: (.*)", run.stderr)
    assert command is not None, run.report("no command is printed")
    return shlex.split(command[1])[3:]


def test_run_is_tuned_once_and_keeps_the_chosen_settings(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=STEPS, **FREE, **TUNE)

    run.assert_ended(ExitCode.DONE, TUNING_S)
    assert run.result()["env_steps"] >= STEPS
    tried = settings_tried(run)
    assert len(tried) >= 4
    assert all(re.fullmatch(r"inference=\w+ num_envs_per_worker=\d+", settings) for settings in tried), tried
    chosen = re.search(r"autotune: chosen: (.*?): [\d,]+ env steps/s", run.stderr)
    assert chosen is not None, run.report("nothing is chosen")
    assert chosen[1] in tried
    saved = read_config(run.run_dir)
    assert saved is not None
    tuned = {name for name, source in saved.sources.items() if source == "autotune"}
    assert tuned == {"inference", "num_envs_per_worker"}
    assert chosen[1] == " ".join(f"{name}={saved.values[name]}" for name in ("inference", "num_envs_per_worker"))
    assert saved.values["autotune"] is False
    # The command that is printed gives this very run.
    assert values_of(read_command_line(words_of_the_command(run)).config) == saved.values

    again = run_trainer(**{**run.flags, "train_for_env_steps": 2 * STEPS})

    again.assert_ended(ExitCode.DONE)
    kept = f"--num_envs_per_worker={saved.values['num_envs_per_worker']} --inference={saved.values['inference']}"
    assert f"this run keeps the settings that it was tuned to: {kept};" in again.stderr
    assert settings_tried(again) == []
    resumed = read_config(run.run_dir)
    assert resumed is not None
    assert {**resumed.values, "train_for_env_steps": STEPS} == saved.values


def test_benchmark_measures_with_the_chosen_settings_and_leaves_no_files(run_trainer: RunTrainer) -> None:
    run = run_trainer(benchmark=True, benchmark_seconds=1, inference=None, learner_num_threads=1, **TUNE)

    run.assert_ended(ExitCode.DONE, TUNING_S)
    result = run.result()
    assert f"--inference={result['inference']}" in words_of_the_command(run)
    assert result["mode"] == "train"
    assert {settings.partition("=")[0] for settings in settings_tried(run)} == {"inference"}
    assert not run.run_dir.exists()


def test_nothing_is_tried_where_everything_is_given(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=STEPS, inference="local", learner_num_threads=1, **TUNE)

    run.assert_ended(ExitCode.DONE)
    assert "there is nothing to tune" in run.stderr
    assert settings_tried(run) == []
    assert json.loads((run.run_dir / "config.json").read_text())["config"]["num_envs_per_worker"] == 8
