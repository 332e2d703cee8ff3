"""Simulators of which a process holds one, or that cannot be installed here: they are trained through their interface.

A stand-in has exactly the interface that the package publishes, and no more.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfactory.env.factory import EnvFactory, make_env
from sfactory.errors import EnvError
from sfactory_envs.simulators.isaac import _launched
from tests.support.source import ROOT
from tests.support.trainer import CHEAP, to_argv
from tests.support.warm_process import finished

STAND_INS = ROOT / "tests" / "support" / "stand_ins"
MEGAVERSE, POINT = "megaverse:TowerBuilding", "isaaclab:Isaac-Point-v0"
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


@pytest.fixture
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Their modules can be imported in this process, and are forgotten after the test."""
    names = {path.stem for path in STAND_INS.iterdir() if not path.stem.startswith("__")}
    monkeypatch.syspath_prepend(str(STAND_INS))
    yield
    for module in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[module]
    _launched.cache_clear()
    for module in ("dmlab_env", "megaverse_env"):  # they have imported their stand-ins
        sys.modules.pop(f"sfactory_envs.simulators.{module}", None)


def test_a_level_of_deepmind_lab_is_trained() -> None:
    images = {"obs_scale": 255.0, "normalize_input": False, "encoder_mlp_layers": None}
    size = {"width": 40, "height": 36}

    result = train(
        STAND_INS, env="dmlab_watermaze", env_kwargs=size, env_frameskip=4, train_for_env_steps=128, **images
    )

    assert result["env_steps"] >= 128
    assert result["frames"] == 4 * result["env_steps"]
    assert result["episode_length_mean"] == 10


@pytest.mark.usefixtures("_stand_ins")
def test_a_level_of_deepmind_lab_is_seeded_keeps_its_maps_and_shows_the_image_before_the_end(tmp_path: Path) -> None:
    kwargs = {"level_cache": str(tmp_path / "maps"), "config": {"mazeSize": 9}}
    env, other = (make_env("dmlab_very_sparse", kwargs, env_frameskip=8) for _ in range(2))
    labs = [each.unwrapped._lab for each in (env, other)]  # type: ignore[attr-defined]
    first, again = env.reset(seed=3)[0], other.reset(seed=3)[0]

    steps = [env.step(np.int64(0)) for _ in range(5)]

    np.testing.assert_equal(first, again)
    assert (first.shape, first.dtype) == ((72, 96, 3), np.uint8)
    assert [step[1:4] for step in steps] == [(8.0, False, False)] * 4 + [(8.0, True, False)]
    assert steps[-1][0] is steps[-2][0]
    assert [lab.compiled for lab in labs] == [1, 0]
    assert labs[0].level == "contributed/dmlab30/explore_goal_locations_large"
    assert labs[0].config == {"width": "96", "height": "72", "minGoalDistance": "10", "mazeSize": "9"}
    extended = make_env("dmlab_seekavoid_arena_01", {"extended_actions": True})
    assert [each.action_space.n for each in (env, extended)] == [9, 15]  # type: ignore[attr-defined]


def test_a_simulation_of_many_envs_is_trained() -> None:
    result = train(
        STAND_INS, env=POINT, env_kwargs={"device": "cpu"}, num_envs_per_worker=8, rollout=8, train_for_env_steps=256
    )

    assert result["env_steps"] >= 256
    assert result["episodes"] > 0


@pytest.mark.usefixtures("_stand_ins")
def test_tensors_of_a_simulation_become_arrays_that_later_steps_leave_alone() -> None:
    env = EnvFactory(POINT, {"device": "cpu"}).vector(num_envs=3, seed=1)
    obs, _ = env.reset(seed=1)
    kept = obs["policy"].copy()

    steps = [env.step(np.zeros((3, 2), np.float32)) for _ in range(5)]

    assert env.metadata["autoreset_mode"].value == "SameStep"
    assert env.observation_space.contains(obs)
    np.testing.assert_equal(obs["policy"], kept)
    assert [(step[1].dtype, step[1].shape) for step in steps] == [(np.float32, (3,))] * 5
    assert [bool(step[2][0]) for step in steps].index(True) == 1
    assert [step[3].tolist() for step in steps][-1][1:] == [True, True]
    assert not any(step[3][1:].any() or step[2][1:].any() for step in steps[:-1])
    env.close()


@pytest.mark.long
def test_a_scenario_of_megaverse_is_trained() -> None:
    images = {"obs_scale": 255.0, "normalize_input": False, "encoder_mlp_layers": None}

    result = train(STAND_INS, env=MEGAVERSE, num_envs_per_worker=8, rollout=8, train_for_env_steps=256, **images)

    assert result["env_steps"] >= 256
    assert 2 <= result["episode_length_mean"] <= 5


@pytest.mark.usefixtures("_stand_ins")
def test_a_scenario_of_megaverse_has_images_of_its_own_and_an_objective_at_each_end() -> None:
    env = EnvFactory(MEGAVERSE, {"params": {"episodeLengthSec": 1}}).vector(num_envs=3, seed=1)
    env.reset(seed=1)
    forward = np.array([[0, 1, 0, 0, 0, 0], *np.zeros((2, 6), int)])

    steps = [env.step(forward) for _ in range(5)]

    assert all(env.observation_space.contains(step[0]) for step in steps)
    assert len({step[0].tobytes() for step in steps}) == 5
    assert [step[1].tolist() for step in steps] == [[1.0, 0.0, 0.0]] * 5
    assert [step[2].tolist() for step in steps[1::2]] == [[True, False, False]] * 2
    assert steps[4][4]["final_info"]["true_objective"].tolist() == [0.0, 1.0, 2.0]
    assert steps[4][4]["final_info"]["_true_objective"].tolist() == [False, True, True]
    with pytest.raises(EnvError, match="leave out num_agents_per_env"):
        EnvFactory(MEGAVERSE, {"num_agents_per_env": 2})()
    env.close()


@pytest.mark.parametrize(
    ("name", "module"),
    [("dmlab_watermaze", "deepmind_lab"), ("isaaclab:Isaac-Ant-v0", "isaaclab"), (MEGAVERSE, "megaverse")],
)
def test_a_simulator_that_is_missing_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvError, match=f"--env={name}: needs {module}"):
        EnvFactory(name)()
