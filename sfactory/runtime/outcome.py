"""Room: how a run ended. In: the end of its processes. Out: ``Outcome``, for the last lines and the exit code."""

from __future__ import annotations

from dataclasses import dataclass

from sfactory.errors import SFactoryError
from sfactory.runtime.summary import Result, Summary


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    error: its cause, if it failed. saved_env_steps: where a resumed run goes on. stopped_early: an observer had enough.
    """

    status: Result
    summary: Summary
    error: SFactoryError | None
    saved_env_steps: int | None = None
    stopped_early: bool = False
