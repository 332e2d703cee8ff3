"""Recreates envs that raise, counts invalid data, and ends the actor once its envs have failed too often.

The batch of envs records which rows are lost (``BaseBatch.broken``); this module decides how often, how soon and with
which seed an env is recreated.

NOTE [Stop during a restart]: if a stop is ordered while an env is being recreated, there is no env and no observation
to record. EnvRestarter raises StopOrdered, which passes through the batch and the split and ends the actor's turn. The
slot that was being filled is never completed, and no env of the actor is stepped again.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sfactory.clock import BLOCK_S, Deadline
from sfactory.env.conversion import NOT_FINITE, Flaw
from sfactory.errors import EnvFaults, Passing, named, traceback_of
from sfactory.layout import ACTORS
from sfactory.shared.control import Control
from sfactory.shared.status import StatusBoard, StatusRow

_log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
FEW = 20  # so many steps with invalid data are tolerated, whatever their share, and so many lost episodes in a row
_LONG = 1000  # env steps of an episode: most time limits are below


class StopOrdered(Passing):
    """A stop was ordered while an env was being recreated. See NOTE [Stop during a restart]."""


class LostEpisodes:
    """Ends an actor once faults have ended ``most`` episodes of the run in a row, and none has finished in between.

    Otherwise an env that fails late in every episode would be trained to the end of the run, on the starts of episodes.
    The count starts again where the steps of as many long episodes lie between two faults of the actor: an env that
    runs for ever finishes none.
    """

    def __init__(self, actor: str, most: int, status: StatusBoard) -> None:
        self._actor, self._most, self._status = actor, most, status
        self._finished = self._lost_before = self._steps = 0

    def add(self, env: int, fault: str, error: BaseException | None = None) -> None:
        """A fault ends the episode of env ``env`` of the actor; raises EnvFaults if it is one too many in a row."""
        names = ("finished_episodes", "lost_episodes", "env_steps")
        finished, lost, steps = (int(self._status.total(name, ACTORS)) for name in names)
        if finished != self._finished or steps - self._steps >= _LONG * self._most:
            self._finished, self._lost_before = finished, lost
        self._steps = steps
        if lost - self._lost_before >= self._most:
            raise EnvFaults(
                f"env {env} of {self._actor} {fault}; so ended the last {lost - self._lost_before + 1} episodes of the "
                f"run, by an exception or invalid data, and none finished; allowed are {self._most}, the largest of "
                f"{FEW}, --max_env_restarts and the number of envs, unless {_LONG * self._most} env steps lie between "
                "two; an env that runs for ever needs a time limit"
            ) from error


class EnvRestarter:
    """Has envs of one actor recreated: a limited number of times per session, after longer and longer waits.

    The count stands in the actor's status row, which outlives the process: all processes of the actor share it.

    resetting: called with True before and with False after a reset, which has a timeout of its own.
    begin_work: starts the timeout of the next call that may take long.
    """

    def __init__(
        self,
        actor: str,
        most: int,
        seed_of: Callable[[int, int], int],
        control: Control,
        row: StatusRow,
        lost_episodes: LostEpisodes,
    ) -> None:
        """``most``: see --max_env_restarts. ``seed_of(env, n)``: seed of the actor's n-th reset after a fault."""
        self._actor, self._most, self._seed_of, self._control, self._row = actor, most, seed_of, control, row
        self._lost_episodes = lost_episodes
        # The methods themselves, since they are called twice for every reset of an env.
        self.resetting, self.begin_work = row.begin_reset, row.begin_work
        self._in_vain: dict[int, int] = {}  # by env: how often it failed without a good step in between
        self._seeds = 0
        self._raised: dict[object, int] = {}  # by cause: how often in this process

    def restart(self, env: int, error: BaseException, recreate: Callable[[int], None]) -> None:
        """Call ``recreate`` with a seed until it does not raise, because env ``env`` of the actor raised ``error``.

        Raises EnvFaults once no env of the actor may be recreated any more. Raises StopOrdered if a stop comes first
        or has come: Ctrl-C in a terminal may have ended what the env relies on.
        """
        self.resetting(True)
        if not self._control.stopping:
            self._lost_episodes.add(env, f"raised {_line_of(error)}", error)
        while not self._control.stopping:
            self._count(env, error)
            self._wait(env)
            try:
                recreate(self.fresh_seed(env))
            except Passing:
                raise
            except BaseException as again:  # foreign code may raise anything
                error = again
            else:
                self._row.begin_work()
                self.resetting(False)
                return
        raise StopOrdered

    def fresh_seed(self, env: int) -> int:
        """A seed that no env was given before. The reset that uses it starts a new timeout."""
        self._row.begin_work()
        self._seeds += 1
        return self._seed_of(env, self._seeds)

    def proved(self, env: int) -> None:
        """``env`` has made a good step, so the waits start from the shortest again."""
        self._in_vain.pop(env, None)

    def _count(self, env: int, error: BaseException) -> None:
        text = _line_of(error)
        restarts = int(self._row.get("env_restarts"))
        if restarts >= self._most:
            raise EnvFaults(
                f"env {env} of {self._actor} raised {text}; {restarts} of the actor's envs were recreated in this "
                f"session, and --max_env_restarts={self._most} allows no more"
            ) from error
        self._row.add("env_restarts", 1)
        self._in_vain[env] = self._in_vain.get(env, 0) + 1
        cause = _cause_of(error)
        times = self._raised[cause] = self._raised.get(cause, 0) + 1
        if times & (times - 1):  # the second, the fourth, the eighth, ... are logged
            return
        shown = f"; so {times} times by now, and others are only counted"
        _log.warning(
            "env %d of %s raised %s; it is recreated (%d of --max_env_restarts=%d), and its episode is discarded%s",
            *(env, self._actor, text, restarts + 1, self._most),
            shown if times > 1 else f"\n{traceback_of(error).rstrip()}",
        )

    def _wait(self, env: int) -> None:
        deadline = Deadline(min(FIRST_WAIT_S * 2 ** (self._in_vain[env] - 1), LONGEST_WAIT_S))
        while not self._control.stopping:
            self._row.begin_work()  # a process that waits does not hang
            if deadline.passed:
                return
            time.sleep(min(BLOCK_S, deadline.left))
        raise StopOrdered


