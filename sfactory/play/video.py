"""Writes frames to an mp4 file with H.264, which browsers and players open directly.

Frames go through a pipe to the static ffmpeg of the package imageio-ffmpeg. Its own writer is not used: it waits for
ever for an ffmpeg that is stuck, does not report how ffmpeg ended, and drops the whole video at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from sfactory import atomic
from sfactory.env.drawing import Frame
from sfactory.errors import CannotSaveError, EnvError
from sfactory.system.operating_system import NAME, POSIX

# Long enough for the second pass over a file of many gigabytes on a slow disk.
_PATIENCE_S = 300.0
_KILL_S = 10.0
# The only pixel format that plays everywhere is yuv420p, which needs even sizes.
_EVEN = "pad=ceil(iw/2)*2:ceil(ih/2)*2"
_OUTPUT = "-c:v libx264 -pix_fmt yuv420p -preset veryfast -movflags +faststart -f mp4"
_LARGE = f"-vf {_EVEN} -crf 18 {_OUTPUT}"
# Beside training: on one thread, as the others have work.
_SMALL = rf"-vf scale=min(640\,iw):-2,{_EVEN} -crf 26 -threads 1 {_OUTPUT}"
_GIF = r"-vf fps=10,scale=min(240\,iw):-1 -frames:v 150 -fs 2M -threads 1 -f gif"


class VideoFile:
    """An mp4 at ``path``, complete when the ``with`` block ends; a block that raises leaves ``path`` unchanged.

    NOTE [Whole videos]: ffmpeg writes to a temporary file, which is renamed only after ffmpeg has ended without an
    error, so ``path`` never holds half a video. ffmpeg runs in its own session, so Ctrl-C does not end it before the
    last frame. A signal may interrupt the writing of a frame; ffmpeg drops an incomplete frame at the end. ffmpeg is
    killed if it is stuck, or if its video is thrown away.
    """

    def __init__(
        self, path: Path, fps: float, ffmpeg: str, patience_s: float = _PATIENCE_S, small: bool = False
    ) -> None:
        """patience_s: how long ffmpeg may read nothing, or take to end after the last frame, before it is stuck.

        small: at most 640 pixels wide; the first 15 s are a GIF beside it, too, of at most 240 pixels and 2 MB.
        """
        self.path = path
        self.frames = 0
        self._fps, self._ffmpeg, self._patience_s, self._small = fps, ffmpeg, patience_s, small
        self._shape: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> VideoFile:
        return self

    def write(self, frame: Frame) -> None:
        """Append a frame: [H, W, 3] uint8, H and W as those of the first one. An odd size gets a black edge.

        Raises EnvError for a frame of another size, CannotSaveError if ffmpeg gives up or is stuck.
        """
        process = self._process or self._start(frame.shape)
        if frame.shape != self._shape:
            sizes = [f"{shape[1]} x {shape[0]}" for shape in (frame.shape, self._shape)]
            raise EnvError(
                f"frame {self.frames + 1} is {sizes[0]} pixels where those before were {sizes[1]}: a video has one "
                "size; correct the env's render()"
            )
        try:
            self._send(process, np.ascontiguousarray(frame).reshape(-1).data)
        except OSError as error:
            raise self._failed(self._end(process)) from error
        self.frames += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish the file, or throw it away if the block raised. Raises CannotSaveError if it fails."""
        if error is not None:
            # The stack sees the error, and so the temporary file is removed.
            self._stack.__exit__(kind, error, traceback)
            return
        try:
            with self._stack:
                if self._process is not None and (status := self._end(self._process)) != 0:
                    raise self._failed(status)
        except OSError as cause:
            problem = f"video {self.path} could not be written: {cause}; check its directory and the free space"
            raise CannotSaveError(problem) from cause

    def _start(self, shape: tuple[int, ...]) -> subprocess.Popen[bytes]:
        """Start ffmpeg, from raw frames on its stdin to temporary files."""
        if not POSIX:
            raise CannotSaveError(f"video {self.path}: videos are written on Linux and macOS, and this is {NAME}")
        height, width = shape[:2]
        raw = f"-f rawvideo -pixel_format rgb24 -video_size {width}x{height} -framerate {self._fps} -i pipe:0"
        try:
            outputs = {self.path: _SMALL, self.path.with_suffix(".gif"): _GIF} if self._small else {self.path: _LARGE}
            files = [self._stack.enter_context(atomic.replacing(path)).fileno() for path in outputs]
            self._messages = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            words = [f"{options} /dev/fd/{file}" for file, options in zip(files, outputs.values(), strict=True)]
            process = subprocess.Popen(
                [self._ffmpeg, "-loglevel", "error", "-y", *raw.split(), *" ".join(words).split()],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
                pass_fds=files,
                start_new_session=True,
            )
        except OSError as error:
            problem = f"video {self.path} cannot be started: {error}; check the free space and permissions"
            raise CannotSaveError(problem) from error
        self._stack.callback(_kill, process)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._process, self._shape = process, shape
        return process

    def _send(self, process: subprocess.Popen[bytes], rest: memoryview) -> None:
        assert process.stdin is not None
        pipe = select.poll()
        pipe.register(process.stdin, select.POLLOUT)
        while rest:
            if not pipe.poll(1000 * self._patience_s):
                raise self._stuck(f"took nothing of frame {self.frames + 1} for {self._patience_s:g} s")
            rest = rest[process.stdin.write(rest) or 0 :]

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Close ffmpeg's stdin and wait for ffmpeg; returns its exit status."""
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            return process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            raise self._stuck(f"had not ended {self._patience_s:g} s after the last frame") from None

    def _failed(self, status: int) -> CannotSaveError:
        return CannotSaveError(
            f"video {self.path} could not be written: {self._ffmpeg} ended with status {status}: "
            f"{self._last_message()}; check the free space of its directory"
        )

    def _stuck(self, problem: str) -> CannotSaveError:
        return CannotSaveError(
            f"video {self.path} is incomplete and thrown away: {self._ffmpeg} {problem} and is killed: "
            f"{self._last_message()}; see whether its directory can be written to, and try again"
        )

    def _last_message(self) -> str:
        assert self._messages is not None
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote no message"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End ffmpeg and its children, unless it has ended."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        # If it hangs in the kernel, on a disk that does not answer, it ends only when the disk answers.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_S)
