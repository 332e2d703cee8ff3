"""Simulators of which a process holds one, or that cannot be installed here: they are trained through their interface.

A stand-in has exactly the interface that the package publishes, and no more.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from sfactory.env.factory import EnvFactory, make_env
from sfactory.errors import EnvError
from tests.support.trainer import CHEAP, to_argv
from tests.support.warm_process import finished

# One process with one env.
SMALL = {
    "inference": None,
    "serial_mode": True,
    "num_workers": 1,
    "num_envs_per_worker": 1,
    "worker_num_splits": 1,
    "batch_size": 32,
}


def train(packages: Path | None = None, /, **flags: object) -> dict[str, Any]:
    """The result of a short run in one process. packages: a folder of modules that it can import, too."""
    argv = to_argv({**CHEAP, **SMALL, **flags})
    done = finished("sfactory.train", *argv, packages=packages)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.skipif(importlib.util.find_spec("stable_retro") is None, reason="stable-retro is not installed")
def test_a_console_game_is_trained_in_small_grey_images() -> None:
    name = "retro:Airstriker-Genesis-v0"
    images = {"obs_grey": True, "obs_resize": (36, 36), "env_framestack": 2, "obs_scale": 255.0}

    result = train(
        env=name, **images, action_repeat=2, normalize_input=False, encoder_mlp_layers=None, train_for_env_steps=64
    )

    assert result["env_steps"] >= 64
    for wrong, kwargs, text in (
        ("Airstriker-Genesis", {}, f"did you mean {name}"),
        ("1942-Nes-v0", {}, "no ROM of 1942-Nes-v0"),
        ("Airstriker-Genesis-v0", {"actions": "few"}, "must be one of filtered, discrete"),
    ):
        with pytest.raises(EnvError, match=text):
            make_env(f"retro:{wrong}", kwargs)
    discrete = EnvFactory(name, {"actions": "discrete"})()
    assert discrete.action_space.n == 126  # type: ignore[attr-defined]
    discrete.close()
