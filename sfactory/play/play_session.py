"""Builds all parts of a play from enjoy's flags and a saved policy: env, player, and a window or a video."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from sfactory.config.enjoy import EnjoyConfig
from sfactory.env.drawing import draw_into_memory
from sfactory.env.factory import IMAGES, SPANS_FRAMES, EnvFactory, takes_frameskip
from sfactory.env.lifecycle import close_env
from sfactory.errors import ConfigError, EnvError
from sfactory.experiment.saved_policy import SavedPolicy
from sfactory.play.player import Player, env_seed_of
from sfactory.play.rendering import AnyEnv, Show, VideoScreen, env_with_window, frames_per_second, show_nothing
from sfactory.play.saved_policies import SavedPolicies
from sfactory.play.video import VideoFile
from sfactory.system.optional_packages import find_ffmpeg

_log = logging.getLogger(__name__)

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


@contextlib.contextmanager
def play_session(config: EnjoyConfig, saved: SavedPolicy, seed: int) -> Iterator[tuple[Player, VideoFile | None]]:
    """A player and the video of it, if one is made. A block that raises leaves no video. seed: of the play.

    Raises ConfigError, EnvError or ResourceError if this machine or env cannot do what the flags ask for.
    """
    torch.set_num_threads(1)  # a batch of one row has no use for more
    ffmpeg = find_ffmpeg() if config.save_video else None
    # Absolute, as the env may change the current directory.
    folder = Path(config.train_dir) / config.experiment if config.experiment else Path()
    video_path = (folder / config.video_file).absolute()
    factory, repeat = _with_frameskip(config, saved)
    name = f"--env={factory.name}"
    # As that of the first reset: some vector envs can only be seeded when they are made.
    make = functools.partial(factory.either, seed=env_seed_of(seed))
    with contextlib.ExitStack() as stack:
        env, show = _open_env(config, make, name)
        stack.callback(close_env, env, name)
        if repeat > 1:  # several steps of fewer frames must look to the policy like one step in training
            where = f"--eval_env_frameskip={config.eval_env_frameskip}: {name}"
            if not takes_frameskip(factory.name):
                raise ConfigError([f"{where} does not take env_frameskip; leave it out"])
            if env.metadata.get(SPANS_FRAMES):
                problem = "with another frameskip they differ from what the policy was trained on; leave it out"
                raise ConfigError([f"{where} makes each observation of several frames; {problem}"])
        video = None
        if ffmpeg is not None:
            video = stack.enter_context(VideoFile(video_path, frames_per_second(env, config.fps), ffmpeg))
            show = VideoScreen(video, config.video_frames, name).show
        spec = saved.spec_of(env, factory.name)
        policy, deterministic = SavedPolicies.of(saved).acting_model(spec), config.eval_deterministic
        yield Player(env, spec, policy, show, name=name, deterministic=deterministic, repeat=repeat), video


def _with_frameskip(config: EnjoyConfig, saved: SavedPolicy) -> tuple[EnvFactory, int]:
    """A factory of the env with the frameskip that the flags ask for, and how often each action is then repeated."""
    factory, wanted = saved.env_factory(config), config.eval_env_frameskip
    trained = saved.config.sampling.env_frameskip
    if wanted is None:
        return factory, 1
    if trained % wanted:
        raise ConfigError([f"--eval_env_frameskip={wanted}: must be a divisor of the run's env_frameskip, {trained}"])
    counting = saved.config.wrappers.used.keys() & {"sticky_actions", "max_episode_steps"}
    if counting and wanted != trained:
        problem = f"the run's --{min(counting)} is for each step, of which there would be more; leave it out"
        raise ConfigError([f"--eval_env_frameskip={wanted}: {problem}"])
    return dataclasses.replace(factory, env_frameskip=wanted), trained // wanted


def _open_env(config: EnjoyConfig, make: Callable[..., AnyEnv], name: str) -> tuple[AnyEnv, Show]:
    """The env in the render mode that the flags ask for, with its window if it has one. make: takes the render mode."""
    if config.save_video:
        draw_into_memory()
        return make(IMAGES), show_nothing
    display = any(os.environ.get(name) for name in _DISPLAYS)
    demanded = config.render == "window"
    if demanded and not display:
        problem = "--render=window: there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set); make a video "
        raise ConfigError([f"{problem}with --save_video=True, or play without a picture with --render=none"])
    if demanded or (config.render == "auto" and not config.no_render and display and sys.stderr.isatty()):
        try:
            return env_with_window(make, config.fps, name)
        except EnvError as error:
            if demanded:
                raise
            _log.info("no window: %s", error)
    elif config.render == "auto" and not config.no_render:
        why = "stderr is no terminal" if display else "there is no display"
        _log.info("no window is opened, as %s; --save_video=True records a video", why)
    return make(), show_nothing
