"""The result of a run: summary.json, its one-line form, and the RESULT line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sfactory import atomic
from sfactory.errors import CannotSaveError, SFactoryError
from sfactory.messages import PolicyLag
from sfactory.process.command import return_text

Result = Literal["done", "interrupted", "failed"]


@dataclass(frozen=True)
class Summary:
    """The result of a run; field names are the keys of summary.json. None where there is no such number.

    Means are over the last episodes of all policies, best_episode_return_mean is the best of any one policy.
    true_objective_mean: the mean return if the env reports no objective. episode_extra_stats: means by name.
    evaluation: the last evaluation beside training, see EvaluationReport. policies: with several policies, the results
    of each. best_policy: the one with the highest mean true objective, unless each plays agents of its own.
    best_is_full: whether the best mean is one of stats_avg episodes; None in files of earlier versions.
    ended_by: the name of the observer that ended a run that is done; None at a limit.
    """

    status: Result
    env_steps: int
    agent_steps: int
    frames: int
    train_seconds: float
    fps: float | None = None
    sample_fps: float | None = None
    episodes: int = 0
    episode_return_mean: float | None = None
    best_episode_return_mean: float | None = None
    episode_length_mean: float | None = None
    policy_lag: PolicyLag = field(default_factory=PolicyLag)
    updates: int = 0
    true_objective_mean: float | None = None
    episode_extra_stats: Mapping[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, float | None] | None = None
    policies: Sequence[Mapping[str, float | None]] = ()
    best_policy: int | None = None
    best_is_full: bool | None = None
    ended_by: str | None = None

    def ended(self, status: Result) -> Summary:
        """The same of a later session, or of a later end, which no observer has brought about."""
        return dataclasses.replace(self, status=status, ended_by=self.ended_by if status == "done" else None)

    def of_policy(self, policy: int, policies: int) -> Mapping[str, Any]:
        """What there is of one of so many policies."""
        if policies == 1:
            return vars(self)
        return self.policies[policy] if policy < len(self.policies) else {}

    def to_dict(self) -> dict[str, object]:
        """Plain values; numbers that are not finite become None."""
        values = finite(dataclasses.asdict(self))
        assert isinstance(values, dict)
        return values

    @staticmethod
    def read(path: Path) -> Summary | None:
        """The summary that ``write`` wrote to ``path``; None if there is none that can be read."""
        try:
            values = atomic.read_json(path)
            return Summary(**{**values, "policy_lag": PolicyLag(**values["policy_lag"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, path: Path) -> None:
        """Replace ``path`` atomically by this summary. Raises CannotSaveError; then ``path`` is unchanged."""
        try:
            atomic.write_json(path, self.to_dict())
        except OSError as error:
            raise CannotSaveError(f"{path} could not be written: {error}. Check the free space.") from error


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    status: done, or interrupted by a signal, after which a program should not start another run. exit_code: that of the
    command. stopped_early: ``on_report`` ended the run. summary: the content of summary.json. trained: this call has
    begun to train; False if the run of this name was finished already, and the summary is that of an earlier call.
    """

    status: Result
    exit_code: int
    summary: Summary
    run_dir: Path
    stopped_early: bool = False
    trained: bool = True


def result_line(
    status: Result,
    *,
    env_steps: int,
    return_mean: float | None,
    resume_command: str = "",
    cause: str = "",
    ended_by: str | None = None,
    saved_env_steps: int | None = None,
) -> str:
    """The last line on stderr: how the run ended, why if not at a limit, and the command that resumes it, if one can.

    ``saved_env_steps``: where that command resumes, which is before ``env_steps`` if the end was not saved.
    """
    mean = "none" if return_mean is None or not math.isfinite(return_mean) else return_text(return_mean)
    saved = "" if saved_env_steps is None else f" saved={saved_env_steps}"
    why = f" cause: {cause}" if cause else f" ended by: {ended_by}" if ended_by else ""
    resume = f" resume: {resume_command}" if resume_command else ""
    line = f"RESULT {status} env_steps={env_steps} return={mean}{saved}{why}{resume}"
    return line.replace("\n", " ")


def finite(value: object) -> object:
    """The value with None for each number in it that is not finite, as JSON has no others."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    error: the cause, if it failed. saved_env_steps: where it would resume. stopped_early: an observer ended it.
    """

    status: Result
    summary: Summary
    error: SFactoryError | None
    saved_env_steps: int | None = None
    stopped_early: bool = False
