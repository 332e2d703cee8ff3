"""Errors of sfactory with their exit codes, and texts for exceptions of others."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from enum import IntEnum
from pathlib import Path

UNDER_MAIN_GUARD = 'put what the script does under if __name__ == "__main__":'


class ExitCode(IntEnum):
    """Exit codes of every sfactory command (a table with their meanings is in docs/usage.md)."""

    DONE = 0
    REFUSED = 2  # configuration, environment or resources refused before anything started
    FAULTS = 3  # an actor, a policy worker or an evaluator failed for good; of a launcher: not all runs are done
    LEARNER = 70  # the learner failed, or what a user had it or main call
    DIVERGED = 71
    CANNOT_SAVE = 74
    SIGINT = 130
    SIGTERM = 143


class Passing(BaseException):
    """What this program raises itself to end its work. Code that handles all that envs raise lets it pass."""


class SFactoryError(Exception):
    """Base of all errors raised on purpose. The text says what happened, where, and what to do."""

    exit_code: ExitCode = ExitCode.FAULTS

    @property
    def headline(self) -> str:
        """The one line of the text that says what happened: the first, unless a traceback comes before it."""
        lines = str(self).splitlines() or [type(self).__name__]
        return clean(lines[-1] if isinstance(self, _AFTER_A_TRACEBACK) else lines[0])


class Refused(SFactoryError):
    """The command was refused before anything started."""

    exit_code = ExitCode.REFUSED


class ConfigError(Refused):
    """The configuration was refused. ``problems`` holds one line per problem, all found at once."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        """A process may send it to another one."""
        return type(self), (self.problems,)

    @property
    def headline(self) -> str:
        """The first problem, and how many more there are."""
        others = len(self.problems) - 1
        return super().headline + (f" (and {others} more)" if others > 0 else "")


class EnvError(Refused):
    """The environment cannot be made, or does not keep to the interface, before training started."""


class ResourceError(Refused):
    """Memory, file handles, directories or devices do not suffice; nothing was started."""


class RunDirError(Refused):
    """The run directory is in use, or what it holds does not fit this run."""


class CheckpointError(Refused):
    """A checkpoint exists but none can be loaded. Nothing was deleted."""


class CannotSaveError(SFactoryError):
    """The final checkpoint could not be written."""

    exit_code = ExitCode.CANNOT_SAVE


class DivergedError(SFactoryError):
    """Loss, gradients or weights stopped being finite."""

    exit_code = ExitCode.DIVERGED


class EnvFaults(SFactoryError):
    """Envs of an actor failed or returned invalid data too often; the message names env, count and flag."""


class WorkerDied(SFactoryError):
    """A child process died or raised; the text carries its traceback or its signal."""


class ProcessesLost(WorkerDied):
    """All processes must be replaced: a ring is locked for ever, or the fork server has ended."""


class LearnerFailed(SFactoryError):
    """The learner, or what it or main calls for a user, failed."""

    exit_code = ExitCode.LEARNER


class LearnerDied(LearnerFailed):
    """The learner process died or raised; the text carries its traceback or its signal.

    was_killed: it has not said why, so that another one may fare better.
    """

    was_killed = False


class Starved(LearnerFailed):
    """A learner waits for datasets that will never be filled; the text says what each process is waiting for.

    What was learned is saved.
    """


class RankLost(LearnerFailed):
    """Another rank failed, hung, was cut off or was stopped; the text says which. What was learned is saved."""


class HookFailed(LearnerFailed):
    """A function that the learner calls after each dataset raised; its own exception is the cause."""


class ObserverFailed(LearnerFailed):
    """An observer raised or returned an invalid summary; the text has its traceback, its name and its method."""


class MessageTooLarge(SFactoryError):
    """A message that can never fit its channel: a defect in sizing, raised at once."""


class ChannelFull(SFactoryError):
    """A channel sized for the worst case was full: its reader has stopped reading."""


_AFTER_A_TRACEBACK = WorkerDied, LearnerDied, ObserverFailed
# No traceback says more than they do.
_SAY_ALL = CannotSaveError, CheckpointError, DivergedError, ResourceError, Starved, EnvFaults, RankLost


MOST_SHOWN = 4000  # characters of a foreign text
MOST_OF_REPORT = 12_000  # characters of a text of several, such as a traceback: the board of failures holds 16 KiB


def clean(text: str, most: int = MOST_SHOWN) -> str:
    """A foreign text for terminals and logs: without its middle if it has more than ``most`` characters, escaped.

    Line ends and tabs stay; other control characters could change or hide what a terminal shows.
    """
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} [{len(text) - 2 * half} characters are left out here] {text[-half:]}"
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def named(error: BaseException) -> str:
    """An exception as a piece of a sentence: its type, and what it says, if anything; clean, without a last period."""
    try:
        said = str(error)
        said = said if said.endswith("..") else said.removesuffix(".")
    except Passing:
        raise
    except BaseException:  # foreign exceptions may fail at that, too
        said = "its text cannot be read"
    return clean(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def first_line(error: BaseException) -> str:
    """The first line of what an exception of a library says, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def traceback_of(error: BaseException) -> str:
    """The traceback of ``error``, clean; if memory is exhausted, the last line says so and what to do."""
    text, said = clean("".join(map(clean, traceback.format_exception(error))), MOST_OF_REPORT), named(error)
    # torch's types are known by name, as not every process imports torch. On a CPU it raises a mere RuntimeError.
    exhausted = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if exhausted or (isinstance(error, RuntimeError) and "can't allocate memory" in said):
        text += (
            f"out of memory: {said.splitlines()[0]}; what needs less: a smaller --batch_size "
            "or --num_batches_per_epoch, a --microbatch_size (the same gradients from parts of a minibatch), "
            "--num_batches_to_accumulate=1, fewer --num_envs_per_worker; on a GPU also --num_gpu_slots=1\n"
        )
    if isinstance(error, RuntimeError) and "busy or unavailable" in said:  # as CUDA says it
        text += (
            f"the GPU takes no further process: {said.splitlines()[0]}; nvidia-smi -q -d COMPUTE shows its compute "
            "mode; with Exclusive_Process, --inference=local needs only one process per policy on it; otherwise start "
            "MPS (nvidia-cuda-mps-control -d), or have the mode set to Default\n"
        )
    return text


def failure_text(error: BaseException) -> str:
    """The traceback of ``error``, or its text alone if that says all that a user needs; the last line is the error."""
    if not isinstance(error, _SAY_ALL):
        return traceback_of(error)
    if isinstance(error, EnvFaults) and error.__cause__ is not None:  # that the env raised
        return traceback_of(error)
    details = str(error).splitlines()[1:]
    return clean("\n".join([*details, f"{type(error).__name__}: {error.headline}"]), MOST_OF_REPORT)


def raised_at(error: BaseException, everywhere: bool = False) -> str:
    """Where foreign code raised ``error``, or called what raised it, as the end of a sentence.

    If no code but that of this package, gymnasium, torch and numpy was running: "", or with ``everywhere`` its place.
    """
    loaded = [sys.modules.get(name) for name in ("sfactory", "gymnasium", "torch", "numpy")]
    own = {Path(module.__file__).parent for module in loaded if module is not None and module.__file__}
    passed = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in passed if own.isdisjoint(Path(frame.filename).parents)]
    if not frames and everywhere:
        frames = list(passed)
    if not frames:
        return ""
    name = frames[-1].filename
    with contextlib.suppress(OSError):  # the current directory may have been removed
        name = os.path.relpath(name)
    return f" (at {name}:{frames[-1].lineno} in {frames[-1].name})"
