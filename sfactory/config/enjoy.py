"""The command line of ``sfactory.enjoy``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sfactory.config.commands import Clash, Command, PolicyFlags, repository_problem
from sfactory.config.field import flag

_VIDEO_SUFFIX = ".mp4"
_VIDEO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class EnjoyConfig(PolicyFlags):
    """Which policy to play, how, and for how long."""

    policy_file: str = flag("", "safetensors file of sfactory.export to play, in place of a run", path=True)
    load_from_hub: str = flag("", "repository of the Hugging Face Hub, USER/NAME, to play, in place of a run")
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
    save_video: bool = flag(
        False, "record the play, as an mp4 in the run's folder, or without a run in the current one; needs no display"
    )
    video_name: str = flag("replay.mp4", "file name of the video, with or without .mp4")
    video_frames: int = flag(1_000_000_000, "the video ends after this many frames, while the play continues", ge=1)
    fps: float = flag(
        0.0, "frames per second of window or video; 0: the env's own (metadata['render_fps']), or 30", ge=0, le=1000
    )

    @property
    def source(self) -> str:
        """What is played, in a word."""
        return self.experiment or self.policy_file or self.load_from_hub

    @property
    def video_file(self) -> str:
        """File name of the video, with its ending."""
        return self.video_name if self.video_name.endswith(_VIDEO_SUFFIX) else self.video_name + _VIDEO_SUFFIX


def _clashes(config: EnjoyConfig) -> Iterator[Clash]:
    sources = [name for name in ("policy_file", "load_from_hub", "experiment") if getattr(config, name)]
    for name in sources[1:]:
        yield sources[0], f"there is --{name}, too, and one policy is played; leave out one of them", (name,)
    for name in ("load_checkpoint_kind", "checkpoint_env_steps", "policy_index"):
        if not config.experiment and sources and getattr(config, name) != enjoy_flags[name].default:
            yield name, f"--{sources[0]} holds one policy; leave this out", (sources[0],)
    if text := repository_problem(config.load_from_hub):
        yield "load_from_hub", text, ()
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
    "Plays whole episodes with a checkpoint of a run. Environment and network are those of the run. In place of "
    "--experiment, --policy_file or --load_from_hub names an exported policy.",
    _clashes,
)
enjoy_flags, read_enjoy_line = _COMMAND.flags, _COMMAND.read
