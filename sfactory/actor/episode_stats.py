"""Room: episode statistics of one split. In: rewards and ends of each step. Out: finished episodes and their extras."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
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
    ExtrasRefused,
)

EXTRA_STATS = "episode_extra_stats"
Envs = list[int] | npt.NDArray[np.intp]  # by their numbers in the split


class Finished:
    """Episodes that have finished and were not told yet: returns and lengths, in order."""

    def __init__(self) -> None:
        self.returns: list[float] = []
        self.lengths: list[int] = []


class EpisodeTracker:
    """Raw returns and lengths of the running episodes of N envs, and those that have finished, by policy."""

    def __init__(self, num_envs: int, assignment: PolicyAssignment | None = None) -> None:
        """``assignment``: whose episodes they are; the one policy's without it."""
        self._assignment = assignment
        self._finished: dict[int, Finished] = {}
        self._returns = np.zeros(num_envs, np.float64)
        self._started = np.zeros(num_envs, np.int64)  # ticks
        self._tick = 0

    def step(self, rewards: npt.NDArray[np.float64]) -> None:
        """Add one env step's rewards [N] (0 for envs that were not stepped)."""
        self._tick += 1
        self._returns += rewards

    def end(self, envs: Envs) -> None:
        """The episodes of ``envs`` ended with the step just added."""
        if self._assignment is None:
            self._finish(0, envs)
        else:
            policies = self._assignment.ids[envs]
            for policy in np.unique(policies).tolist():
                self._finish(policy, np.asarray(envs)[policies == policy])
        self._returns[envs] = 0.0
        self._started[envs] = self._tick

    def start(self, envs: list[int]) -> None:
        """``envs`` start new episodes after the tick just added; what theirs had gathered until then is forgotten."""
        self._returns[envs] = 0.0
        self._started[envs] = self._tick

    def resume_episode(self, env: int, episode_return: float, length: int) -> None:
        """The running episode of ``env`` has gathered this much already, outside of the steps told here."""
        self._returns[env] = episode_return
        self._started[env] = self._tick - length

    @property
    def finished(self) -> list[int]:
        """The policies of which episodes have finished that were not taken yet."""
        return [policy for policy, finished in self._finished.items() if finished.returns]

    def put_back(self, returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], policy: int = 0) -> None:
        """Undo the ``take`` that gave these episodes."""
        finished = self._of(policy)
        finished.returns[:0] = returns.tolist()
        finished.lengths[:0] = lengths.tolist()

    def take(self, limit: int, policy: int = 0) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Finished episodes of ``policy`` not taken yet, at most ``limit``: returns float64, lengths int64."""
        finished = self._of(policy)
        returns = np.array(finished.returns[:limit], np.float64)
        lengths = np.array(finished.lengths[:limit], np.int64)
        del finished.returns[:limit]
        del finished.lengths[:limit]
        return returns, lengths

    def _of(self, policy: int) -> Finished:
        return self._finished.setdefault(policy, Finished())

    def _finish(self, policy: int, envs: Envs) -> None:
        finished = self._of(policy)
        finished.returns += self._returns[envs].tolist()
        finished.lengths += (self._tick - self._started[envs]).tolist()


class ExtraStatsTracker:
    """What envs tell of an episode at its end beside its return, by name, until it is sent.

    An env gives ``info["episode_extra_stats"]``, a mapping of names to numbers, and ``info["true_objective"]``,
    a number. What is no such thing is left out; main is told once why. Memory is bounded: at most
    MAX_STAT_NAMES names beside the true objective, and of each the last MAX_EPISODES_PER_REPORT values.
    """

    def __init__(self) -> None:
        self.assignment: PolicyAssignment | None = None  # whose episodes they are; the one policy's without it
        self._names: set[str] = {TRUE_OBJECTIVE}
        self._waiting: dict[tuple[int, str], deque[float]] = {}
        self._refused: str | None = None
        self._told = False

    def add(self, info: object, row: int = 0) -> None:
        """Take in the ``info`` of the last step of ``row``'s episode. Never raises, whatever the env has put there."""
        if type(info) is dict and not info:  # soon seen, and the most common
            return
        try:
            if isinstance(info, Mapping):
                self._add_all(info, 0 if self.assignment is None else int(self.assignment.ids[row]))
        except Exception as error:  # the env's own objects may raise whatever they like when they are read
            self._refuse(f"{EXTRA_STATS} cannot be read: {type(error).__name__}")

    def send(self, actor: int, put: Callable[[EpisodeExtras | ExtrasRefused], bool]) -> bool:
        """Hand everything to ``put``; False as soon as that has no room, and the rest stays here."""
        if self._refused is not None and not self._told:
            self._told = put(ExtrasRefused(actor, self._refused))
            if not self._told:
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
        # One more than there may be, so that too many are noticed, and an endless mapping does no harm.
        for name, value in islice(stats.items(), MAX_STAT_NAMES + 2):
            if not (has_objective and name == TRUE_OBJECTIVE):
                self._add(name, value, policy)

    def _add(self, key: object, value: Any, policy: int) -> None:
        # What UTF-8 cannot hold (half a surrogate pair) becomes a question mark.
        name = str(key).encode(errors="replace").decode()
        if len(name) > MAX_STAT_NAME_CHARS:
            self._refuse(f"the name {name[:40]!r}... has {len(name)} characters, {MAX_STAT_NAME_CHARS} are possible")
            return
        try:
            number = float(value)
        except Exception:  # see ``add``
            self._refuse(f"{name!r} is no number, but of type {type(value).__name__}")
            return
        if not math.isfinite(number):
            self._refuse(f"{name!r} is {number:g}, which is no finite number")
            return
        if name not in self._names:
            if len(self._names) > MAX_STAT_NAMES:
                self._refuse(f"{name!r} is one name too many: there may be {MAX_STAT_NAMES} in all")
                return
            self._names.add(name)
        self._waiting.setdefault((policy, name), _values()).append(number)

    def _refuse(self, reason: str) -> None:
        if self._refused is None:
            self._refused = reason.encode(errors="replace").decode()[:MAX_REASON_CHARS]


def _values() -> deque[float]:
    return deque(maxlen=MAX_EPISODES_PER_REPORT)
