"""The 57 Atari games are found by our names and by Gymnasium's, with defaults for training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from sfactory.config.env_families import find_family
from sfactory.config.resolve import read_command_line
from sfactory.config.validation import check_env_name
from sfactory.env.factory import EnvFactory, make_env
from sfactory.errors import EnvError
from sfactory_envs.atari import FAMILY
from sfactory_envs.atari.games import GAMES, lacks_sticky_actions, rom_of

ale_py = pytest.importorskip("ale_py")


def test_57_games_are_installed() -> None:
    assert len(set(GAMES)) == 57
    assert [rom for rom in GAMES if not Path(ale_py.roms.get_rom_path(rom)).is_file()] == []


def test_games_go_by_our_names_and_by_gymnasium_ids() -> None:
    known = {
        **dict.fromkeys(
            ("atari_breakout", "ALE/Breakout-v5", "ALE/Breakout", "Breakout-v4", "Breakout-v0"), "breakout"
        ),
        "BreakoutDeterministic-v4": "breakout",
        "UpNDownNoFrameskip-v4": "up_n_down",
        **dict.fromkeys(("atari_montezuma_revenge", "ALE/MontezumaRevenge-v5"), "montezuma_revenge"),
        **dict.fromkeys(("Breakout-ram-v4", "ALE/Breakout-ram-v5", "ALE/Breakout-v4", "atari_brakeout"), None),
        **dict.fromkeys(("breakout", "CartPole-v1"), None),
    }

    for name, rom in known.items():
        assert rom_of(name) == rom
        assert FAMILY.matches(name) is (rom is not None)
    assert "atari_breakout" in check_env_name("atari_brakeout")[0]


def test_every_id_that_ale_py_registers_for_a_game_of_ours_is_ours() -> None:
    gymnasium.register_envs(ale_py)
    kinds = ("ALE/{}-v5", "{}-v0", "{}-v4", "{}NoFrameskip-v4")
    registered = {
        spec.id: spec.kwargs["game"]
        for spec in gymnasium.registry.values()
        if spec.kwargs.get("game") in GAMES and spec.kwargs.get("obs_type", "rgb") == "rgb"
    }

    assert set(registered.values()) == set(GAMES)
    assert {name for name, game in registered.items() if rom_of(name) != game} == set()
    assert {kind.format("Breakout") for kind in kinds} <= set(registered)
    sticky = {name for name in registered if gymnasium.registry[name].kwargs["repeat_action_probability"]}
    assert {name for name in registered if lacks_sticky_actions(name, {})} == sticky


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--env=ALE/Pong-v5"], ["--env=ALE/Pong-v5: made as atari_pong, without the sticky actions (0.25)"]),
        (["--env=vector:ALE/Pong-v5"], ["--env=vector:ALE/Pong-v5: made as games of the Atari family, without"]),
        (["--env=ALE/Pong-v5", "--sticky_actions=0.0"], []),
        (["--env=ALE/Pong-v5", '--env_kwargs={"repeat_action_probability": 0.1}'], []),
        (["--env=vector:ALE/Pong-v5", '--env_kwargs={"repeat_action_probability": 0.1}'], []),
        *(([f"--env={name}"], []) for name in ("atari_pong", "PongNoFrameskip-v4", "vector:CartPole-v0")),
    ],
)
def test_an_id_whose_sticky_actions_are_left_out_is_warned_of(flags: list[str], warned: list[str]) -> None:
    warnings = [text for text in read_command_line(flags).warnings if "sticky" in text]

    assert len(warnings) == len(warned)
    assert all(text.startswith(start) for text, start in zip(warnings, warned, strict=True))


def test_family_is_known_and_light() -> None:
    script = (
        "import sys, sfactory_envs.atari\n"
        "print([name for name in ('ale_py', 'cv2', 'gymnasium', 'torch', 'numpy') if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"
    assert find_family("atari_pong") is FAMILY


@pytest.mark.parametrize(("flags", "frames_per_second"), [([], 15.0), (["--env_frameskip=2"], 30.0)])
def test_defaults_of_the_family_are_flags_which_the_game_gets(flags: list[str], frames_per_second: float) -> None:
    config = read_command_line(["--env=atari_breakout", *flags]).config

    assert EnvFactory.of(config)().metadata["render_fps"] == frames_per_second
    assert config.algo.reward_clip == 1.0
    assert (config.model.normalize_input, config.model.normalize_returns, config.model.obs_scale) == (False, False, 255)


@pytest.mark.parametrize("missing", ["ale_py", "cv2"])
def test_missing_package_is_explained(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "sfactory_envs.atari.preprocessing", raising=False)

    with pytest.raises(EnvError, match=rf"{missing}.*pip install .*\[atari\]"):
        make_env("atari_breakout", {})
