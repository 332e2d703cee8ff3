"""Steps the envs of one split: the base class of all batches, and the batch of envs that are stepped one by one.

An env that was truncated is not stepped in the next row but reset (see NOTE [Truncation row]); its entry in the list of
step functions is swapped for a reset, so that the loop over envs needs no branch for it.

An env that raises is recreated in place (``FaultHandling``), and the loop continues. The step that raised is lost: its
row is invalid, and the row before it bootstraps from the observation between them, which is a row. A reset that raised
spoils nothing, since the step before it had ended the episode.

NOTE [Truncation row]: when an episode is truncated by step t, row t+1 holds the true final observation, so
that the ordinary forward pass of row t+1 values it. Nothing is stepped in row t+1, its action is thrown
away, it is invalid, and row t+2 starts the next episode. If row t+1 would be the first of the next slot, the
final observation is the old slot's obs[T] and the new slot starts with the reset observation at once.
"""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from sfactory.actor.env_restarts import FaultHandling
from sfactory.actor.episode_stats import ExtraStatsTracker
from sfactory.actor.shared_buffers import CopiedObservations, envs_that_share
from sfactory.env.conversion import BadObservation, ObsWriter
from sfactory.env.lifecycle import close_env
from sfactory.errors import EnvFaults, Passing

BeforeEach = Callable[[], None]

_PROVING_STEPS = 4  # the first reset counts as one

_log = logging.getLogger(__name__)


