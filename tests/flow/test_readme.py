"""The env and the program of README.md train and act as they stand."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import python_of
from tests.support.warm_process import finished


def test_the_env_and_the_program_of_the_readme_train_and_act(tmp_path: Path) -> None:
    env, program = python_of("README.md")
    (tmp_path / "my_envs.py").write_text(env)
    short = program.replace("train_for_env_steps=50_000", "train_for_env_steps=4_000, serial_mode=True")
    assert short != program
    (tmp_path / "program.py").write_text(short)

    done = finished("program", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    trained, evaluated, action = done.stdout.split()
    assert -100 < float(trained) <= 1.0
    assert -100 < float(evaluated) <= 1.0
    assert action in "01"
