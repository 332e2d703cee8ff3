"""Families of tasks on the real packages: their envs keep to the interface, and their names alone start a run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.rows import ROWS
from sfactory.config.env_families import find_family, lack_of_family, load_families
from sfactory.config.flags import all_flags, coerce, config_of
from sfactory.config.resolve import read_command_line
from sfactory.config.schema import WrapperConfig
from sfactory.config.validation import find_problems
from sfactory.env.factory import EnvFactory, make_env
from sfactory.errors import EnvError
from sfactory.planning.env_probe import examine
from sfactory.planning.plan import Plan, plan_sizes

NAMES = {family.name: family.names() for family in load_families()[0] if family.name not in ("pettingzoo", "vector")}
# One env of each kind.
TASKS = (
    "LunarLander-v3",
    "BipedalWalker-v3",
    "FrozenLake-v1",
    "MinAtar/Breakout-v1",
    "MiniGrid-DoorKey-5x5-v0",
    "BabyAI-GoToLocal-v0",
    "HalfCheetah-v5",
    "envpool:HalfCheetah-v5",
    "envpool:CoinrunEasy-v0",
    "envpool:MiniGrid-DoorKey-5x5-v0",
    "doom_basic",
    "VizdoomDeathmatch-v1",
    "VizdoomBasicNotifications-v1",
    "NetHackScore-v0",
    "crafter_reward",
    "parking-v0",
    "PointMaze_UMazeDense-v3",
    "FetchReachDense-v4",
    "dm_control/cheetah-run-v0",
)
# What MiniGrid shows of 7 x 7 cells, and the layout of that.
VIEWS = {
    "flat": ((147,), "choices"),
    "image": ((7, 7, 20), "hwc"),
    "rgb": ((56, 56, 3), "hwc"),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages may write files into the current folder, as MuJoCo does with its warnings."""
    monkeypatch.chdir(tmp_path)


def require(env_name: str) -> None:
    """Skip the test where a package that the env needs is not installed."""
    family = find_family(env_name)
    assert family is not None
    if lack := lack_of_family(family):
        pytest.skip(lack)
    if family.name == "procgen" and not find_library("Qt5Gui"):
        pytest.skip("EnvPool needs Qt 5 for Procgen")


def planned(*words: str) -> Plan:
    """What a command line would start, with its env probed as a start does."""
    resolved = read_command_line(list(words))
    config = resolved.config
    assert resolved.warnings == []
    spec = examine(EnvFactory.of(config)).spec
    return plan_sizes(config, spec.for_model(config.model))


@pytest.mark.parametrize("family", NAMES)
def test_all_names_of_a_family_have_valid_defaults_and_a_number_of_steps(family: str) -> None:
    for name in NAMES[family]:
        found = find_family(name)
        assert found is not None
        assert found.name == family
        defaults = {flag: coerce(all_flags()[flag], value) for flag, value in found.defaults(name).items()}
        assert find_problems(config_of({"env": name, **defaults})) == []
        assert defaults["train_for_env_steps"] != all_flags()["train_for_env_steps"].default


