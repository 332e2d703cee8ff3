"""Gathers returns, lengths and extra statistics of the episodes of one split until they are sent to main.

If an observer looks at each episode, an EpisodeRecorder gathers them one by one, too.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.messages import (
    MAX_EPISODES_PER_REPORT,
    MAX_INFO_NUMBERS,
    MAX_REASON_CHARS,
    MAX_STAT_NAME_CHARS,
    MAX_STAT_NAMES,
    TRUE_OBJECTIVE,
    EpisodeEnd,
    EpisodeExtras,
    EpisodesDone,
    ExtrasRefused,
)

EXTRA_STATS = "episode_extra_stats"
STATISTICS = (TRUE_OBJECTIVE, EXTRA_STATS)  # what is read of an info
RowNumbers = list[int] | npt.NDArray[np.intp]  # in the split


class EpisodeRecorder:
    """Finished episodes one by one, with the numbers that their envs gave at the end, until they are sent.

    Memory is bounded: the oldest of more than MAX_EPISODES_PER_REPORT episodes that main has no room for are lost.
    """

    def __init__(self, first_env: int, agents: int) -> None:
        """first_env: number of the split's first env in the run. agents: rows of each env."""
        self._first_env, self._agents = first_env, agents
        self._numbers: dict[int, tuple[dict[str, float], dict[str, float]]] = {}  # (stats, info), by row
        self._waiting: deque[tuple[int, int, str]] = deque(maxlen=MAX_EPISODES_PER_REPORT)

    def note(self, info: Mapping[str, Any], row: int) -> None:
        """``info`` is that of the last step of ``row``'s episode. May raise whatever reading it raises."""
        numbers = _numbers_in(info, MAX_INFO_NUMBERS)
        stats = _numbers_in({TRUE_OBJECTIVE: info[TRUE_OBJECTIVE]}, 1) if TRUE_OBJECTIVE in info else {}
        self._numbers[row] = _numbers_in(info.get(EXTRA_STATS), MAX_STAT_NAMES) | stats, numbers

    def end(self, policy: int, row: int, episode_return: float, length: int) -> None:
        """The episode of ``row`` has ended, in which ``policy`` acted."""
        stats, info = self._numbers.pop(row, ({}, {}))
        env, agent = divmod(row, self._agents)
        own = {"return": episode_return, "length": length, "agent": agent}
        self._waiting.append((policy, self._first_env + env, json.dumps([stats | own, info], ensure_ascii=False)))

    def forget(self, rows: RowNumbers) -> None:
        """``rows`` start new episodes: what was noted of others is discarded."""
        for row in rows:
            self._numbers.pop(int(row), None)

    def send(self, actor: int, put: Callable[[EpisodeEnd], bool]) -> None:
        """Pass episodes to ``put`` in the order in which they ended, until it returns False; the rest stays here."""
        while self._waiting and put(EpisodeEnd(actor, *self._waiting[0])):
            self._waiting.popleft()


def _numbers_in(given: object, most: int) -> dict[str, float]:
    """The finite numbers among the first ``most`` entries of a mapping, by names that are not too long."""
    found: dict[str, float] = {}
    for key, value in islice(given.items(), most) if isinstance(given, Mapping) else ():
        name = str(key).encode(errors="replace").decode()
        if len(name) <= MAX_STAT_NAME_CHARS and not isinstance(value, str | bytes):
            with contextlib.suppress(Exception):  # what is no number may raise anything
                number = float(value)
                if math.isfinite(number):
                    found[name] = number
    return found


class EpisodeTracker:
    """Raw returns and lengths of the running episodes of N rows, and of finished ones by policy.

    recorder: also gets each finished episode, if there is one.
    """

    def __init__(self, size: int, assignment: PolicyAssignment | None = None) -> None:
        """size: N. assignment: the policy of each episode, opponents left out; without it all are of policy 0."""
        self._assignment = assignment
        self.recorder: EpisodeRecorder | None = None
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
            for policy in np.unique(policies[policies < self._assignment.policies]).tolist():
                self._finish(policy, np.asarray(rows)[policies == policy])
        self.start(rows)

    def start(self, rows: RowNumbers) -> None:
        """``rows`` start new episodes after the step just added; unfinished ones are discarded."""
        self._returns[rows] = 0.0
        self._started[rows] = self._tick
        if self.recorder is not None:
            self.recorder.forget(rows)

    def resume(self, rows: Sequence[int], returns: Sequence[float], length: int) -> None:
        """The running episodes of ``rows`` have these returns and length from steps that were not added here."""
        self._returns[list(rows)] = returns
        self._started[list(rows)] = self._tick - length

    def send(self, actor: int, put: Callable[[EpisodesDone | EpisodeEnd], bool]) -> bool:
        """Pass all finished episodes to ``put``; False as soon as that returns False, and the rest stays here."""
        for policy, (returns, lengths) in self._finished.items():
            while returns:
                count = min(len(returns), MAX_EPISODES_PER_REPORT)
                report = np.array(returns[:count], np.float64), np.array(lengths[:count], np.int64)
                if not put(EpisodesDone(actor, *report, policy)):
                    return False
                del returns[:count], lengths[:count]
        if self.recorder is not None:
            self.recorder.send(actor, put)
        return True

    def _finish(self, policy: int, rows: RowNumbers) -> None:
        self.add_finished(policy, rows, self._returns[rows].tolist(), (self._tick - self._started[rows]).tolist())

    def add_finished(self, policy: int, rows: Iterable[int], returns: list[float], lengths: list[int]) -> None:
        """Episodes of ``policy`` in ``rows`` have ended; they need not have been followed step by step."""
        kept_returns, kept_lengths = self._finished.setdefault(policy, ([], []))
        kept_returns += returns
        kept_lengths += lengths
        if self.recorder is not None:
            for row, one, length in zip(rows, returns, lengths, strict=True):
                self.recorder.end(policy, int(row), one, length)


