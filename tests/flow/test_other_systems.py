"""macOS and Windows, as support/other_system.py imitates them, train, play, evaluate and act in serial mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sfactory.system.optional_packages import find_ffmpeg
from tests.support.source import ROOT

IMITATE = [sys.executable, str(ROOT / "tests" / "support" / "other_system.py")]
TRAIN = [
    "train",
    "--env=CartPole-v1",
    "--experiment=run",
    "--num_envs_per_worker=8",
    "--rollout=16",
    "--batch_size=256",
]
# All in one process, which imports torch once.
ALL = """
import json
import pathlib
from sfactory.__main__ import main
from sfactory.config.flags import all_flags

assert all_flags()["serial_mode"].default is True
small = ["--env=CartPole-v1", "--experiment=run", "--num_envs_per_worker=8", "--rollout=16", "--batch_size=256"]
assert main(["train", *small, "--num_workers=1", "--train_for_env_steps=2000"]) == 0
pathlib.Path("train_dir/run/checkpoint_p0/.tmp-1-dead").touch()
assert main(["train", *small, "--num_workers=1", "--train_for_env_steps=3000"]) == 0
assert not list(pathlib.Path("train_dir/run/checkpoint_p0").glob(".tmp-*"))
assert main(["train", *small, "--benchmark=True"]) == 2
assert main(["train", *small, "--num_workers=1", "--serial_mode=False", "--restart_behavior=restart"]) == 2
assert main(["enjoy", "--experiment=run", "--max_num_episodes=1", "--no_render=True"]) == 0
assert main(["evaluate", "--experiment=run", "--episodes=3", "--workers=2", "--seed=1"]) == 0
assert main(["check-env", "--env=CartPole-v1", "--steps=50"]) == 0
import sfactory

action, state = sfactory.load("train_dir/run").act([0.0, 0.0, 0.1, 0.0])
print(json.dumps({"action": int(action)}))
"""


def imitate(system: str, argv: list[str], folder: Path, program: str = "") -> subprocess.CompletedProcess[str]:
    """A command, or a program, on that system, with the ffmpeg of this one."""
    command = [*IMITATE, system, *argv]
    variables = {**os.environ, "IMAGEIO_FFMPEG_EXE": find_ffmpeg()}
    return subprocess.run(
        command, cwd=folder, env=variables, input=program, capture_output=True, text=True, timeout=300, check=False
    )


def test_windows_does_all_that_serial_mode_does(tmp_path: Path) -> None:
    done = imitate("win32", ["-"], tmp_path, ALL)

    assert done.returncode == 0, done.stderr
    trained, resumed, played, evaluated, checked, acted = map(json.loads, done.stdout.splitlines())
    assert trained["env_steps"] >= 2000
    assert resumed["env_steps"] >= 3000
    assert played["episodes"] == 1
    assert evaluated["episodes"] == 3
    assert checked["violations"] == []
    assert acted["action"] in (0, 1)
    assert "--benchmark=True: a benchmark measures the processes of a run" in done.stderr
    assert "leave this out, as the processes of a run need Linux, and this is Windows" in done.stderr
    assert "this is Windows; train in one process: --serial_mode=True" in done.stderr
    assert done.stderr.count("need Linux, and this is Windows") == 3  # once for each training, and in the refusal


@pytest.mark.long
def test_macos_does_all_that_serial_mode_does_and_writes_videos(tmp_path: Path) -> None:
    done = imitate("darwin", ["-"], tmp_path, ALL)
    assert done.returncode == 0, done.stderr

    video = ["enjoy", "--experiment=run", "--max_num_episodes=1", "--save_video=True", "--video_frames=20"]
    done = imitate("darwin", video, tmp_path)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train_dir" / "run" / "replay.mp4").stat().st_size > 1000


@pytest.mark.long
def test_two_systems_learn_the_same_in_serial_mode(tmp_path: Path) -> None:
    returns = {}
    for system in ("linux", "darwin", "win32"):
        flags = ["--serial_mode=True", "--num_workers=1", "--seed=3", "--train_for_env_steps=3000"]
        done = imitate(system, [*TRAIN, *flags, f"--train_dir={system}"], tmp_path)
        assert done.returncode == 0, done.stderr
        returns[system] = json.loads(done.stdout.splitlines()[-1])["episode_return_mean"]

    assert len(set(returns.values())) == 1
