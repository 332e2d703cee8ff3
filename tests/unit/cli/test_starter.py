"""``sfactory init`` writes a project whose test passes and whose command trains."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sfactory.cli import starter
from sfactory.errors import ExitCode

SCRIPT = Path(sys.executable).with_name("sfactory")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "new" / "project"
    assert starter.main([str(folder)]) == ExitCode.DONE
    return folder


@pytest.mark.long
def test_the_project_passes_its_tests_one_of_which_trains(project: Path) -> None:
    assert sorted(path.name for path in project.iterdir()) == sorted(starter.FILES)
    assert len((project / "README.md").read_text().splitlines()) <= 12
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(tests, cwd=project, capture_output=True, text=True, check=False, timeout=240)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_the_project_trains_by_the_command_that_it_names(project: Path) -> None:
    # As the script that pip installs, which lies in another folder than the project.
    command = [str(SCRIPT), "train", "--config=config.yaml", "--train_for_env_steps=5k", "--num_workers=1"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True, timeout=240)
    assert json.loads(done.stdout)["env_steps"] >= 5000
    assert (project / "train_dir" / "catch" / "summary.json").is_file()


def test_the_commands_that_follow_are_printed_as_a_shell_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert starter.main([str(tmp_path / "my project")]) == ExitCode.DONE

    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert commands == [["cd", str(tmp_path / "my project")], ["sfactory", "train", "--config=config.yaml"]]


def test_files_that_exist_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("mine")

    assert starter.main([]) == ExitCode.REFUSED
    assert "config.yaml: exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "mine"
    for words in (["a", "b"], ["--force"]):
        assert starter.main(words) == ExitCode.REFUSED
    assert starter.main(["config.yaml/inside"]) == ExitCode.REFUSED
    assert "cannot be written" in capsys.readouterr().err
