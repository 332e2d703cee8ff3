"""Shows an env while it is played: in a window, or as the frames of a video."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium

from sfactory.clock import now
from sfactory.env.drawing import picture_of
from sfactory.env.lifecycle import close_env
from sfactory.env.multi_agent import AgentsEnv
from sfactory.errors import EnvError, named
from sfactory.play.video import VideoFile

AnyEnv: TypeAlias = gymnasium.Env[Any, Any] | AgentsEnv

SAVE_VIDEO = "--save_video"
_DEFAULT_FPS = 30.0

# Called after each reset and step of an env. Raises EnvError if the env cannot be drawn.
Show = Callable[[AnyEnv], None]


def show_nothing(env: AnyEnv) -> None:
    """Show nothing."""


class Window:
    """A window that the env draws by itself; ``show`` waits so that at most ``fps`` frames are drawn per second."""

    def __init__(self, fps: float) -> None:
        self._period = 1.0 / fps
        self._due = now()

    def show(self, env: AnyEnv) -> None:
        """Wait until the last frame has been visible for its time."""
        self._due = max(self._due + self._period, now())  # a late frame does not make the next ones faster
        time.sleep(max(0.0, self._due - now()))


class VideoScreen:
    """Writes the first ``most_frames`` frames of the env to a video file."""

    def __init__(self, video: VideoFile, most_frames: int, name: str, flag: str = SAVE_VIDEO) -> None:
        """``name``: what errors call the env. ``flag``: what has asked for the video."""
        self._video, self._most_frames, self._name, self._flag = video, most_frames, name, flag

    def show(self, env: AnyEnv) -> None:
        """Append the image that ``env.render()`` returns."""
        if self._video.frames >= self._most_frames:
            return
        picture = picture_of(env, self._name, self._flag)
        try:
            self._video.write(picture)
        except EnvError as error:
            instead = f"leave out {self._flag}"
            if self._flag == SAVE_VIDEO:
                instead = f"end before it with --video_frames={self._video.frames}"
            raise EnvError(f"{self._name}: {error}, or {instead}") from None


def frames_per_second(env: AnyEnv, wanted: float) -> float:
    """``wanted``, or if that is 0 the value in the env's metadata, or else 30."""
    own = env.metadata.get("render_fps")
    candidates = (wanted, float(own) if isinstance(own, numbers.Real) else 0.0, _DEFAULT_FPS)
    return next(fps for fps in candidates if fps > 0)


def env_with_window(factory: Callable[..., AnyEnv], wanted_fps: float, name: str) -> tuple[AnyEnv, Show]:
    """An env that draws itself in a window, or an env of one agent with a window around its frames.

    Raises EnvError if neither is possible, or if no window can be opened, which one reset tests.
    """
    plain = factory()
    modes = tuple(plain.metadata.get("render_modes") or ())
    close_env(plain, name)
    if not {"human", "rgb_array"}.intersection(modes):
        raise EnvError(
            f'{name}: the env draws nothing (metadata["render_modes"] is {list(modes)}); play it with --render=none'
        )
    env = factory("human" if "human" in modes else "rgb_array")
    fps = frames_per_second(env, wanted_fps)
    if isinstance(env, gymnasium.Env):
        # Gymnasium's envs with a window wait by themselves, by this number.
        env.unwrapped.metadata = {**env.unwrapped.metadata, "render_fps": fps}
    elif "human" not in modes:
        close_env(env, name)
        raise EnvError(
            f"{name}: an env of several agents has to open its own window, and this one does not; record a file "
            "with --save_video=True, or play without a picture with --render=none"
        )
    try:
        if isinstance(env, gymnasium.Env) and "human" not in modes:
            from gymnasium.wrappers import HumanRendering

            env = HumanRendering(env)
        env.reset()
    # Foreign code may raise anything.
    except Exception as error:
        close_env(env, name)
        raise EnvError(
            f"{name}: its window cannot be opened: {named(error)}; play it with --render=none, "
            "or record a file with --save_video=True"
        ) from error
    return env, Window(fps).show