class BadDataCounter:
    """Counts how often envs of one actor returned invalid data. The count stands in the actor's status row."""

    def __init__(self, actor: str, most: float, row: StatusRow, lost_episodes: LostEpisodes) -> None:
        """``most``: see --max_bad_env_data."""
        self._actor, self._most, self._row, self._lost_episodes = actor, most, row, lost_episodes
        self._logged: set[tuple[str, bool]] = set()

    def add(self, flaws: Mapping[int, Flaw]) -> None:
        """Count one step of each env (by its number in the actor); raises EnvFaults if it is one too many."""
        for env, flaw in flaws.items():
            self._row.add("bad_env_data", 1)
            count = int(self._row.get("bad_env_data"))
            steps = int(self._row.get("env_steps")) + count
            if count >= FEW and count > self._most * steps:
                raise EnvFaults(
                    f"env {env} of {self._actor} returned invalid data: {flaw}; so did {count} of {steps} env "
                    f"steps of the actor ({count / steps:.1%}), and --max_bad_env_data={self._most} allows no more"
                )
            self._lost_episodes.add(env, f"returned invalid data: {flaw}")
            kind = flaw.key, flaw.text == NOT_FINITE
            if kind not in self._logged:
                self._logged.add(kind)
                _log.warning(
                    "env %d of %s returned invalid data: %s; the step and its episode are discarded, and the env is "
                    "reset (--max_bad_env_data=%s of the steps; others like it are only counted)",
                    *(env, self._actor, flaw, self._most),
                )


def _cause_of(error: BaseException) -> tuple[object, ...]:
    """What is the same for errors of one kind that one line has raised."""
    passed = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return type(error), *passed[-1:]


def _line_of(error: BaseException) -> str:
    return " ".join(named(error).split())


@dataclass(frozen=True)
class FaultHandling:
    """How an actor continues when envs fail. ``make``: makes an env (or a vector env), given its number in the actor
    and a seed."""

    restarter: EnvRestarter
    bad_data: BadDataCounter
    make: Callable[[int, int], Any]
