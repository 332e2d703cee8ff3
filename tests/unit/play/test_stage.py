"""enjoy shows what it plays: a video without a display, a window with one, the same episodes either way."""

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
from tests.support.saved_run import play, refused, save_run
from tests.support.trainer import RunTrainer

DRAWN = "tests.support.drawn_env:Drawn"
REPLAY = Path("train_dir/run/replay.mp4")


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def save_drawn(env: str = DRAWN, certainty: float = 50.0, frameskip: int = 1, **kwargs: Any) -> None:
    """A run of the env that can be seen; its policy is always right if ``certainty`` is great."""
    save_run(env=env, env_kwargs=kwargs, certainty=certainty, env_frameskip=frameskip)


def test_a_video_shows_every_step_of_every_episode(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn()

    result = play(capsys, "--save_video=True", "--max_num_episodes=3")

    decoded = decode(REPLAY)
    assert result["video"] == str(REPLAY)
    assert result["episodes"] == 3
    assert decoded.pictures.shape == (3 * (1 + 5), 48, 64, 3)
    assert decoded.fps == 20.0
    assert decoded.pictures.mean(axis=(1, 2, 3)) == pytest.approx([0, 10, 20, 30, 40, 50] * 3, abs=4)


def test_the_same_seed_plays_the_same_with_and_without_a_video(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(certainty=1.0)

    unseen, seen, again = (
        play(capsys, "--seed=4", "--max_num_episodes=8", f"--save_video={video}") for video in (False, True, True)
    )

    assert seen == again
    assert {**seen, "video": None} == unseen
    assert 0.0 < unseen["episode_return_mean"] < 5.0


def test_name_length_and_speed_of_the_video_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn()

    result = play(
        capsys, "--save_video=True", "--video_name=first", "--video_frames=7", "--fps=50", "--max_num_episodes=4"
    )

    decoded = decode("train_dir/run/first.mp4")
    assert result["video"] == "train_dir/run/first.mp4"
    assert result["episodes"] == 4
    assert (len(decoded.pictures), decoded.fps) == (7, 50.0)


def test_an_episode_that_was_cut_off_is_in_the_video(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn()

    result = play(capsys, "--save_video=True", "--max_num_frames=8")

    assert result["episodes"] == 1
    assert len(decode(REPLAY).pictures) == 6 + 4


def test_ctrl_c_leaves_a_whole_video_of_what_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(env="tests.support.drawn_env:Interrupter")

    code = enjoy.main(["--experiment=run", "--save_video=True"])

    result = json.loads(capsys.readouterr().out)
    assert code == 130
    assert result["episodes"] == 2
    assert result["video"] == str(REPLAY)
    assert len(decode(REPLAY).pictures) == 12


class CtrlCAfterThePlay(io.StringIO):
    """A stderr whose reader presses Ctrl-C as soon as it says that the play is over."""

    def write(self, text: str) -> int:
        """Take ``text``."""
        written = super().write(text)
        if text.startswith("stopped after"):
            signal.raise_signal(signal.SIGINT)
        return written


def test_ctrl_c_just_after_the_play_leaves_the_whole_video(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_drawn()
    monkeypatch.setattr(sys, "stderr", CtrlCAfterThePlay())

    code = enjoy.main(["--experiment=run", "--save_video=True", "--max_num_frames=12"])

    result = json.loads(capsys.readouterr().out)
    assert code == 130
    assert result["episodes"] == 2
    assert result["video"] == str(REPLAY)
    assert len(decode(REPLAY).pictures) == 6 + 6 + 3


def test_a_smaller_frameskip_shows_the_frames_between_and_plays_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(frameskip=4, hold=4)
    argv = ("--save_video=True", "--max_num_episodes=2", "--seed=1", "--eval_deterministic=True")

    usual = play(capsys, *argv)
    usual_frames = len(decode(REPLAY).pictures)
    finer = play(capsys, *argv, "--eval_env_frameskip=2")
    finer_frames = len(decode(REPLAY).pictures)

    assert finer == usual
    assert (finer["episode_return_mean"], finer["episode_length_mean"]) == (5.0, 5.0)
    assert (usual_frames, finer_frames) == (2 * (1 + 5), 2 * (1 + 10))


def test_a_frameskip_that_cannot_be_made_up_for_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(frameskip=4, hold=4)
    save_run("bandit", env_frameskip=4)

    (no_divisor,) = refused(capsys, "--experiment=run", "--eval_env_frameskip=3")
    (not_taken,) = refused(capsys, "--experiment=bandit", "--eval_env_frameskip=2")

    assert "must be a divisor of the run's env_frameskip, 4" in no_divisor
    assert "does not take env_frameskip" in not_taken


@pytest.mark.parametrize(
    ("env", "kwargs", "text"),
    [
        ("tests.support.drawn_env:Undrawable", {}, "render() returned None"),
        ("tests.support.drawn_env:BadPainter", {}, "render() raised RuntimeError: out of paint"),
        ("sfactory_envs.synthetic.bandit:Bandit", {"num_contexts": 4}, "render() raised NotImplementedError"),
        (DRAWN, {"grows": True}, "frame 2 is 64 x 49 pixels where those before were 64 x 48"),
    ],
)
def test_an_env_that_cannot_be_drawn_is_refused(
    capsys: pytest.CaptureFixture[str], env: str, kwargs: dict[str, object], text: str
) -> None:
    save_run(env=env, env_kwargs=kwargs)

    (line,) = refused(capsys, "--experiment=run", "--save_video=True")

    assert f"--env={env}: " in line
    assert text in line
    assert sorted(os.listdir("train_dir/run")) == ["checkpoint_p0", "config.json"]


def test_a_window_without_a_display_is_refused_with_the_other_ways(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn()

    (line,) = refused(capsys, "--experiment=run", "--render=window")

    assert "there is no display" in line
    assert "--save_video=True" in line
    assert "--render=none" in line


def test_a_window_plays_the_same_episodes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    save_drawn(certainty=1.0)
    monkeypatch.setenv("DISPLAY", ":0")

    window = play(capsys, "--render=window", "--fps=1000", "--seed=2", "--max_num_episodes=4")
    unseen = play(capsys, "--no_render=True", "--seed=2", "--max_num_episodes=4")

    assert window == unseen


def test_a_window_of_an_env_that_draws_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run()
    monkeypatch.setenv("DISPLAY", ":0")

    (line,) = refused(capsys, "--experiment=run", "--render=window")

    assert "the env draws nothing" in line


def test_flags_that_contradict_each_other_are_refused_together(capsys: pytest.CaptureFixture[str]) -> None:
    lines = refused(
        capsys, "--render=window", "--no_render=True", "--video_name=../x", "--video_frames=3", "--fps=-1", "--seed=1"
    )

    expected = ["--render=window", "--video_name=../x", "--video_name=../x", "--video_frames=3", "--fps=-1.0"]
    assert sorted(line.split(": ")[1] for line in lines) == sorted(expected)


def test_statistics_of_the_env_itself_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(length=3)

    result = play(capsys, "--max_num_episodes=4")

    assert result["true_objective_mean"] == 0.5
    assert result["episode_extra_stats"] == {"frames": 3.0}


def test_a_trained_run_with_a_memory_can_be_recorded(
    run_trainer: RunTrainer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_trainer(train_for_env_steps=2000, use_rnn=True, rnn_size=8)
    assert run.wait() == 0
    argv = [f"--train_dir={run.run_dir.parent}", f"--experiment={run.run_dir.name}", "--seed=1", "--max_num_episodes=2"]

    code = enjoy.main([*argv, "--save_video=True"])
    result = json.loads(capsys.readouterr().out)

    decoded = decode(run.run_dir / "replay.mp4")
    assert code == 0
    assert decoded.fps == 50.0
    assert decoded.pictures.shape == (2 + 2 * result["episode_length_mean"], 400, 600, 3)


def test_a_frameskip_that_would_change_what_the_policy_sees_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_drawn(env="tests.support.drawn_env:Stacked", frameskip=4, hold=4)

    (stacked,) = refused(capsys, "--experiment=run", "--eval_env_frameskip=2")
    same = play(capsys, "--eval_env_frameskip=4", "--max_num_episodes=1")

    assert "--eval_env_frameskip=2: --env=tests.support.drawn_env:Stacked makes one observation of several" in stacked
    assert same["episodes"] == 1
