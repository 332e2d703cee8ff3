"""Videos of evaluations: which are made, how much of an episode they show, and that a failure ends nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sfactory.play import eval_video
from sfactory.play.eval_video import EvaluationVideos, VideoFolder
from tests.support.decoder import decode
from tests.support.drawn_env import BadPainter, Drawn


def record(videos: EvaluationVideos, env_steps: int, frames: int = 3, env: Any = None) -> None:
    """Show so many frames, of brightness 0, 10, 20, ... to be recorded."""
    env = env or Drawn("rgb_array")
    env.reset()
    with videos.recording(env, env_steps):
        for _ in range(frames):
            videos.show(env)
            env.step(np.int64(0))
    videos.show(env)  # after the block, so in no video


def test_a_video_is_made_after_a_tenth_more_env_steps_and_is_found_once(tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    videos, found = EvaluationVideos(folder, "--env=drawn"), VideoFolder(folder)
    assert found.new() == []

    for env_steps in (0, 1, 1000, 1099, 1100):
        record(videos, env_steps)

    names = [f"eval_{env_steps:012d}" for env_steps in (0, 1000, 1100)]
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{name}.{end}" for name in names for end in ("gif", "mp4")
    ]
    assert found.new() == [(folder / f"{name}.mp4", steps) for name, steps in zip(names, (0, 1000, 1100), strict=True)]
    record(EvaluationVideos(folder, "--env=drawn"), 1050)  # a later session, which went back to a checkpoint
    record(EvaluationVideos(folder, "--env=drawn"), 1000)
    (folder / "eval_mine.mp4").write_bytes(b"of the user")
    assert [steps for _, steps in found.new()] == [1000, 1050]
    decoded = decode(folder / f"{names[0]}.mp4")
    assert (decoded.fps, decoded.pictures.shape) == (20.0, (3, 48, 64, 3))
    assert decoded.pictures.mean(axis=(1, 2, 3)) == pytest.approx([0, 10, 20], abs=4)


def test_a_long_episode_of_large_pictures_makes_a_small_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_video, "_MOST_FRAMES", 40)

    class Large(Drawn):
        """Pictures of noise, which cannot be compressed."""

        def render(self) -> Any:
            return np.random.default_rng(self._frame).integers(256, size=(451, 901, 3), dtype=np.uint8)

    record(EvaluationVideos(tmp_path, "--env=large"), 7, 60, Large("rgb_array", length=100))

    assert decode(tmp_path / "eval_000000000007.mp4").pictures.shape == (40, 320, 640, 3)
    gif = decode(tmp_path / "eval_000000000007.gif").pictures
    assert gif.shape[1:] == (120, 240, 3)
    assert len(gif) == pytest.approx(20, abs=1)  # 10 a second


def test_a_video_ends_where_drawing_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos = EvaluationVideos(tmp_path, "--env=drawn")
    env = Drawn("rgb_array", length=100)
    env.reset()

    with videos.recording(env, 0):
        videos.show(env)
        monkeypatch.setattr(videos._deadline, "_at", 0.0)
        videos.show(env)

    assert len(decode(tmp_path / "eval_000000000000.mp4").pictures) == 1


@pytest.mark.parametrize("fails", ["env", "size", "folder"])
def test_the_first_failure_is_logged_and_ends_recording_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    folder = tmp_path / "videos"
    if fails == "folder":
        folder.write_bytes(b"")  # a file in its place
    env = {"env": BadPainter("rgb_array"), "size": Drawn("rgb_array", grows=True)}.get(fails)
    videos = EvaluationVideos(folder, "--env=drawn")

    with caplog.at_level(logging.WARNING):
        for env_steps in (0, 1000, 2000):
            record(videos, env_steps, env=env)

    (line,) = [record.message for record in caplog.records]
    words = {"env": "out of paint; fix that, or leave out --eval_video", "size": "frame 2 is", "folder": "videos/eval_"}
    assert words[fails] in line
    assert line.endswith("; evaluations and training continue")
    assert fails == "folder" or list(folder.iterdir()) == []


def test_an_evaluation_that_is_broken_off_leaves_no_video(tmp_path: Path) -> None:
    videos = EvaluationVideos(tmp_path, "--env=drawn")
    env = Drawn("rgb_array")
    env.reset()

    def break_off() -> None:
        with videos.recording(env, 0):
            videos.show(env)
            raise KeyError

    with pytest.raises(KeyError):
        break_off()

    assert list(tmp_path.iterdir()) == []
    record(videos, 0)  # the next try
    assert (tmp_path / "eval_000000000000.mp4").exists()


def test_a_gif_can_be_read_by_what_shows_pictures(tmp_path: Path) -> None:
    record(EvaluationVideos(tmp_path, "--env=drawn"), 0, 5)

    capture = cv2.VideoCapture(str(tmp_path / "eval_000000000000.gif"))
    assert capture.read()[1].shape == (48, 64, 3)
