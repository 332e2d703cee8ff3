"""Front door: ``python -m sfactory.enjoy --experiment=NAME [flags]``. In: a saved run. Out: a JSON line, an exit code.

stdout carries the result alone; progress, warnings and whatever the env prints go to stderr.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfactory.clock import Every
from sfactory.config.enjoy import EnjoyConfig, read_enjoy_line
from sfactory.errors import ConfigError, ExitCode, SFactoryError, named
from sfactory.run.signals import Interrupted, Interrupts
from sfactory.run.stdout import stdout_to_stderr

if TYPE_CHECKING:
    from sfactory.run.evaluation import Episode, Player
    from sfactory.run.saved_policy import SavedPolicy

_PROG = "sfactory.enjoy"
_PROGRESS_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Play as ``argv`` (default: the command line) says; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    Path("/proc/self/comm").write_text("sf-enjoy")
    with Interrupts() as interrupts:
        try:
            return _run(read_enjoy_line(arguments, prog=_PROG), interrupts)
        except Interrupted:
            interrupts.raising = interrupts.raising_again = False
            print("interrupted before there was a result", file=sys.stderr, flush=True)
            return interrupts.exit_code
        except ConfigError as error:
            return _refuse(error.problems, error.exit_code)
        except SFactoryError as error:
            if error.exit_code is ExitCode.FAULTS and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)  # whatever the env raised
            return _refuse([str(error)], error.exit_code)
        except Exception as error:  # a defect: shown whole, and ended as every other fault is
            traceback.print_exc()
            return _refuse([named(error)], ExitCode.FAULTS)


def _refuse(problems: Sequence[str], code: ExitCode) -> int:
    """Say why there is no result."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr, flush=True)
    return int(code)


def _run(config: EnjoyConfig, interrupts: Interrupts) -> int:
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(levelname)s: %(message)s", datefmt="%H:%M:%S")
    try:
        with stdout_to_stderr():  # modules print when they are imported, envs whenever they like
            result = _result(config, interrupts)
    except SystemExit as error:  # foreign code may call sys.exit; that must not look like a play that ended well
        raise SFactoryError(f"the env, or a library that it uses, raised {named(error)}: there is no result") from error
    print(result, flush=True)
    return interrupts.exit_code if interrupts.count else int(ExitCode.DONE)


def _result(config: EnjoyConfig, interrupts: Interrupts) -> str:
    """Play as ``config`` says; the line for stdout. The env is gone when it is there."""
    # Imported only now, so that a mistyped flag is answered at once.
    from sfactory.run.evaluation import Evaluation, Played, result_line
    from sfactory.run.saved_policy import Choice, SavedPolicy
    from sfactory.run.stage import staged

    choice = Choice(config.load_checkpoint_kind, config.policy_index, config.checkpoint_env_steps)
    saved = SavedPolicy.load(config.train_dir, config.experiment, choice)
    seed = secrets.randbits(31) if config.seed is None else config.seed
    with staged(config, saved) as stage:
        episodes = _play(stage.player, config, saved, seed, interrupts)
    played = Played(
        env=saved.config.run.env,
        policy=config.policy_index,
        checkpoint=str(saved.checkpoint),
        checkpoint_env_steps=saved.env_steps,
        deterministic=config.eval_deterministic,
        seed=seed,
    )
    if stage.video_path is not None and stage.video is not None:
        print(f"{stage.video.frames} frames are in {stage.video_path}", file=sys.stderr, flush=True)
    return result_line(played, Evaluation.of(episodes), stage.video_path)


def _play(player: Player, config: EnjoyConfig, saved: SavedPolicy, seed: int, interrupts: Interrupts) -> list[Episode]:
    """Play to the limits, or until a signal comes; the episodes finished by then.

    Afterwards the first signal is only counted, and the second one raises: a video is finished in spite of the first.
    """
    episodes: list[Episode] = []
    due = Every(_PROGRESS_S)
    max_steps = config.max_num_frames // saved.config.sampling.env_frameskip
    with contextlib.suppress(Interrupted):
        try:
            for episode in player.episodes(config.max_num_episodes, max_steps, seed):
                episodes.append(episode)
                if due.due() or len(episodes) == config.max_num_episodes:
                    _report(episodes, config.max_num_episodes)
        finally:
            # Here, where Interrupted is suppressed: outside there would be a moment in which the first one raises.
            interrupts.raising, interrupts.raising_again = False, True
    if len(episodes) < config.max_num_episodes:
        print(f"stopped after {len(episodes)} whole episodes", file=sys.stderr, flush=True)
    return episodes


def _report(episodes: Sequence[Episode], wanted: int) -> None:
    mean = sum(episode.episode_return for episode in episodes) / len(episodes)
    last = episodes[-1]
    print(
        f"{len(episodes)} of {wanted} episodes, mean return {mean:.3f}; the last one: return "
        f"{last.episode_return:.3f} in {last.length} steps",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
