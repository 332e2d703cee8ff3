"""Room: envs of an actor that raise. In: what one raised. Out: a fresh env in its place, or the end of the actor.

What is lost is told by the group of envs that it happened in (``Group.broken``); here is how often, how soon and with
which seed an env is made anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sfactory.clock import BLOCK_S, Deadline
from sfactory.errors import SFactoryError, named
from sfactory.shared.control import Control
from sfactory.shared.status import StatusRow

_log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0


class EnvFaults(SFactoryError):
    """Envs of an actor failed too often, or gave too much that is no data; one line names env, count and flag."""


class StopOrdered(Exception):
    """A stop was ordered while an env was made anew. There is no row to be recorded; nobody steps the env any more."""


class EnvRestarter:
    """Has envs of one actor made anew, at most so many in a session, and later and later if that does not help.

    The count stands in the actor's status row, which outlives the process: all processes of the actor share it.

    resetting: is told that an env is being reset or made anew, or is no longer: work that has a limit of its own.
    """

    def __init__(
        self, actor: str, most: int, seed_of: Callable[[int, int], int], control: Control, row: StatusRow
    ) -> None:
        """``most``: see --max_env_restarts. ``seed_of``: the n-th seed that an env is given after its first one."""
        self._actor, self._most, self._seed_of, self._control, self._row = actor, most, seed_of, control, row
        self.resetting = row.begin_reset  # itself, since it is called twice for every reset of an env
        self._in_vain: dict[int, int] = {}  # by env: how often it failed without a good step in between
        self._seeds = 0
        self._shown = False

    def mend(self, env: int, error: Exception, recreate: Callable[[int], None]) -> None:
        """Call ``recreate`` with a seed until it does not raise, because env ``env`` of the actor raised ``error``.

        Raises EnvFaults once no env of the actor may be made anew any more. Raises StopOrdered if a stop comes first,
        or has come: Ctrl-C in a terminal may have ended what the env relies on.
        """
        self.resetting(True)
        while not self._control.stopping:
            self._count(env, error)
            self._wait(env)
            try:
                recreate(self.fresh_seed(env))
            except Exception as again:  # foreign code may raise anything
                error = again
            else:
                self._row.begin_work()
                self.resetting(False)
                return
        raise StopOrdered

    def fresh_seed(self, env: int) -> int:
        """A seed that no env was given before. What is done with it may take long, and begins now."""
        self._row.begin_work()
        self._seeds += 1
        return self._seed_of(env, self._seeds)

    def begin_work(self) -> None:
        """The actor begins one more thing that may take long."""
        self._row.begin_work()

    def proved(self, env: int) -> None:
        """``env`` has made a good step: its next failure is a new one."""
        self._in_vain.pop(env, None)

    def _count(self, env: int, error: Exception) -> None:
        told = " ".join(named(error).split())
        restarts = int(self._row.get("env_restarts"))
        if restarts >= self._most:
            raise EnvFaults(
                f"env {env} of {self._actor} raised {told}; {restarts} of the actor's envs were made anew in this "
                f"session, and --max_env_restarts={self._most} allows no more"
            ) from error
        self._row.add("env_restarts", 1)
        self._in_vain[env] = self._in_vain.get(env, 0) + 1
        _log.warning(
            "env %d of %s raised %s; it is made anew (%d of --max_env_restarts=%d), and its episode counts nowhere",
            *(env, self._actor, told, restarts + 1, self._most),
            exc_info=None if self._shown else error,
        )
        self._shown = True

    def _wait(self, env: int) -> None:
        deadline = Deadline(min(FIRST_WAIT_S * 2 ** (self._in_vain[env] - 1), LONGEST_WAIT_S))
        while not self._control.stopping:
            self._row.begin_work()  # who waits does not hang
            if deadline.passed:
                return
            time.sleep(min(BLOCK_S, deadline.left))
        raise StopOrdered


def no_env(_actions: Any) -> Any:
    """Stands for the step of an env that is not there, which is so only after a stop was ordered."""
    raise StopOrdered


@dataclass(frozen=True)
class RestartPlan:
    """How what one split steps is made anew.

    first: number of the split's first env among those of the actor. make: makes an env, or a vector env, that may be
    given a seed. check: raises BadObservation if the observations that resets have shown, in the form that the group
    keeps them in, are no data.
    """

    restarter: EnvRestarter
    first: int
    make: Callable[[int], Any]
    check: Callable[[Any], None]
