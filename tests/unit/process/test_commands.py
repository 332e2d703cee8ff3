"""The commands that a run prints resume or repeat it, however it was started."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from sfactory.config.resolve import read_command_line
from sfactory.config.saved_config import config_json
from sfactory.config.schema import Config
from sfactory.process.command import Command, resume_command, train_command, tuned_command

COMM = Path("/proc/self/comm")
BEFORE, AFTER = ["--env=CartPole-v1", "--encoder_mlp_layers", "64", "32"], ["--env_kwargs", '{"a b": 1}', "--seed=1"]
CHOSEN = {"inference": "local", "num_workers": 4}


def words_of(command: str) -> list[str]:
    words = shlex.split(command)
    assert words[:3] == [sys.executable, "-m", "sfactory.train"]
    return words[3:]


@pytest.mark.parametrize(
    "given",
    [
        ["--restart_behavior=restart"],
        ["--restart-behavior", "overwrite"],
        ["--load-checkpoint-kind", "milestone", "--restart_behavior=restart"],
        ["--restart_behavior", "resume", "--load_checkpoint_kind=best"],
    ],
)
def test_the_resume_command_drops_flags_of_one_start_and_keeps_the_rest(given: list[str]) -> None:
    kept = [*BEFORE, "--default_niceness", "-5", "--train_dir=--restart_behavior=x", *AFTER]

    assert words_of(resume_command([*kept, *given])) == kept
    assert words_of(resume_command([*given, *kept])) == kept
    assert words_of(train_command([*given, *kept])) == [*given, *kept]


def test_a_command_to_repeat_has_the_version_of_the_env() -> None:
    kept = ["--experiment=LunarLander", "--train_dir", "LunarLander"]

    assert words_of(resume_command(["--env=LunarLander", *kept])) == ["--env=LunarLander-v3", *kept]
    assert words_of(train_command([*kept, "--env", "LunarLander"])) == [*kept, "--env", "LunarLander-v3"]


@pytest.mark.parametrize("flag", ["--env=__main__:Echo", '--observers=["__main__:Echo"]'])
def test_no_command_starts_a_run_with_a_class_of_a_notebook(flag: str) -> None:
    arguments = [*BEFORE, flag]

    assert train_command(arguments) == ""
    assert resume_command(arguments) == ""
    assert tuned_command(arguments, CHOSEN) == ""


@pytest.mark.parametrize(
    "given",
    [
        ["--autotune", "True", "--autotune_seconds=0.5"],
        ["--autotune-batch=True", "--autotune-seconds", "5", "--autotune=True"],
    ],
)
def test_the_command_without_tuning_sets_the_chosen_values_and_keeps_the_rest(given: list[str]) -> None:
    words = words_of(tuned_command([*BEFORE, *given, *AFTER], CHOSEN))

    assert words == [*BEFORE, *AFTER, "--inference=local", "--num_workers=4"]


def test_the_commands_override_a_config_file_that_restarts_or_tunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flags.yaml").write_text(
        "env: Taxi-v4\nrestart_behavior: restart\nautotune: true\nautotune_batch: true\nautotune_seconds: 1\n"
    )
    arguments = ["--config=flags.yaml", "--load_checkpoint_kind=best", "--seed=1"]
    from_file = read_command_line(arguments).set_by_file

    def config_of(command: str) -> Config:
        return read_command_line(words_of(command)).config

    resumed = config_of(resume_command(arguments, from_file))
    tuned = config_of(tuned_command(arguments, CHOSEN, from_file))

    assert resumed.run.restart_behavior == "resume"
    assert resumed.checkpoint.load_checkpoint_kind == "latest"
    assert not tuned.tuning.autotune
    assert (tuned.sampling.inference, tuned.sampling.num_workers, tuned.run.seed) == ("local", 4, 1)


def test_the_commands_override_nothing_of_a_file_with_all_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = read_command_line(["--env=CartPole-v1"])
    Path("all.json").write_text(config_json(resolved.config, resolved.sources, {}))
    arguments = ["--config=all.json"]

    from_file = read_command_line(arguments).set_by_file

    assert "env" in from_file
    assert words_of(resume_command(arguments, from_file)) == arguments


def test_a_process_has_its_own_name_again_after_a_command() -> None:
    before = COMM.read_bytes()
    names = [before, "обучение агента".encode()[:15] + b"\n"]  # the kernel cuts it within a letter
    try:
        for name in names:
            COMM.write_bytes(name.strip())
            with Command("sf-enjoy"):
                assert COMM.read_text() == "sf-enjoy\n"
            assert COMM.read_bytes() == name
    finally:
        COMM.write_bytes(before.strip())