class ExtraStatsTracker:
    """Extra statistics that envs report at the end of an episode, by policy and name, until they are sent.

    Envs report ``info["episode_extra_stats"]``, a mapping of names to numbers, and ``info["true_objective"]``,
    a number. Anything else is left out, and main is sent the reason once. Memory is bounded: at most
    MAX_STAT_NAMES names beside the true objective, and of each the last MAX_EPISODES_PER_REPORT values.

    assignment: the policy of each episode, opponents left out; without it all are of policy 0. recorder: as in
    EpisodeTracker.
    """

    def __init__(self) -> None:
        self.assignment: PolicyAssignment | None = None
        self.recorder: EpisodeRecorder | None = None
        self._names: set[str] = {TRUE_OBJECTIVE}
        self._noted: dict[int, list[tuple[tuple[int, str], float]]] = {}  # ((policy, name), number), by row
        self._waiting: dict[tuple[int, str], deque[float]] = {}
        self._refused: str | None = None
        self._refusal_sent = False

    def add(self, info: object, row: int = 0) -> None:
        """Add the ``info`` of the last step of ``row``'s episode. Never raises, whatever the env has put there."""
        self.note(info, row)
        self.keep()

    def note(self, info: object, row: int) -> None:
        """As ``add``, but the numbers count only with ``keep``: the step may turn out to be invalid."""
        if type(info) is dict and not info:  # the most common case
            return
        policy = 0 if self.assignment is None else int(self.assignment.ids[row])
        if self.assignment is not None and policy >= self.assignment.policies:
            return
        try:
            if isinstance(info, Mapping):
                if self.recorder is not None:
                    self.recorder.note(info, row)
                self._add_all(info, row, policy)
        except Exception as error:  # the env's own objects may raise anything when they are read
            self.refuse(f"{EXTRA_STATS} cannot be read: {type(error).__name__}")

    def keep(self) -> None:
        """What was noted counts."""
        for numbers in self._noted.values():
            for key, number in numbers:
                self._waiting.setdefault(key, deque(maxlen=MAX_EPISODES_PER_REPORT)).append(number)
        self._noted.clear()

    def forget(self, rows: Iterable[int]) -> None:
        """The last step of ``rows`` is discarded: what was noted of it does not count."""
        for row in rows:
            self._noted.pop(row, None)

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

    def _add_all(self, info: Mapping[str, Any], row: int, policy: int) -> None:
        has_objective = TRUE_OBJECTIVE in info
        if has_objective:
            self._add(TRUE_OBJECTIVE, info[TRUE_OBJECTIVE], row, policy)
        stats = info.get(EXTRA_STATS)
        if stats is None:
            return
        if not isinstance(stats, Mapping):
            self.refuse(f"{EXTRA_STATS} is of type {type(stats).__name__}, not a mapping of names to numbers")
            return
        # One more than allowed, so that too many are noticed and an endless mapping does no harm.
        for name, value in islice(stats.items(), MAX_STAT_NAMES + 2):
            if not (has_objective and name == TRUE_OBJECTIVE):
                self._add(name, value, row, policy)

    def _add(self, key: object, value: Any, row: int, policy: int) -> None:
        # Half a surrogate pair, which UTF-8 cannot encode, becomes a question mark.
        name = str(key).encode(errors="replace").decode()
        try:
            number: float | None = float(value)
        except Exception:  # see ``add``
            number = None
        if len(name) > MAX_STAT_NAME_CHARS:
            self.refuse(f"the name {name[:40]!r}... has {len(name)} characters, {MAX_STAT_NAME_CHARS} are possible")
        elif number is None:
            self.refuse(f"{name!r} is not a number, but of type {type(value).__name__}")
        elif not math.isfinite(number):
            self.refuse(f"{name!r} is {number:g}, which is not finite")
        elif name not in self._names and len(self._names) > MAX_STAT_NAMES:
            self.refuse(f"{name!r} is one name too many: there may be {MAX_STAT_NAMES} in all")
        else:
            self._names.add(name)
            self._noted.setdefault(row, []).append(((policy, name), number))

    def refuse(self, reason: str) -> None:
        """Something is left out: main is sent the first ``reason``."""
        if self._refused is None:
            self._refused = reason.encode(errors="replace").decode()[:MAX_REASON_CHARS]
