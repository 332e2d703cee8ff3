"""Records episodes of evaluations beside training, as videos/eval_<env steps>.mp4, and a GIF of its beginning."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path

from sfactory import atomic
from sfactory.clock import Deadline
from sfactory.env.drawing import EVAL_VIDEO
from sfactory.errors import CannotSaveError, EnvError
from sfactory.play.rendering import AnyEnv, VideoScreen, frames_per_second
from sfactory.play.video import VideoFile
from sfactory.system.optional_packages import find_ffmpeg

_MOST_FRAMES = 1500
_LONGEST_S = 60.0  # from the first frame, after which an env that draws slowly is drawn no more
_GROWTH = 1.1  # of env steps, from one video to the next
_PATIENCE_S = 60.0  # with ffmpeg, which has a core only where training leaves one

_log = logging.getLogger(__name__)


class EvaluationVideos:
    """Records what is shown to it, where a video is due. The first failure is logged, and ends recording alone."""

    def __init__(self, folder: Path, name: str) -> None:
        """name: of the env, for errors. Raises ConfigError and ResourceError as ``find_ffmpeg``."""
        self._folder, self._name = folder, name
        self._ffmpeg = find_ffmpeg(EVAL_VIDEO)
        self._due_at = 0.0  # env steps
        self._screen: VideoScreen | None = None
        self._deadline = Deadline(0.0)
        self._error: EnvError | CannotSaveError | None = None
        with contextlib.suppress(OSError):  # what is lost is logged where it is written
            folder.mkdir(exist_ok=True)
            atomic.remove_stale(folder)

    @contextlib.contextmanager
    def recording(self, env: AnyEnv, env_steps: int) -> Iterator[None]:
        """Record the block, of the policy after ``env_steps``, if a video is due. A block that raises leaves none."""
        if env_steps < self._due_at:
            yield
            return
        path, fps, is_over = self._folder / f"eval_{env_steps:012d}.mp4", frames_per_second(env, 0.0), False
        try:
            with VideoFile(path, fps, self._ffmpeg, _PATIENCE_S, small=True) as video:
                self._screen = VideoScreen(video, _MOST_FRAMES, self._name, EVAL_VIDEO)
                self._deadline = Deadline(_LONGEST_S)
                yield
                is_over = True
                if self._error is not None:
                    raise self._error
            self._due_at = _GROWTH * max(1, env_steps)
        except (EnvError, CannotSaveError) as error:
            if not is_over:
                raise
            self._due_at = math.inf
            _log.warning("no more videos of evaluations are made: %s; evaluations and training continue", error)
        finally:
            self._screen = None

    def show(self, env: AnyEnv) -> None:
        """Draw ``env`` into the video that is recorded, if there is one."""
        if self._screen is None or self._error is not None or self._deadline.passed:
            return
        try:
            self._screen.show(env)
        except (EnvError, CannotSaveError) as error:
            self._error = error


class VideoFolder:
    """Finds the videos that have come since it was made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = set(self._look())

    def new(self) -> list[tuple[Path, int]]:
        """Those that have come since the last call, with the env steps of their policies."""
        found = self._look()
        new, self._seen = [each for each in found if each not in self._seen], set(found)
        return [(path, int(path.stem.rpartition("_")[2])) for path, _ in new]

    def _look(self) -> list[tuple[Path, int]]:
        """Each with the time at which it was written."""
        found: list[tuple[Path, int]] = []
        for path in sorted(self._folder.glob("eval_*.mp4")):
            with contextlib.suppress(OSError):  # a user may remove it
                found += [(path, path.stat().st_mtime_ns)] if path.stem.removeprefix("eval_").isdecimal() else []
        return found
