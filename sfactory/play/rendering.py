"""Room: where a play can be seen. In: an env factory; the env after each reset and step. Out: a window, or frames."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from sfactory.clock import now
from sfactory.env.lifecycle import close_env
from sfactory.errors import EnvError, named
from sfactory.play.video import VideoFile, rgb_frame

if TYPE_CHECKING:
    import gymnasium

    from sfactory.env.multi_agent import AgentsEnv

    Env = gymnasium.Env[Any, Any]
AnyEnv: TypeAlias = "Env | AgentsEnv"

_USUAL_FPS = 30.0
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
# Called without arguments, or with the render mode that the env is to have.
Factory = Callable[..., AnyEnv]


class Screen(Protocol):
    """What is shown an env after each of its resets and steps."""

    def show(self, env: AnyEnv) -> None:
        """``env`` has moved on. Raises EnvError if it cannot be drawn."""


class NoScreen:
    """A play that nobody sees."""

    def show(self, env: AnyEnv) -> None:
        """Nothing happens."""


class Window:
    """A window that the env draws by itself; ``show`` waits so that it is not drawn faster than ``fps`` a second."""

    def __init__(self, fps: float) -> None:
        self._period = 1.0 / fps
        self._due = now()

    def show(self, env: AnyEnv) -> None:
        """Wait until the frame that the env has just drawn was seen for its time."""
        self._due += self._period
        ahead = self._due - now()
        if ahead > 0:
            time.sleep(ahead)
        else:
            # What came late is not caught up with: that would be a fast-forward.
            self._due -= ahead


class VideoScreen:
    """Frames of the env in a video file, the first ``most_frames`` of them."""

    def __init__(self, video: VideoFile, most_frames: int, name: str) -> None:
        """``name``: what errors call the env."""
        self._video, self._most_frames, self._name = video, most_frames, name

    def show(self, env: AnyEnv) -> None:
        """Append what ``env.render()`` gives."""
        if self._video.frames >= self._most_frames:
            return
        try:
            image = env.render()
        # Foreign code may raise anything.
        except Exception as error:
            raise EnvError(
                f"{self._name}: cannot be drawn for a video: render() raised {named(error)}; mend that, or leave out "
                "--save_video"
            ) from error
        try:
            self._video.write(rgb_frame(image))
        except EnvError as error:
            raise EnvError(f"{self._name}: {error}") from None


def has_display(environ: Mapping[str, str]) -> bool:
    """Whether a window could be opened, going by the environment variables that say where."""
    return any(environ.get(name) for name in _DISPLAYS)


def frames_per_second(env: AnyEnv, wanted: float) -> float:
    """``wanted``, or if that is 0 what the env's metadata say, or else 30."""
    if wanted > 0:
        return wanted
    own = env.metadata.get("render_fps")
    told = float(own) if isinstance(own, numbers.Real) else 0.0
    return told if told > 0 else _USUAL_FPS


def env_with_window(factory: Factory, wanted_fps: float, name: str) -> tuple[AnyEnv, Window]:
    """An env that draws itself in a window, or whose frames are put into one.

    Raises EnvError if it can do neither, or if no window can be opened, which one reset tries out.
    """
    import gymnasium

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
        # It is Gymnasium's custom that envs with a window wait by themselves, and this is what they go by.
        env.unwrapped.metadata = {**env.unwrapped.metadata, "render_fps": fps}
    elif "human" not in modes:
        close_env(env, name)
        raise EnvError(
            f"{name}: an env of many agents has no window but its own, and this one opens none; play it into a file "
            "with --save_video=True, or unseen with --render=none"
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
            "or into a file with --save_video=True"
        ) from error
    return env, Window(fps)
