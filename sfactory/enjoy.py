"""Plays episodes with a saved policy: ``python -m sfactory.enjoy --experiment=NAME [flags]``.

stdout carries one JSON line; progress, warnings and what the env prints go to stderr.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfactory.clock import Every
from sfactory.config.enjoy import EnjoyConfig, read_enjoy_line
from sfactory.config.env_names import env_name_of
from sfactory.process.command import Command, importing_torch, return_text
from sfactory.process.signals import Interrupted, Interrupts

if TYPE_CHECKING:
    from sfactory.experiment.saved_policy import SavedPolicy
    from sfactory.play.player import Episode, Player

_PROGRESS_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Play as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-enjoy") as command:
        config = read_enjoy_line(arguments)
        command.print_result(lambda: _enjoy(config, command.interrupts))
        if command.interrupts.count:
            command.exit_code = command.interrupts.exit_code
    return command.exit_code


def _enjoy(config: EnjoyConfig, interrupts: Interrupts) -> str:
    """Play as ``config`` says, and close the env; returns the line for stdout."""
    # Imported only now, so that a mistyped flag is reported at once.
    with importing_torch(f"playing {config.source}"):
        from sfactory.exporting.exported_policy import policy_to_play
        from sfactory.play.play_session import play_session
        from sfactory.play.player import result_line

    saved = policy_to_play(config)
    seed = secrets.randbits(31) if config.seed is None else config.seed
    with play_session(config, saved, seed) as (player, video):
        episodes = _play(player, config, saved, seed, interrupts)
    played = {
        "env": env_name_of(config.env or saved.config.run.env),
        "policy": config.policy_index if config.experiment else None,
        "checkpoint": str(saved.checkpoint),
        "checkpoint_env_steps": saved.state.env_steps,
        "deterministic": config.eval_deterministic,
        "seed": seed,
    }
    if video is None or not video.frames:
        return result_line(played, episodes, None)
    print(f"{video.frames} frames are in {video.path}", file=sys.stderr, flush=True)
    return result_line(played, episodes, video.path)


def _play(player: Player, config: EnjoyConfig, saved: SavedPolicy, seed: int, interrupts: Interrupts) -> list[Episode]:
    """Play to the limits or until a signal comes; returns the finished episodes.

    Afterwards the first signal is only counted, so that the video is finished, and the second one raises.
    """
    episodes: list[Episode] = []
    due = Every(_PROGRESS_S)
    max_steps = config.max_num_frames // saved.config.frames_per_step
    with contextlib.suppress(Interrupted):
        try:
            for episode in player.episodes(config.max_num_episodes, max_steps, seed=seed):
                episodes.append(episode)
                if due.due() or len(episodes) == config.max_num_episodes:
                    _report(episodes, config.max_num_episodes)
        finally:
            # Inside the block that suppresses Interrupted: after it, a first signal could still raise.
            interrupts.raising, interrupts.raising_again = False, True
    if len(episodes) < config.max_num_episodes:
        print(f"stopped after {len(episodes)} of {config.max_num_episodes} whole episodes", file=sys.stderr, flush=True)
    return episodes


def _report(episodes: Sequence[Episode], wanted: int) -> None:
    mean = sum(episode.episode_return for episode in episodes) / len(episodes)
    last = episodes[-1]
    print(
        f"{len(episodes)} of {wanted} episodes, mean return {return_text(mean)}; the last one: return "
        f"{return_text(last.episode_return)} in {last.length} steps",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
