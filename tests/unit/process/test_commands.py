"""The command that resumes a run goes on with it, however the run was begun."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from sfactory.config.resolve import CONFIG_FILE, read_command_line
from sfactory.process.command import resume_command, train_command, tuned_command

BEFORE, AFTER = ["--env=CartPole-v1", "--encoder_mlp_layers", "64", "32"], ["--env_kwargs", '{"a b": 1}', "--seed=1"]


def words_of(command: str) -> list[str]:
    words = shlex.split(command)
    assert words[:3] == [sys.executable, "-m", "sfactory.train"]
    return words[3:]


@pytest.mark.parametrize(
    "given",
    [
        ["--restart_behavior=restart"],
        ["--restart-behavior=overwrite"],
        ["--restart_behavior", "restart"],
        ["--restart-behavior", "overwrite"],
        ["--load-checkpoint-kind", "milestone", "--restart_behavior=restart"],
        ["--restart_behavior", "resume", "--load_checkpoint_kind", "best"],
    ],
)
def test_what_is_of_one_start_is_not_repeated_by_the_resume_command(given: list[str]) -> None:
    assert words_of(resume_command([*BEFORE, *given, *AFTER])) == [*BEFORE, *AFTER]
    assert words_of(resume_command([*given])) == []


def test_everything_else_is_repeated_as_it_was_typed() -> None:
    arguments = [*BEFORE, "--default_niceness", "-5", "--train_dir=--restart_behavior=x", *AFTER]

    assert words_of(resume_command(arguments)) == arguments
    assert words_of(train_command(arguments)) == arguments


def test_a_config_file_that_restarts_does_not_make_the_resume_command_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flags.yaml").write_text("env: Taxi-v4\nrestart_behavior: restart\n")
    arguments = ["--config=flags.yaml", "--load_checkpoint_kind=best"]
    sources = read_command_line(arguments, prog="p").sources

    command = resume_command(arguments, [name for name, source in sources.items() if source == CONFIG_FILE])

    assert read_command_line(words_of(command), prog="p").config.run.restart_behavior == "resume"
    assert read_command_line(words_of(command), prog="p").config.checkpoint.load_checkpoint_kind == "latest"


CHOSEN = {"inference": "local", "num_workers": 4}


@pytest.mark.parametrize(
    "given",
    [
        ["--autotune=True"],
        ["--autotune", "True", "--autotune_seconds=0.5"],
        ["--autotune-batch=True", "--autotune-seconds", "5", "--autotune=True"],
    ],
)
def test_the_command_without_tuning_sets_what_was_chosen_and_keeps_the_rest(given: list[str]) -> None:
    words = words_of(tuned_command([*BEFORE, *given, *AFTER], CHOSEN))

    assert words == [*BEFORE, *AFTER, "--inference=local", "--num_workers=4"]


def test_a_config_file_that_tunes_does_not_make_the_command_without_tuning_tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flags.yaml").write_text("env: Taxi-v4\nautotune: true\nautotune_batch: true\nautotune_seconds: 1\n")
    arguments = ["--config=flags.yaml", "--seed=1"]
    sources = read_command_line(arguments, prog="p").sources

    command = tuned_command(arguments, CHOSEN, [name for name, source in sources.items() if source == CONFIG_FILE])

    config = read_command_line(words_of(command), prog="p").config
    assert not config.tuning.autotune
    assert (config.sampling.inference, config.sampling.num_workers, config.run.seed) == ("local", 4, 1)