def test_each_task_of_a_family_names_the_rows_that_measured_its_defaults() -> None:
    named: dict[str, str] = {}
    for family in load_families()[0]:
        rows: Mapping[str, tuple[str, ...]] = getattr(family, "rows", {})
        assert rows.keys() <= set(family.names())
        named |= {row: env for env, of_env in rows.items() for row in of_env}

    assert named == {row.name: row.env for row in ROWS.values() if find_family(row.env)} != {}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_starts_by_its_name_alone_and_is_repeatable_from_a_seed(name: str) -> None:
    require(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert planned(f"--env={name}").reading
        env, other = make_env(name, {}), make_env(name, {})
    actions = [other.action_space.sample() for _ in range(100)]

    first, elsewhere, again = (episode(each, actions) for each in (env, other, env))

    np.testing.assert_equal(elsewhere, first)
    if not name.startswith("envpool:"):  # a pool is seeded when it is made, and only then
        np.testing.assert_equal(again, first)


def episode(env: Any, actions: list[Any]) -> list[Any]:
    """Observation, reward, terminated, truncated after a reset with a seed and each action, up to the episode's end."""
    results: list[Any] = [copy.deepcopy((env.reset(seed=3)[0], 0.0, False, False))]
    for action in actions:
        obs, reward, *ends, _ = env.step(action)
        assert env.observation_space.contains(obs)
        results.append(copy.deepcopy((obs, reward, *ends)))
        if any(ends):
            break
    return results


def test_a_road_is_seen_in_two_small_grey_images() -> None:
    require("CarRacing-v3")

    ((_, leaf),) = planned("--env=CarRacing-v3").spec.obs

    assert (leaf.shape, leaf.layout) == ((2, 64, 64), "chw")


@pytest.mark.parametrize("view", VIEWS)
def test_a_grid_is_shown_as_choices_as_an_image_of_channels_or_as_a_picture(view: str) -> None:
    require("MiniGrid-DoorKey-5x5-v0")
    kwargs = f'--env_kwargs={{"minigrid_obs": "{view}"}}'
    extra = ["--obs_layout=image=hwc", "--encoder_conv_architecture=convnet_minatar"] if view == "image" else []

    plan = planned("--env=MiniGrid-DoorKey-5x5-v0", kwargs, *extra)

    leaf = dict(plan.spec.obs)["image"]
    assert (leaf.shape, leaf.layout) == VIEWS[view]
    assert "mission" not in dict(plan.spec.obs)
    assert any("'mission' is not read" in line for line in plan.reading)


def test_flat_and_image_views_of_a_grid_say_the_same() -> None:
    require("MiniGrid-DoorKey-5x5-v0")
    flat, image = (make_env("MiniGrid-DoorKey-5x5-v0", {"minigrid_obs": view}) for view in ("flat", "image"))
    codes, one_hot = (env.reset(seed=1)[0]["image"] for env in (flat, image))

    for part, channels in enumerate((slice(11), slice(11, 17), slice(17, 20))):
        assert (one_hot[..., channels].argmax(-1).ravel() == codes[part::3]).all()
    with pytest.raises(EnvError, match="minigrid_obs='pixels': must be one of flat, image, rgb"):
        make_env("MiniGrid-DoorKey-5x5-v0", {"minigrid_obs": "pixels"})
    with pytest.raises(EnvError, match=r"^--env=MiniGrid-DoorKey-5x5-v9: .*did you mean MiniGrid-DoorKey-5x5-v0"):
        make_env("MiniGrid-DoorKey-5x5-v9", {})


def test_missions_are_words_of_the_vocabulary() -> None:
    require("BabyAI-SynthSeq-v0")
    # They have all kinds of orders, joined in all ways; a few of them have every word but those of MiniGrid's own ids.
    for name in ("BabyAI-SynthSeq-v0", "MiniGrid-PutNear-6x6-N2-v0", "MiniGrid-LockedRoom-v0", "MiniGrid-Empty-5x5-v0"):
        env = make_env(name, {})
        for seed in range(5):
            mission, text = env.reset(seed=seed)[0]["mission"], env.unwrapped.mission  # type: ignore[attr-defined]
            assert 1 not in mission, text
            assert np.count_nonzero(mission) == len(text.split())
    assert "mission" in dict(planned("--env=BabyAI-GoToObj-v0").spec.obs)
    assert "mission" in dict(planned("--env=MiniGrid-Empty-5x5-v0", "--ignore_obs_keys=").spec.obs)


def test_the_first_mission_that_is_cut_and_the_first_with_unknown_words_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    require("MiniGrid-Empty-5x5-v0")
    from sfactory_envs import grid_view

    monkeypatch.setattr(grid_view, "_warned", set())
    env: Any = make_env("MiniGrid-Empty-5x5-v0", {})
    env.reset(seed=1)
    assert caplog.messages == []

    for mission in ("open the portcullis", "find the zebra", "go " * 72 + "left", "go " * 80):
        env.unwrapped.mission = mission
        env.step(0)

    unknown, cut = caplog.messages
    assert unknown.endswith(": portcullis")
    assert "more than 72 words" in cut


def test_a_seeded_game_of_minatar_forgets_the_last_action_and_draws_bytes() -> None:
    require("MinAtar/Breakout-v1")
    env = make_env("MinAtar/Breakout-v1", {}, render_mode="rgb_array")
    env.reset(seed=1)
    env.step(2)
    env.reset(seed=1)

    picture: Any = env.render()

    assert env.get_wrapper_attr("game").last_action == 0
    assert (picture.shape, picture.dtype) == ((160, 160, 3), np.uint8)


@pytest.mark.parametrize(("repeat", "steps"), [(1, 6), (2, 3)])
def test_a_limit_of_time_does_not_hide_what_was_unlocked_in_crafter(repeat: int, steps: int) -> None:
    require("crafter_reward")
    limits = WrapperConfig(max_episode_steps=steps, action_repeat=repeat)
    env = EnvFactory("crafter_reward", wrappers=limits)()
    env.reset(seed=1)

    ends = [env.step(0)[2:] for _ in range(steps)]

    assert [truncated for _, truncated, _ in ends] == [False] * (steps - 1) + [True]
    assert "unlocked_collect_wood" in ends[-1][-1]["episode_extra_stats"]
