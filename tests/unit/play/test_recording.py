"""enjoy records videos and opens windows, and plays the same episodes either way."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from sfactory import enjoy
from tests.support.decoder import decode
from tests.support.saved_run import BANDIT, TRUSTED, play, refused, save_run

ENVS = "tests.support.drawn_env"
DRAWN = f"{ENVS}:Drawn"
REPLAY = Path("train_dir/run/replay.mp4")


@pytest.fixture(autouse=True)
def _in_an_empty_directory_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def save_drawn(env: str = DRAWN, certainty: float = 50.0, frameskip: int = 1, **kwargs: Any) -> None:
    """A run of an env that can be drawn; a great ``certainty`` makes its policy always right."""
    save_run(env=env, env_kwargs=kwargs, certainty=certainty, env_frameskip=frameskip)


@pytest.mark.parametrize(
    ("flags", "name", "episodes", "frames", "fps"),
    [
        (["--max_num_episodes=3"], "replay", 3, 3 * (1 + 5), 20.0),
        (["--max_num_frames=8"], "replay", 1, 6 + 4, 20.0),
        (["--video_name=first", "--video_frames=7", "--fps=50", "--max_num_episodes=4"], "first", 4, 7, 50.0),
    ],
)
def test_a_video_shows_every_step_up_to_its_limit(
    flags: list[str], name: str, episodes: int, frames: int, fps: float, capsys: pytest.CaptureFixture[str]
) -> None:
    save_drawn()

    result = play(capsys, "--save_video=True", *flags)

    decoded = decode(f"train_dir/run/{name}.mp4")
    assert (result["video"], result["episodes"]) == (str(Path(f"train_dir/run/{name}.mp4").absolute()), episodes)
    assert decoded.pictures.shape == (frames, 48, 64, 3)
    assert decoded.fps == fps
    brightness = ([0, 10, 20, 30, 40, 50] * 3)[:frames]
    assert decoded.pictures.mean(axis=(1, 2, 3)) == pytest.approx(brightness, abs=4)


def test_a_seed_plays_the_same_with_a_video_with_a_window_and_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_drawn(certainty=1.0)
    plain, video = (play(capsys, "--seed=4", "--max_num_episodes=4", f"--save_video={on}") for on in (False, True))
    monkeypatch.setenv("DISPLAY", ":0")

    window = play(capsys, "--seed=4", "--max_num_episodes=4", "--render=window", "--fps=1000")
    no_window = play(capsys, "--seed=4", "--max_num_episodes=4", "--no_render=True")

    assert plain == window == no_window == {**video, "video": None}
    assert 0.0 < plain["episode_return_mean"] < 5.0


class CtrlCAfterThePlay(io.StringIO):
    """A stderr on which Ctrl-C follows the message that the play is over."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.startswith("stopped after"):
            signal.raise_signal(signal.SIGINT)
        return written


@pytest.mark.parametrize(
    ("env", "flags", "frames"), [("Interrupter", [], 2 * 6), ("Drawn", ["--max_num_frames=12"], 2 * 6 + 3)]
)
def test_ctrl_c_in_or_after_the_play_leaves_a_whole_video(
    env: str, flags: list[str], frames: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_drawn(env=f"{ENVS}:{env}")
    if flags:
        monkeypatch.setattr(sys, "stderr", CtrlCAfterThePlay())

    code = enjoy.main(["--experiment=run", TRUSTED, "--save_video=True", *flags])

    result = json.loads(capsys.readouterr().out)
    assert (code, result["episodes"], result["video"]) == (130, 2, str(REPLAY.absolute()))
    assert len(decode(REPLAY).pictures) == frames


def test_statistics_of_the_env_are_in_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(env=f"{ENVS}:Stacked", frameskip=4, hold=4, length=3)

    result = play(capsys, "--max_num_episodes=4", "--eval_env_frameskip=4")

    assert (result["true_objective_mean"], result["episode_extra_stats"]) == (0.5, {"frames": 12.0})


def test_a_smaller_frameskip_shows_the_frames_between_and_plays_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(frameskip=4, hold=4)
    argv = ("--save_video=True", "--max_num_episodes=2", "--seed=1", "--eval_deterministic=True")

    results, frames = [], []
    for flags in ([], ["--eval_env_frameskip=2"]):
        results.append(play(capsys, *argv, *flags))
        frames.append(len(decode(REPLAY).pictures))

    assert results[0] == results[1]
    assert (results[0]["episode_return_mean"], results[0]["episode_length_mean"]) == (5.0, 5.0)
    assert frames == [2 * (1 + 5), 2 * (1 + 10)]


@pytest.mark.parametrize(
    ("env", "kwargs", "flags", "text"),
    [
        (f"{ENVS}:BadPainter", {}, ["--save_video=True"], "render() raised RuntimeError: out of paint"),
        (DRAWN, {"grows": True}, ["--save_video=True"], "frame 2 is 64 x 49 pixels"),
        (DRAWN, {}, ["--render=window"], "no display"),
        (BANDIT, {"num_contexts": 4}, ["--render=window", "DISPLAY"], "the env draws nothing"),
        (DRAWN, {"hold": 4}, ["--eval_env_frameskip=3"], "must be a divisor of the run's env_frameskip, 4"),
        (BANDIT, {"num_contexts": 4}, ["--eval_env_frameskip=2"], "does not take env_frameskip"),
        (f"{ENVS}:Stacked", {"hold": 4}, ["--eval_env_frameskip=2"], "each observation of several frames"),
    ],
)
def test_impossible_videos_and_windows_are_refused(
    env: str,
    kwargs: dict[str, object],
    flags: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_run(env=env, env_kwargs=kwargs, env_frameskip=4 if "frameskip" in flags[0] else 1)
    if "DISPLAY" in flags:
        monkeypatch.setenv("DISPLAY", ":0")

    (line,) = refused(capsys, "--experiment=run", flags[0])

    assert text in line
    assert sorted(os.listdir("train_dir/run")) == ["checkpoint_p0", "config.json"]


@pytest.mark.parametrize("flag", [{"sticky_actions": 0.1}, {"max_episode_steps": 9}])
def test_a_smaller_frameskip_is_refused_where_wrappers_count_steps(
    flag: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(env=DRAWN, env_kwargs={"hold": 4}, env_frameskip=4, **flag)

    (line,) = refused(capsys, "--experiment=run", "--eval_env_frameskip=2")

    assert f"--eval_env_frameskip=2: the run's --{next(iter(flag))} is for each step" in line
