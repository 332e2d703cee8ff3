"""Room: a video file. In: frames. Out: an mp4 with H.264, which browsers and players open without further ado.

Frames go through a pipe to ffmpeg, the static one that the package imageio-ffmpeg brings. See NOTE [Whole videos].
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sfactory import atomic
from sfactory.errors import CannotSaveError, EnvError, ResourceError

Frame = npt.NDArray[np.uint8]

# Long enough for the second pass over a file of many gigabytes on a slow disk.
_PATIENCE_S = 300.0
_DEATH_S = 10.0


def find_ffmpeg() -> str:
    """Path of the ffmpeg to use; IMAGEIO_FFMPEG_EXE, if set, names another. Raises ResourceError if there is none."""
    try:
        package = importlib.import_module("imageio_ffmpeg")
    except ImportError as error:
        raise ResourceError(
            "--save_video=True: the package imageio-ffmpeg, which writes videos, is not installed; "
            "run: pip install -e '.[video]' in the folder of sfactory"
        ) from error
    try:
        return str(package.get_ffmpeg_exe())
    except RuntimeError as error:
        raise ResourceError(
            f"--save_video=True: imageio-ffmpeg has no ffmpeg for this machine ({error}); install ffmpeg"
        ) from error


class VideoFile:
    """An mp4 at ``path``, complete when the ``with`` block ends; a block that raises leaves what was there before.

    NOTE [Whole videos]: ffmpeg writes to a temporary file, which is renamed once ffmpeg has said that all is well,
    so ``path`` never holds half a video. ffmpeg sits in a session of its own, since Ctrl-C must not end it before
    the last frame is in. A signal may cut off the writing of a frame: ffmpeg drops the incomplete frame at the end.
    An ffmpeg that is stuck, and one whose video is thrown away, is killed.
    """

    def __init__(self, path: Path, fps: float, ffmpeg: str, patience_s: float = _PATIENCE_S) -> None:
        """``fps``: frames per second. ``ffmpeg``: as of ``find_ffmpeg``. Nothing happens before the first frame.

        patience_s: how long ffmpeg may read nothing, or take to end after the last frame, before it counts as stuck.
        """
        self.path = path
        self.frames = 0
        self._fps, self._ffmpeg, self._patience_s = fps, ffmpeg, patience_s
        self._shape: tuple[int, ...] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> VideoFile:
        return self

    def write(self, frame: Frame) -> None:
        """Append a frame: [H, W, 3] uint8, H and W as those of the first one. An odd size gets a black edge.

        Raises EnvError for a frame of another size, CannotSaveError if ffmpeg gives up or is stuck.
        """
        if self._shape is None:
            self._start(frame.shape)
        elif frame.shape != self._shape:
            raise EnvError(
                f"frame {self.frames + 1} is {_size(frame.shape)} pixels where those before were {_size(self._shape)}: "
                "a video has one size; correct the env's render(), or end before it with --video_frames="
                f"{self.frames}"
            )
        try:
            self._send(np.ascontiguousarray(frame).reshape(-1).data)
        except OSError as error:
            raise self._failure() from error
        self.frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the file, or throw it away if the block raised. Raises CannotSaveError if ffmpeg fails or is stuck."""
        if error is not None:
            # The temporary file is removed, since the stack sees the error.
            self._stack.__exit__(kind, error, traceback)
            return
        with self._stack:
            if self._process is not None and self._end() != 0:
                raise self._failure()

    def _start(self, shape: tuple[int, ...]) -> None:
        try:
            file = self._stack.enter_context(atomic.replacing(self.path))
            self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - the stack closes it
            self._stack.callback(self._messages.close)
            self._process = subprocess.Popen(
                self._command(shape, file.fileno()),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
                pass_fds=(file.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise CannotSaveError(
                f"video {self.path} cannot be begun: {error}; check the free space and permissions"
            ) from error
        self._stack.callback(_kill, self._process)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._shape = shape

    def _send(self, rest: memoryview) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        pipe = select.poll()
        pipe.register(self._process.stdin, select.POLLOUT)
        while rest:
            if not pipe.poll(1000 * self._patience_s):
                raise self._incomplete(f"took nothing of frame {self.frames + 1} for {self._patience_s:g} s")
            rest = rest[self._process.stdin.write(rest) or 0 :]

    def _command(self, shape: tuple[int, ...], fd: int) -> list[str]:
        """ffmpeg, from raw frames on its stdin to an mp4 in the open file ``fd``."""
        options: dict[str, Any] = {
            "f": "rawvideo",
            "pixel_format": "rgb24",
            "video_size": f"{shape[1]}x{shape[0]}",
            "framerate": self._fps,
            "i": "pipe:0",
            # yuv420p alone plays everywhere, and needs even sizes.
            "vf": "pad=ceil(iw/2)*2:ceil(ih/2)*2",
            "c:v": "libx264",
            "pix_fmt": "yuv420p",
            "crf": 18,
            "preset": "veryfast",
            "movflags": "+faststart",
        }
        words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
        return [self._ffmpeg, "-loglevel", "error", "-y", *words, "-f", "mp4", f"/proc/self/fd/{fd}"]

    def _end(self) -> int:
        """Tell ffmpeg that there are no more frames and wait for it; its exit status."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            raise self._incomplete(f"had not ended {self._patience_s:g} s after the last frame") from None

    def _failure(self) -> CannotSaveError:
        """ffmpeg gave up."""
        status = self._end()
        return CannotSaveError(
            f"video {self.path} could not be written: {self._ffmpeg} ended with status {status}: "
            f"{self._last_words()}; check the free space of its directory"
        )

    def _incomplete(self, problem: str) -> CannotSaveError:
        """ffmpeg is stuck."""
        return CannotSaveError(
            f"video {self.path} is incomplete and thrown away: {self._ffmpeg} {problem} and is killed: "
            f"{self._last_words()}; see whether its directory can be written to, and try again"
        )

    def _last_words(self) -> str:
        assert self._messages is not None
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else "it said nothing"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End ffmpeg, and what it may have started, unless it has ended by itself."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        # One that hangs in the kernel, on a disk that does not answer, goes when that lets it go.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DEATH_S)


def rgb_frame(image: object) -> Frame:
    """What an env's render() gave as [H, W, 3] uint8; grey and with an alpha channel are taken, too.

    Raises EnvError if it is no image.
    """
    if image is None:
        raise EnvError(
            'render() returned None: the env draws nothing with render_mode="rgb_array"; its factory must take '
            "render_mode and hand it on"
        )
    frame = np.asarray(image)
    if frame.ndim == 2:
        frame = frame[:, :, None]
    channels = frame.shape[2] if frame.ndim == 3 else 0
    if frame.dtype != np.uint8 or channels not in (1, 3, 4) or frame.size == 0:
        raise EnvError(
            f"render() returned a {type(image).__name__} of shape {np.shape(frame)} and dtype {frame.dtype}; "
            'render_mode="rgb_array" wants an array [height, width, 3] of uint8'
        )
    return np.repeat(frame, 3, axis=2) if channels == 1 else frame[:, :, :3]


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[0]}"
