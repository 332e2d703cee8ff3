"""However a session ends, its last line says so and how to go on, and the files of the run tell the same."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfactory.train
from sfactory.config.flags import config_of
from sfactory.errors import ExitCode
from sfactory.experiment.resume import Resumed
from sfactory.experiment.summary import Summary
from sfactory.messages import PolicyLag
from sfactory.process.command import resume_command
from sfactory.runner import session
from tests.support.source import ROOT

COMM = Path("/proc/self/comm")
EARLIER = Summary(
    status="done",
    env_steps=1000,
    agent_steps=1000,
    frames=4000,
    train_seconds=20.0,
    fps=50.0,
    sample_fps=60.0,
    episodes=70,
    episode_return_mean=8.0,
    best_episode_return_mean=9.0,
    episode_length_mean=10.0,
    policy_lag=PolicyLag(0.0, 1.0, 2.0),
    updates=30,
)


@pytest.fixture
def main_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ``main`` does to its process is undone."""
    name = COMM.read_text()
    monkeypatch.setattr(sfactory.train, "set_for_children", lambda: None)
    yield
    COMM.write_text(name)


def raising(error: BaseException) -> object:
    def train(*_: object) -> int:
        raise error

    return train


def words_of(command: str) -> list[str]:
    words = shlex.split(command)
    assert words[1:3] == ["-m", "sfactory.train"]
    return words[3:]


@pytest.mark.usefixtures("main_in_this_process")
def test_an_unexpected_exception_is_shown_whole_and_ends_the_run_as_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(session.Session, "train", raising(RuntimeError("something is off")))
    argv = ["--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=e"]

    code = sfactory.train.main(argv)

    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert code == ExitCode.FAULTS
    assert "Traceback (most recent call last):" in lines
    assert "RuntimeError: something is off" in lines
    assert lines[-1].startswith("RESULT failed env_steps=0 return=none cause: RuntimeError: something is off resume: ")
    assert words_of(lines[-1].partition("resume: ")[2]) == argv
    assert out == ""


def test_an_exception_in_a_run_that_had_begun_is_on_record(tmp_path: Path) -> None:
    code = """
        import sys
        import sfactory.train
        from sfactory.supervise.supervisor import Supervisor

        def run(*_):
            raise RuntimeError("something is off")

        if __name__ == "__main__":
            Supervisor.run = run
            sys.exit(sfactory.train.main())
    """
    script = tmp_path / "begun.py"
    script.write_text("\n".join(line[8:] for line in code.splitlines()))

    done = subprocess.run(
        [sys.executable, script, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=e", "--device=cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == ExitCode.FAULTS, done.stderr
    assert "Traceback (most recent call last):" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("RESULT failed ")
    assert json.loads((tmp_path / "e" / "run.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    "given",
    [
        ["--load_checkpoint_kind=best"],
        ["--load-checkpoint-kind=best"],
        ["--load_checkpoint_kind", "best"],
        ["--load-checkpoint-kind", "best"],
    ],
)
def test_the_resume_command_goes_on_from_the_latest_checkpoint(given: list[str]) -> None:
    before, after = ["--env=CartPole-v1"], ["--env_kwargs", '{"a b": 1}', "--seed=1"]

    assert words_of(resume_command([*before, *given, *after])) == [*before, *after]
    assert words_of(resume_command([*before, *after])) == [*before, *after]


def test_an_interrupted_start_leaves_the_earlier_summary_in_force() -> None:
    config = config_of({"env": "CartPole-v1", "env_frameskip": 4})
    resumed = Resumed(env_steps=1000, train_seconds=20.5, updates=30, best_return=9.0, summary=EARLIER)

    standing = session._summary_of(config, resumed, "interrupted")

    assert standing.status == "interrupted"
    assert {**standing.to_dict(), "status": "done"} == EARLIER.to_dict()


def test_an_interrupted_start_of_a_run_that_was_killed_tells_what_is_saved() -> None:
    config = config_of({"env": "CartPole-v1", "env_frameskip": 4})
    # The checkpoint is newer than the summary, which was never written again.
    resumed = Resumed(env_steps=1500, train_seconds=30.0, updates=45, best_return=9.5, summary=EARLIER)

    standing = session._summary_of(config, resumed, "interrupted")

    assert (standing.env_steps, standing.frames, standing.updates, standing.fps) == (1500, 6000, 45, 50.0)
    assert (standing.episodes, standing.best_episode_return_mean) == (70, 9.5)


def test_a_fresh_run_that_is_interrupted_stands_at_nothing() -> None:
    standing = session._summary_of(config_of({"env": "CartPole-v1"}), None, "interrupted")

    assert (standing.env_steps, standing.episodes, standing.updates, standing.fps) == (0, 0, 0, None)
