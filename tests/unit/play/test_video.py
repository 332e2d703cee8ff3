"""A video holds the frames that were written, in a file that is whole or absent, and invalid pictures are refused."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sfactory.env.drawing import rgb_frame
from sfactory.errors import CannotSaveError, ConfigError, EnvError
from sfactory.play.video import VideoFile
from sfactory.system.optional_packages import find_ffmpeg
from tests.support.decoder import decode


def frame(brightness: int, height: int = 32, width: int = 48) -> npt.NDArray[np.uint8]:
    return np.full((height, width, 3), brightness, np.uint8)


def write(video: VideoFile | Path, frames: list[npt.NDArray[np.uint8]], error: Exception | None = None) -> None:
    """Write a whole video; ``error`` is raised after its last frame."""
    with video if isinstance(video, VideoFile) else VideoFile(video, 12.5, find_ffmpeg()) as file:
        for one in frames:
            file.write(one)
        if error is not None:
            raise error


def test_every_frame_is_in_the_file_in_order_with_its_colors(tmp_path: Path) -> None:
    red, dark = frame(0, height=16), frame(0, height=16)
    red[:, :, 0] = 200
    upside_down = np.concatenate([red, dark])[::-1]  # not one block of memory

    write(tmp_path / "x.mp4", [*(frame(40 * number) for number in range(6)), *[upside_down] * 3])

    decoded = decode(tmp_path / "x.mp4")
    assert decoded.pictures.shape == (9, 32, 48, 3)
    assert decoded.fps == 12.5
    brightness = decoded.pictures[:6].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(brightness, [0, 40, 80, 120, 160, 200], atol=4)
    upper, lower = decoded.pictures[-1, :14].mean(), decoded.pictures[-1, 18:].mean(axis=(0, 1))
    assert lower[2] > 180  # blue, green, red
    assert max(upper, lower[0], lower[1]) < 20


@pytest.mark.parametrize(("height", "width"), [(1, 1), (32, 47)])
def test_an_odd_size_gets_a_black_edge(tmp_path: Path, height: int, width: int) -> None:
    write(tmp_path / "x.mp4", [frame(100, height, width)] * 2)

    assert decode(tmp_path / "x.mp4").pictures.shape == (2, height + height % 2, width + width % 2, 3)


def test_a_frame_cut_off_at_the_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    with VideoFile(path, 25.0, find_ffmpeg()) as video:
        for _ in range(4):
            video.write(frame(50))
        assert video._process is not None
        assert video._process.stdin is not None
        video._process.stdin.write(frame(50).tobytes()[:1000])

    assert len(decode(path).pictures) == 4


def test_no_frame_or_a_frame_of_another_size_makes_no_file(tmp_path: Path) -> None:
    write(tmp_path / "x.mp4", [])
    with pytest.raises(EnvError, match=r"frame 2 is 48 x 33 pixels .* 48 x 32"):
        write(tmp_path / "x.mp4", [frame(0), frame(0, height=33)])

    assert os.listdir(tmp_path) == []


FAILS = "sys.stdin.buffer.read()\nsys.exit('no space left')\n"
DIES = "sys.exit(1)\n"
# It ignores SIGTERM, and neither reads nor ends.
HANGS = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(60)\n"
HANGS_AT_THE_END = f"sys.stdin.buffer.read()\n{HANGS}"


@pytest.mark.parametrize(
    ("program", "frames", "raised", "error", "words"),
    [
        (FAILS, 1, None, CannotSaveError, "could not be written: .*status 1: no space left"),
        (DIES, 1000, None, CannotSaveError, "ended with status 1"),
        (HANGS_AT_THE_END, 1, None, CannotSaveError, r"had not ended 0\.5 s after the last frame"),
        (HANGS, 100, None, CannotSaveError, r"took nothing of frame \d+ for 0\.5 s"),
        (HANGS, 1, RuntimeError("on purpose"), RuntimeError, "on purpose"),
    ],
)
def test_an_ffmpeg_that_fails_or_hangs_ends_and_leaves_the_earlier_video(
    tmp_path: Path, program: str, frames: int, raised: Exception | None, error: type[Exception], words: str
) -> None:
    path, ffmpeg = tmp_path / "x.mp4", tmp_path / "ffmpeg"
    path.write_bytes(b"the one before")
    ffmpeg.write_text(f"#!{sys.executable}\nimport signal, sys, time\n{program}")
    ffmpeg.chmod(0o755)
    video = VideoFile(path, 25.0, str(ffmpeg), patience_s=60.0 if raised or program in (FAILS, DIES) else 0.5)

    with pytest.raises(error, match=words):
        write(video, [frame(0)] * frames, raised)

    assert video._process is not None
    assert video._process.returncode == (1 if program in (FAILS, DIES) else -signal.SIGKILL)
    assert path.read_bytes() == b"the one before"
    assert sorted(os.listdir(tmp_path)) == ["ffmpeg", "x.mp4"]


def test_missing_directory_and_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotSaveError, match=r"nowhere/x\.mp4"):
        write(tmp_path / "nowhere" / "x.mp4", [frame(0)])
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(CannotSaveError, match=r"folder\.mp4 could not be written: .*Is a directory"):
        write(tmp_path / "folder.mp4", [frame(0)])
    assert os.listdir(tmp_path) == ["folder.mp4"]
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"; run: .*pip install .*\[video\]"):
        find_ffmpeg()


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)])
def test_grey_and_transparent_pictures_become_colored_ones(shape: tuple[int, ...]) -> None:
    assert rgb_frame(np.full(shape, 7, np.uint8)).tolist() == [[[7, 7, 7]] * 6] * 4


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (None, "returned None"),
        ("a text", "returned a str"),
        (np.zeros((4, 6, 3)), "dtype float64"),
        (np.zeros((4, 6, 2), np.uint8), r"shape \(4, 6, 2\)"),
        (np.zeros((0, 6, 3), np.uint8), r"shape \(0, 6, 3\)"),
        ([np.zeros((4, 6, 3), np.uint8)], "returned a list"),
    ],
)
def test_invalid_pictures_are_refused(image: object, text: str) -> None:
    with pytest.raises(EnvError, match=text):
        rgb_frame(image)
