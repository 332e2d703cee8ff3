"""A video holds the frames that were written, in a file that is whole or absent, and refuses what is no picture."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sfactory.errors import CannotSaveError, EnvError, ResourceError
from sfactory.play.video import VideoFile, find_ffmpeg, rgb_frame
from tests.support.decoder import decode


def frame(brightness: int, height: int = 32, width: int = 48) -> npt.NDArray[np.uint8]:
    return np.full((height, width, 3), brightness, np.uint8)


def write(path: Path, frames: list[npt.NDArray[np.uint8]], fps: float = 25.0) -> None:
    with VideoFile(path, fps, find_ffmpeg()) as video:
        for one in frames:
            video.write(one)


def test_every_frame_is_in_the_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"

    write(path, [frame(40 * number) for number in range(6)], fps=12.5)

    decoded = decode(path)
    assert decoded.pictures.shape == (6, 32, 48, 3)
    assert decoded.fps == 12.5
    np.testing.assert_allclose(decoded.pictures.mean(axis=(1, 2, 3)), [0, 40, 80, 120, 160, 200], atol=4)


def test_colors_are_red_green_and_blue(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    red = frame(0)
    red[:, :, 0] = 200

    write(path, [red] * 3)

    blue, green, red_again = decode(path).pictures.mean(axis=(0, 1, 2))
    assert red_again > 180
    assert max(blue, green) < 20


@pytest.mark.parametrize(("height", "width"), [(33, 47), (1, 1), (32, 47)])
def test_an_odd_size_gets_a_black_edge(tmp_path: Path, height: int, width: int) -> None:
    path = tmp_path / "x.mp4"

    write(path, [frame(100, height, width)] * 2)

    assert decode(path).pictures.shape == (2, height + height % 2, width + width % 2, 3)


def test_a_frame_that_is_no_block_of_memory_is_written_as_it_looks(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    upside_down = np.concatenate([frame(0), frame(200)])[::-1]

    write(path, [upside_down] * 2)

    picture = decode(path).pictures[0]
    assert picture[:28].mean() > 190
    assert picture[36:].mean() < 10


def test_no_frame_makes_no_file(tmp_path: Path) -> None:
    write(tmp_path / "x.mp4", [])

    assert os.listdir(tmp_path) == []


def test_a_block_that_raises_leaves_the_video_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    path.write_bytes(b"the one before")

    def fail() -> None:
        with VideoFile(path, 25.0, find_ffmpeg()) as video:
            video.write(frame(0))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()

    assert path.read_bytes() == b"the one before"
    assert os.listdir(tmp_path) == ["x.mp4"]


def test_a_frame_cut_off_at_the_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    with VideoFile(path, 25.0, find_ffmpeg()) as video:
        for _ in range(4):
            video.write(frame(50))
        assert video._process is not None
        assert video._process.stdin is not None
        video._process.stdin.write(frame(50).tobytes()[:1000])

    assert len(decode(path).pictures) == 4


def test_a_frame_of_another_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"frame 2 is 48 x 33 pixels where those before were 48 x 32"):
        write(tmp_path / "x.mp4", [frame(0), frame(0, height=33)])

    assert os.listdir(tmp_path) == []


def test_an_ffmpeg_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "ffmpeg"
    broken.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.buffer.read()\nsys.exit('no space left')\n")
    broken.chmod(0o755)

    def record() -> None:
        with VideoFile(tmp_path / "x.mp4", 25.0, str(broken)) as video:
            video.write(frame(0))

    with pytest.raises(CannotSaveError, match=r"x\.mp4 could not be written: .*status 1: no space left"):
        record()

    assert os.listdir(tmp_path) == ["ffmpeg"]


def test_an_ffmpeg_that_dies_early_ends_the_recording(tmp_path: Path) -> None:
    def record() -> None:
        with VideoFile(tmp_path / "x.mp4", 25.0, "/bin/false") as video:
            for _ in range(1000):
                video.write(frame(0, 256, 256))

    with pytest.raises(CannotSaveError, match="ended with status 1"):
        record()

    assert os.listdir(tmp_path) == []


def stuck_ffmpeg(folder: Path, deed: str) -> str:
    """A program that does ``deed``, and then neither reads nor ends, whatever it is asked to."""
    path = folder / "ffmpeg"
    path.write_text(
        f"#!{sys.executable}\nimport signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{deed}\n"
        "while True:\n    time.sleep(60)\n"
    )
    path.chmod(0o755)
    return str(path)


def test_an_ffmpeg_that_does_not_end_is_killed_and_the_video_is_called_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    path.write_bytes(b"the one before")
    stuck = stuck_ffmpeg(tmp_path, "sys.stdin.buffer.read()")
    video = VideoFile(path, 25.0, stuck, patience_s=0.5)

    def record() -> None:
        with video:
            video.write(frame(0))

    with pytest.raises(CannotSaveError, match=r"x\.mp4 is incomplete .*had not ended 0\.5 s after the last frame"):
        record()

    assert video._process is not None
    assert video._process.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"the one before"
    assert sorted(os.listdir(tmp_path)) == ["ffmpeg", "x.mp4"]


def test_an_ffmpeg_that_takes_no_more_frames_is_killed_and_the_video_is_called_incomplete(tmp_path: Path) -> None:
    video = VideoFile(tmp_path / "x.mp4", 25.0, stuck_ffmpeg(tmp_path, "pass"), patience_s=0.5)

    def record() -> None:
        with video:
            for _ in range(100):
                video.write(frame(0))

    with pytest.raises(CannotSaveError, match=r"x\.mp4 is incomplete .*took nothing of frame \d+ for 0\.5 s"):
        record()

    assert video._process is not None
    assert video._process.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["ffmpeg"]


def test_nobody_waits_for_a_video_that_is_thrown_away(tmp_path: Path) -> None:
    video = VideoFile(tmp_path / "x.mp4", 25.0, stuck_ffmpeg(tmp_path, "pass"))

    def fail() -> None:
        with video:
            video.write(frame(0))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()

    assert video._process is not None
    assert video._process.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["ffmpeg"]


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotSaveError, match=r"nowhere/x\.mp4 cannot be started"):
        write(tmp_path / "nowhere" / "x.mp4", [frame(0)])


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)

    with pytest.raises(ResourceError, match=r"pip install -e '\.\[video\]'"):
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
def test_what_is_no_picture_is_refused(image: object, text: str) -> None:
    with pytest.raises(EnvError, match=text):
        rgb_frame(image)