class BaseBatch(abc.ABC):
    """N rows of envs that are stepped together, what the last step did to them, and how envs are restarted.

    envs: the envs; one vector env is a single entry
    size: N. Each agent of a multi-agent env is a row (NOTE [Rows of agents])
    observations, rewards: N current observations and rewards of the last step, as the split's writer takes them
    extras: extra statistics of finished episodes, not sent yet; those of the last step are only noted

    Lists of rows of the last step. Lists and not an array of codes per row: of 128 rows a step in which one episode
    ends is recorded in 4.6 us instead of 9.6 us, and a step in which none does in 0.36 us instead of 0.26 us.

    terminated, truncated: the episode ended with the last step; never both
    resumed: reset instead of stepped
    lost: the step cannot be learned from, since the observation that its value depends on is missing
    broken: the env raised or returned invalid data: step and episode are discarded, and a new episode has begun. Such
        a row is in none of the other lists

    Of multi-agent envs alone, see NOTE [Agent life]:

    idle: inactive in the last step, and in none of the lists above (rows of an env that was reset are in ``resumed``)
    paused: the agent fell asleep with the last step, and its episode continues
    ended: the agent's episode ended while it slept
    absent: shows zeros, and no policy acts for it in the next step
    """

    observations: Any
    rewards: Any
    _faults: FaultHandling
    _first_env: int
    _writer: ObsWriter
    _resets_with_info = True
    _may_share = True

    def __init__(self, envs: Sequence[Any], size: int) -> None:
        self.envs: list[Any] = list(envs)
        self.size = size
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.resumed: list[int] = []
        self.lost: list[int] = []
        self.broken: list[int] = []
        self.idle: list[int] = []
        self.paused: list[int] = []
        self.ended: list[int] = []
        self.absent: list[int] = []
        self.extras = ExtraStatsTracker()
        self._rows_per_env = size // len(envs)
        # Observations are copied until the first steps have shown that envs share no memory. A batch of one cannot show
        # it: the env may share its memory with that of another split.
        self._copies = self._may_share
        self._unproven = _PROVING_STEPS if len(self.envs) > 1 else 0
        for env, made in enumerate(envs):
            self._install(env, made)
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self.envs]

    def handle_faults(self, faults: FaultHandling, first_env: int, writer: ObsWriter) -> None:
        """Called before the first reset, for envs that raise: they are recreated.

        first_env: number of the first env in the actor. writer: checks the observations of the envs.
        """
        self._faults, self._first_env, self._writer = faults, first_env, writer

    @property
    @abc.abstractmethod
    def first(self) -> list[int]:
        """Rows that show the first observation of an episode."""

    @property
    def unplayed(self) -> list[int]:
        """Rows that show a final observation or none: no action that is chosen for them is taken."""
        return self.truncated

    @property
    def unvalued(self) -> list[int]:
        """Rows that show the final observation of a terminated episode: only the bonus of ``--rnd`` depends on it."""
        return []

    @abc.abstractmethod
    def step(self, actions: Any) -> None:
        """Step every env with ``actions``, in the form that the split's action reader returns.

        Raises EnvFaults if an env failed that may not be recreated any more, StopOrdered if a stop came first.
        """

    def discard(self, rows: Sequence[int]) -> None:
        """The last step of ``rows`` returned invalid data: all rows of their envs become ``broken``.

        An env that does not show the first observation of an episode is reset.
        """
        for env in self._envs_of(rows):
            if not set(self._rows(env)) <= set(self.first):
                self._reset_again(env)
            self._discard(env)
        self._settle()

    def reset_again(self, rows: Sequence[int]) -> Sequence[int]:
        """``rows`` show invalid data at the start of an episode: reset their envs; returns all rows that were reset."""
        envs = self._envs_of(rows)
        for env in envs:
            self._reset_again(env)
        self._settle()
        return self._rows_of(envs)

    @abc.abstractmethod
    def reset_truncated(self) -> list[int]:
        """Reset envs that the last step truncated at once, without a truncation row; returns their rows."""

    @abc.abstractmethod
    def _begin(self, env: int, shown: Any) -> None:
        """Store ``shown``, which the reset of ``env`` has returned."""

    def _shown(self, env: int) -> Any:
        """The current observations of ``env``, in the form that the split's writer takes."""
        own = self._rows(env)
        return self.observations[own.start : own.stop]

    def _inactive(self, env: int) -> Sequence[int]:
        """Of the rows of an env, counted from its first, those that the env's last reset has left without a turn."""
        return ()

    def _settle(self) -> None:  # noqa: B027 - only some batches have something to do
        """Called after envs were reset outside ``step``."""

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """Reset every env for the first time, each with its own seed; ``before_each`` is called before each of them.

        A vector env is reset with the first seed: not every one takes more.
        """
        for index, (env, seed) in enumerate(zip(self.envs, seeds, strict=False)):
            if before_each is not None:
                before_each()
            self._begin(index, env.reset(seed=seed))
        if self._unproven:
            self._prove()

    def recreate(self, env: int, error: BaseException) -> None:
        """``env`` raised ``error`` while it was stepped from outside: put a new one in its place."""
        self._recreate(env, error)
        self._settle()

    def close(self, name: str) -> None:
        """Close every env of the batch called ``name``; an exception of one is logged and does not stop the others.

        What ends a close() that hangs, such as a signal, is raised after the others.
        """
        with contextlib.ExitStack() as stack:
            for index, env in reversed(list(enumerate(self.envs))):
                if env is not None:
                    stack.callback(close_env, env, f"env {index} of {name}")

    def _install(self, env: int, made: Any) -> None:
        """Put ``made`` in the place of ``env``."""
        self.envs[env] = CopiedObservations(made, self._resets_with_info) if self._copies else made

    def _prove(self) -> None:
        """Look whether envs hand out the same memory: they go on to return copies, or else stop to."""
        self._unproven -= 1
        shown = [obs for env in self.envs for obs in env.shown()]
        if (sharing := envs_that_share(shown, self._rows_per_env)) is not None:
            self._unproven = 0
            one, other = (self._first_env + env for env in sharing)
            _log.warning(
                "envs %d and %d of an actor return observations in the same memory, where each would show the other's: "
                "they are copied (return an array of its own from each step to save that)",
                *(one, other),
            )
        elif not self._unproven:
            self._copies = False
            for index, env in enumerate(self.envs):
                self.envs[index] = env.env
                if self._steps[index] == env.step:  # and not a reset that takes its place
                    self._steps[index] = env.env.step

    def _reset(self, env: int, seed: int | None = None) -> None:
        """Begin the next episode of ``env``; one that raises is recreated."""
        resetting, game = self._faults.restarter.resetting, self.envs[env]
        self._steps[env] = game.step
        resetting(True)
        try:
            self._begin(env, game.reset() if seed is None else game.reset(seed=seed))
        except Passing:
            raise
        except BaseException as error:  # foreign code may raise anything
            self._recreate(env, error)
        else:
            resetting(False)

    def _reset_again(self, env: int) -> None:
        """Reset ``env`` with another seed; recreate it if it shows invalid data once more."""
        self._reset(env, self._faults.restarter.fresh_seed(self._first_env + env))
        try:
            self._check_shown(env)
        except BadObservation as error:
            self._recreate(env, error)

    def _check_shown(self, env: int) -> None:
        """Raise BadObservation if the observations that the reset of ``env`` has shown are invalid."""
        flaws = list(self._writer.flaws(self._shown(env), self._rows_per_env, self._inactive(env)).values())
        if flaws:
            raise BadObservation(f"after a reset {flaws[0]}")

    def _recreate(self, env: int, error: BaseException) -> None:
        """Replace ``env``, which raised ``error``, by a new one at the start of an episode."""
        restarter, number = self._faults.restarter, self._first_env + env

        def recreate(seed: int) -> None:
            old, self.envs[env] = self.envs[env], None  # so that it is closed once
            if old is not None:
                close_env(old, f"env {number}, which is recreated")
            self._install(env, self._faults.make(number, seed))
            restarter.begin_work()
            self._begin(env, self.envs[env].reset(seed=seed))
            self._check_shown(env)

        def first_step(actions: Any) -> Any:
            self._steps[env] = self.envs[env].step
            result = self.envs[env].step(actions)
            restarter.proved(number)
            return result

        restarter.restart(number, error, recreate)
        self._steps[env] = first_step

    def _discard(self, env: int) -> None:
        """The last step of ``env`` is discarded: its rows are ``broken`` and in no other list."""
        own = self._rows(env)
        stopped = self.terminated, self.truncated, self.paused, self.ended
        for rows in (*stopped, self.resumed, self.lost, self.broken, self.idle):
            rows[:] = [row for row in rows if row not in own]
        self.rewards[own.start : own.stop] = [0.0] * len(own)
        self.extras.forget(own)
        self.broken += own

    def _rows(self, env: int) -> range:
        return range(env * self._rows_per_env, (env + 1) * self._rows_per_env)

    def _rows_of(self, envs: Iterable[int]) -> list[int]:
        return [row for env in envs for row in self._rows(env)]

    def _envs_of(self, rows: Iterable[int]) -> list[int]:
        return sorted({row // self._rows_per_env for row in rows})


class EnvBatch(BaseBatch):
    """N single-agent envs, stepped one by one; observations and rewards are lists of N."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        super().__init__(envs, len(envs))
        self.observations: list[Any] = [None] * self.size
        self.rewards: list[Any] = [0.0] * self.size
        self._late_resets = [partial(self._late_reset, env) for env in range(self.size)]

    @property
    def first(self) -> list[int]:
        """Envs that show the first observation of an episode; those just truncated show its last."""
        return self.terminated + self.resumed + self.broken

    def step(self, actions: Sequence[Any]) -> None:
        """Step every env (those truncated by the last step are reset instead)."""
        if len(actions) != len(self._steps):
            raise ValueError(f"{len(actions)} actions for {len(self._steps)} envs")
        observations, rewards = self.observations, self.rewards
        self.terminated.clear()
        self.truncated.clear()
        self.resumed.clear()
        self.broken.clear()
        index, stepping = 0, enumerate(zip(self._steps, actions, strict=True))
        while True:
            try:
                for index, (step, action) in stepping:
                    observations[index], rewards[index], terminated, truncated, info = step(action)
                    if terminated or truncated:
                        self._end(index, bool(terminated), info)
                break
            except (EnvFaults, Passing):
                raise
            except BaseException as error:  # foreign code may raise anything; the loop resumes behind this env
                self._recreate(index, error)
                self._discard(index)
        if self._unproven:
            self._prove()

    def reset_truncated(self) -> list[int]:
        """See BaseBatch."""
        late, self.truncated = self.truncated, []
        for env in late:
            self._reset(env)
        return late

    def _begin(self, env: int, shown: Any) -> None:
        self.observations[env], _ = shown

    def _end(self, env: int, terminated: bool, info: dict[str, Any]) -> None:
        self.extras.note(info, env)
        if terminated:
            self.terminated.append(env)
            self._reset(env)
        else:
            self.truncated.append(env)
            self._steps[env] = self._late_resets[env]

    def _late_reset(self, env: int, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._reset(env)
        self.resumed.append(env)
        return self.observations[env], 0.0, False, False, {}


def reward_row(rewards: Any) -> npt.NDArray[np.float64]:
    """[N] float64 of N rewards, given as a list or an array; NaN for one that is not a number."""
    try:
        row = np.array(rewards, np.float64)
    except Exception:  # the env's own objects may raise anything when they are read
        row = np.empty(0)
    return row if row.shape == (len(rewards),) else np.array([_number(reward) for reward in rewards], np.float64)


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except Exception:  # see ``reward_row``
        return float("nan")
