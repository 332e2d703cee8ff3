"""Doom's images and time limits are those that are asked for; the encoder of NetHack sees what is around the hero."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch

from sfactory.config.env_families import search_families
from sfactory.config.schema import ModelConfig, WrapperConfig
from sfactory.env.factory import EnvFactory
from sfactory.errors import EnvError
from sfactory.planning.network_check import checked_model
from sfactory.spec import EnvSpec
from sfactory_envs import nethack_encoder
from sfactory_envs.nethack import FAMILY as NETHACK
from sfactory_envs.nethack_encoder import NetHackEncoder


@pytest.fixture
def _with_vizdoom(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vizdoom")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))  # games of others have theirs


@pytest.mark.usefixtures("_with_vizdoom")
def test_images_of_doom_have_the_size_that_is_asked_for_and_an_own_scenario_needs_a_file() -> None:
    env = EnvFactory("doom_basic", {"resolution": "64x48"}, env_frameskip=4)()
    obs, _ = env.reset(seed=1)
    env.close()

    assert obs["screen"].shape == (48, 64, 3)
    for name, kwargs, text in (("doom_basic", {"resolution": "tall"}, "128x72"), ("doom:no.cfg", {}, "no file")):
        with pytest.raises(EnvError, match=text):
            EnvFactory(name, kwargs, env_frameskip=4)()


@pytest.mark.usefixtures("_with_vizdoom")
def test_a_time_limit_of_doom_truncates() -> None:
    env = EnvFactory("doom_basic", env_frameskip=10)()
    env.reset(seed=1)

    ends = [env.step(0)[2:4] for _ in range(30)]  # noop until 300 frames have passed
    env.close()

    assert (True, False) not in ends
    assert (False, True) in ends


@pytest.mark.usefixtures("_with_vizdoom")
def test_a_game_finds_files_by_paths_from_the_current_folder_and_writes_nothing_there() -> None:
    import vizdoom

    for file in ("basic.cfg", "basic.wad"):
        shutil.copy(Path(vizdoom.scenarios_path, file), file)

    for name, kwargs in (("doom:basic.cfg", {}), ("doom_basic", {"doom_scenario_path": "basic.wad"})):
        env = EnvFactory(name, kwargs, env_frameskip=4)()
        assert env.reset(seed=1)[0]["screen"].any()
        assert not any(Path(tempfile.gettempdir()).iterdir())  # nothing that a kill would leave
        env.close()

    assert sorted(file.name for file in Path.cwd().iterdir()) == ["basic.cfg", "basic.wad"]


@pytest.mark.parametrize("name", NETHACK.names())
def test_every_task_of_nethack_begins_and_plays_games(name: str) -> None:
    pytest.importorskip("nle")
    env = EnvFactory(name)()

    for seed in (1, None):
        shown = [env.reset(seed=seed)[0], *(env.step(action)[0] for action in (1, 2, 3))]
        assert all(env.observation_space.contains(obs) for obs in shown)
    env.close()


@pytest.mark.parametrize(
    ("name", "kwargs", "flag", "limit"),
    [
        ("NetHackScore-v0", {}, 0, 5_000),  # nle's own
        ("NetHackScore-v0", {"max_episode_steps": 5_001}, 0, 5_001),
        ("NetHackScore-v0", {}, 5_002, 5_002),
        ("NetHackChallenge-v0", {"max_episode_steps": 7}, 0, 7),
        ("NetHackChallenge-v0", {"no_progress_timeout": 10}, 0, 5),  # nle counts twice a step
        ("NetHackChallenge-v0", {"no_progress_timeout": 11}, 0, 6),
    ],
)
def test_limits_of_nethack_truncate_and_show_the_game(name: str, kwargs: dict[str, Any], flag: int, limit: int) -> None:
    pytest.importorskip("nle")
    env: Any = EnvFactory(name, kwargs, wrappers=WrapperConfig(max_episode_steps=flag))()
    begun, _ = env.reset(seed=1)
    downstairs = env.unwrapped.actions.index(ord(">"))  # there are no stairs, so no time passes

    for step in range(1, limit + 1):
        obs, _, terminated, truncated, _ = env.step(downstairs)
        assert (step, terminated, truncated) == (step, False, step == limit)
    env.close()

    assert (obs["blstats"] == begun["blstats"]).all()
    assert bytes(obs["message"]).startswith(b"You can't go down here")


def test_only_the_challenge_of_nethack_says_that_it_takes_no_seeds() -> None:
    said = {name: search_families(name).warnings for name in NETHACK.names()}

    (warning,) = said.pop("NetHackChallenge-v0")
    assert "seed" in warning
    assert not any(said.values())


def nethack_space(**more: Any) -> Any:
    glyphs, stats = spaces.Box(0, 5976, (21, 79), np.int16), spaces.Box(-(2**31), 2**31 - 1, (27,), np.int64)
    return spaces.Dict(glyphs=glyphs, blstats=stats, **more)


def test_the_encoder_of_nethack_sees_the_glyphs_around_the_hero_in_its_second_part() -> None:
    encoder = NetHackEncoder(nethack_space(), crop=3)
    glyphs = torch.arange(21 * 79).reshape(1, 21, 79)

    middle = encoder._around_hero(glyphs, torch.tensor([[5, 2, 0]]))
    corner = encoder._around_hero(glyphs, torch.tensor([[0, 0, 0]]))

    assert middle.tolist() == [[[83, 84, 85], [162, 163, 164], [241, 242, 243]]]
    dark = 2359
    assert corner.tolist() == [[[dark, dark, dark], [dark, 0, 1], [dark, 79, 80]]]


def test_the_encoder_of_nethack_has_zeros_for_what_is_not_seen() -> None:
    encoder = NetHackEncoder(nethack_space(message=spaces.Box(0, 255, (256,), np.uint8)))

    assert not encoder.table(torch.tensor([2359])).any()
    assert encoder.letters is not None
    assert not encoder.letters(torch.zeros(1, 256, dtype=torch.long)).any()


def test_what_the_encoder_takes_for_not_seen_is_nles_own_number() -> None:
    nethack = pytest.importorskip("nle.nethack")

    assert nethack_encoder._DARK == nethack.GLYPH_CMAP_OFF  # the first drawn symbol is that of dark stone


@pytest.mark.parametrize("more", [{}, {"message": spaces.Box(0, 255, (256,), np.uint8)}], ids=["map", "message"])
def test_the_encoder_of_nethack_is_accepted_as_a_network(more: dict[str, Any]) -> None:
    spec = EnvSpec.of_spaces(nethack_space(**more), spaces.Discrete(23))
    config = ModelConfig(encoder="nethack", normalize_input=False, model_kwargs={"hidden": 8})

    model = checked_model(spec.for_model(config), config)

    assert model.fresh_state(2).shape[0] == 2
