"""Gathers returns, lengths and extra statistics of the episodes of one split until they are sent to main."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_REASON_CHARS,
    MAX_STAT_NAME_CHARS,
    MAX_STAT_NAMES,
    TRUE_OBJECTIVE,
    EpisodeExtras,
    EpisodesDone,
    ExtrasRefused,
)

EXTRA_STATS = "episode_extra_stats"
RowNumbers = list[int] | npt.NDArray[np.intp]  # in the split


class EpisodeTracker:
    """Raw returns and lengths of the running episodes of N rows, and of finished ones by policy."""

    def __init__(self, size: int, assignment: PolicyAssignment | None = None) -> None:
        """size: N. assignment: the policy of each episode; without it all are of policy 0."""
        self._assignment = assignment
        self._finished: dict[int, tuple[list[float], list[int]]] = {}  # (returns, lengths), by policy
        self._returns = np.zeros(size, np.float64)
        self._started = np.zeros(size, np.int64)  # ticks
        self._tick = 0

    def step(self, rewards: npt.NDArray[np.float64]) -> None:
        """Add the rewards [N] of one step (0 for rows that were not stepped)."""
        self._tick += 1
        self._returns += rewards

    def end(self, rows: RowNumbers) -> None:
        """The episodes of ``rows`` ended with the step just added."""
        if self._assignment is None:
            self._finish(0, rows)
        else:
            policies = self._assignment.ids[rows]
            for policy in np.unique(policies).tolist():
                self._finish(policy, np.asarray(rows)[policies == policy])
        self.start(rows)

    def start(self, rows: RowNumbers) -> None:
        """``rows`` start new episodes after the step just added; unfinished ones are discarded."""
        self._returns[rows] = 0.0
        self._started[rows] = self._tick

    def resume(self, rows: Sequence[int], returns: Sequence[float], length: int) -> None:
        """The running episodes of ``rows`` have these returns and length from steps that were not added here."""
        self._returns[list(rows)] = returns
        self._started[list(rows)] = self._tick - length

    def send(self, actor: int, put: Callable[[EpisodesDone], bool]) -> bool:
        """Pass all finished episodes to ``put``; False as soon as that returns False, and the rest stays here."""
        for policy, (returns, lengths) in self._finished.items():
            while returns:
                count = min(len(returns), MAX_EPISODES_PER_REPORT)
                report = np.array(returns[:count], np.float64), np.array(lengths[:count], np.int64)
                if not put(EpisodesDone(actor, *report, policy)):
                    return False
                del returns[:count], lengths[:count]
        return True

    def _finish(self, policy: int, rows: RowNumbers) -> None:
        returns, lengths = self._finished.setdefault(policy, ([], []))
        returns += self._returns[rows].tolist()
        lengths += (self._tick - self._started[rows]).tolist()


class ExtraStatsTracker:
    """Extra statistics that envs report at the end of an episode, by policy and name, until they are sent.

    Envs report ``info["episode_extra_stats"]``, a mapping of names to numbers, and ``info["true_objective"]``,
    a number. Anything else is left out, and main is sent the reason once. Memory is bounded: at most
    MAX_STAT_NAMES names beside the true objective, and of each the last MAX_EPISODES_PER_REPORT values.

    assignment: the policy of each episode; without it all are of policy 0.
    """

    def __init__(self) -> None:
        self.assignment: PolicyAssignment | None = None
        self._names: set[str] = {TRUE_OBJECTIVE}
        self._waiting: dict[tuple[int, str], deque[float]] = {}
        self._refused: str | None = None
        self._refusal_sent = False

    def add(self, info: object, row: int = 0) -> None:
        """Add the ``info`` of the last step of ``row``'s episode. Never raises, whatever the env has put there."""
        if type(info) is dict and not info:  # the most common case
            return
        try:
            if isinstance(info, Mapping):
                self._add_all(info, 0 if self.assignment is None else int(self.assignment.ids[row]))
        except Exception as error:  # the env's own objects may raise anything when they are read
            self._refuse(f"{EXTRA_STATS} cannot be read: {type(error).__name__}")

    def send(self, actor: int, put: Callable[[EpisodeExtras | ExtrasRefused], bool]) -> bool:
        """Pass everything to ``put``; False as soon as that returns False, and the rest stays here."""
        if self._refused is not None and not self._refusal_sent:
            self._refusal_sent = put(ExtrasRefused(actor, self._refused))
            if not self._refusal_sent:
                return False
        for (policy, name), values in self._waiting.items():
            if values:
                if not put(EpisodeExtras(actor, name, np.fromiter(values, np.float64, len(values)), policy)):
                    return False
                values.clear()
        return True

    def _add_all(self, info: Mapping[str, Any], policy: int) -> None:
        has_objective = TRUE_OBJECTIVE in info
        if has_objective:
            self._add(TRUE_OBJECTIVE, info[TRUE_OBJECTIVE], policy)
        stats = info.get(EXTRA_STATS)
        if stats is None:
            return
        if not isinstance(stats, Mapping):
            self._refuse(f"{EXTRA_STATS} is of type {type(stats).__name__}, not a mapping of names to numbers")
            return
        # One more than allowed, so that too many are noticed and an endless mapping does no harm.
        for name, value in islice(stats.items(), MAX_STAT_NAMES + 2):
            if not (has_objective and name == TRUE_OBJECTIVE):
                self._add(name, value, policy)

    def _add(self, key: object, value: Any, policy: int) -> None:
        # Half a surrogate pair, which UTF-8 cannot encode, becomes a question mark.
        name = str(key).encode(errors="replace").decode()
        try:
            number: float | None = float(value)
        except Exception:  # see ``add``
            number = None
        if len(name) > MAX_STAT_NAME_CHARS:
            self._refuse(f"the name {name[:40]!r}... has {len(name)} characters, {MAX_STAT_NAME_CHARS} are possible")
        elif number is None:
            self._refuse(f"{name!r} is not a number, but of type {type(value).__name__}")
        elif not math.isfinite(number):
            self._refuse(f"{name!r} is {number:g}, which is not finite")
        elif name not in self._names and len(self._names) > MAX_STAT_NAMES:
            self._refuse(f"{name!r} is one name too many: there may be {MAX_STAT_NAMES} in all")
        else:
            self._names.add(name)
            self._waiting.setdefault((policy, name), deque(maxlen=MAX_EPISODES_PER_REPORT)).append(number)

    def _refuse(self, reason: str) -> None:
        if self._refused is None:
            self._refused = reason.encode(errors="replace").decode()[:MAX_REASON_CHARS]
