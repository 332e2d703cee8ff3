"""Commands of all pages start a run, and the env and the program of README.md train and act as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sfactory.config.resolve import read_command_line
from sfactory.errors import ConfigError
from tests.support.markdown import blocks, commands
from tests.support.source import ROOT, documents

# Flags that print, code that the reader brings, names that stand for others.
LEFT_OUT = ("--help", "--print_config", "my_", "--env=NAME")


def test_training_commands_of_all_pages_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # files of settings that commands name
    monkeypatch.setattr("sfactory.config.validation.lack_of_family", lambda family: "")  # its package is not installed
    refused, accepted = [], 0
    for path, text in documents().items():
        for name, words in [] if path.startswith("docs/examples/") else commands(text):
            joined = " ".join(words)
            if name != "train" or "--env=" not in joined or any(each in joined for each in LEFT_OUT):
                continue
            try:
                read_command_line(words)
                accepted += 1
            except ConfigError as error:
                refused.append(f"{path}: {joined}: {error}")

    assert refused == []
    assert accepted >= 20


def test_the_env_and_the_program_of_the_readme_train_and_act(tmp_path: Path) -> None:
    env, program = blocks(documents()["README.md"], "python")
    (tmp_path / "my_envs.py").write_text(env)
    short = program.replace("train_for_env_steps=50_000", "train_for_env_steps=4_000, serial_mode=True")
    assert short != program
    (tmp_path / "program.py").write_text(short)

    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    trained, evaluated, action = done.stdout.split()
    assert -100 < float(trained) <= 1.0
    assert -100 < float(evaluated) <= 1.0
    assert action in "01"
