"""The command line of ``sfactory.enjoy``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sfactory.config.commands import Clash, Command, PolicyFlags
from sfactory.config.field import flag

_VIDEO_SUFFIX = ".mp4"
_VIDEO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class EnjoyConfig(PolicyFlags):
    """Which run to play, how, and for how long."""

    max_num_episodes: int = flag(20, "whole episodes to play", ge=1)
    max_num_frames: int = flag(
        1_000_000_000,
        "stop after this many frames (env steps x env_frameskip x action_repeat); an episode cut off does not count",
        ge=1,
    )
    eval_deterministic: bool = flag(False, "True takes the most probable action; False samples as training does")
    seed: int | None = flag(None, "seed of environment and actions; drawn at random and reported if not given", ge=0)
    eval_env_frameskip: int | None = flag(
        None,
        "make the environment with this env_frameskip, a divisor of the run's, and repeat each action accordingly, "
        "which shows the frames in between; for environments that take env_frameskip and observe one frame",
        ge=1,
    )
    render: Literal["auto", "window", "none"] = flag(
        "auto",
        "window shows the play; none shows nothing; auto opens a window if there is a display, stderr is a terminal, "
        "no video is made, and the environment can draw one",
    )
    no_render: bool = flag(False, "the same as render=none")
    save_video: bool = flag(False, "record the play, as an mp4 in the run's folder; needs no display")
    video_name: str = flag("replay.mp4", "file name of the video, with or without .mp4")
    video_frames: int = flag(1_000_000_000, "the video ends after this many frames, while the play continues", ge=1)
    fps: float = flag(
        0.0, "frames per second of window or video; 0: the env's own (metadata['render_fps']), or 30", ge=0, le=1000
    )

    @property
    def video_file(self) -> str:
        """File name of the video, with its ending."""
        return self.video_name if self.video_name.endswith(_VIDEO_SUFFIX) else self.video_name + _VIDEO_SUFFIX


def _clashes(config: EnjoyConfig) -> Iterator[Clash]:
    if config.render == "window" and config.no_render:
        yield "render", "contradicts --no_render=True; leave out one of them", ("no_render",)
    if config.render == "window" and config.save_video:
        text = "an environment draws into a window or for --save_video=True, not both; leave out one of them"
        yield "render", text, ("save_video",)
    if not _VIDEO_NAME.fullmatch(config.video_name):
        text = (
            "must be a plain file name of letters, digits, '.', '_' or '-' that begins with a letter or digit; "
            "the video is put into the run's folder"
        )
        yield "video_name", text, ()
    for name in ("video_name", "video_frames"):
        if not config.save_video and getattr(config, name) != enjoy_flags[name].default:
            yield name, "needs --save_video=True", ("save_video",)


_COMMAND = Command(
    EnjoyConfig,
    "enjoy",
    "Plays whole episodes with a checkpoint of a run. Environment and network are those of the run.",
    _clashes,
)
enjoy_flags, read_enjoy_line = _COMMAND.flags, _COMMAND.read
