"""An env of each family, on the real package: checked, trained for 10,000 steps by its name alone, saved and played."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from scripts.workloads import FAMILIES
from sfactory.config.env_families import find_family, lack_of_family
from tests.support.long import long

# Beside those that scripts/bench.py measures: other spaces of actions and observations.
NAMES = (*FAMILIES.values(), "BipedalWalker-v3", "parking-v0", "PointMaze_UMazeDense-v3", "VizdoomDeathmatch-v1")
LIMIT_S = 1200.0  # of a command on a busy machine
WITHOUT_PICTURES = ("nethack", "envpool")  # EnvPool's HalfCheetah finds OpenGL on few machines
NEED_OPENGL = ("mujoco", "dm_control", "robotics")
OPENGL = any((os.environ.get("DISPLAY"), find_library("EGL"), find_library("OSMesa")))


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("name", [long(name, id=name) for name in NAMES])
def test_an_env_of_each_family_is_checked_trained_and_played(name: str, tmp_path: Path) -> None:
    family = find_family(name)
    assert family is not None
    if lack := lack_of_family(family):
        pytest.skip(lack)
    run, own_code = ["--experiment=run", "--train_dir=runs"], ["--trust_run_dir=True"] * (":" in name)
    draws = family.name not in WITHOUT_PICTURES and (family.name not in NEED_OPENGL or OPENGL)

    checked = result("check_env", tmp_path, f"--env={name}")
    trained = result(
        "train", tmp_path, f"--env={name}", *run, "--train_for_env_steps=10000", "--device=cpu", "--seed=1"
    )
    # Without a GPU an image by OpenGL takes long.
    video = ("--save_video=True", "--video_frames=100") if draws else ()
    played = result("enjoy", tmp_path, *run, *own_code, "--max_num_episodes=1", *video)

    assert checked["violations"] == []
    assert (trained["status"], trained["env_steps"] >= 10_000) == ("done", True)
    assert played["episodes"] == 1
    assert bool(list(tmp_path.rglob("*.mp4"))) == draws
    assert {file.name for file in tmp_path.iterdir()} == {"runs"}


def result(module: str, folder: Path, *flags: str) -> dict[str, Any]:
    """The last line of a command, started in ``folder``, into which packages may write."""
    command = [sys.executable, "-m", f"sfactory.{module}", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return values
