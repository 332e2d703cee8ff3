"""Room: what a split steps: some envs one by one, or one vector env. In: actions. Out: what happened to each env.

Room: the environments of one split. In: one action per env. Out: observations, rewards and ends, as lists.

The only per-env Python in the data path is the loop in ``step``. An env that was truncated is not stepped in
the next row but reset (see NOTE [Truncation row]); its entry in the list of step functions is swapped for a
reset, so that the loop needs no branch for it.

An env that raises is recreated in place (``RestartPlan``), and the loop continues. A step that raised is lost: its
row is invalid, and the row before looks ahead to the value of the observation between them, which is a row. A reset
that raised spoils nothing: the step before it had ended the episode.

NOTE [Truncation row]: when an episode is truncated by step t, row t+1 holds the true final observation, so
that the ordinary forward pass of row t+1 values it. Nothing is stepped in row t+1, its action is thrown
away, it is invalid, and row t+2 starts the next episode. If row t+1 would be the first of the next slot, the
final observation is the old slot's obs[T] and the new slot starts with the reset observation at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from sfactory.actor.env_restarts import EnvFaults, RestartPlan, StopOrdered, no_env
from sfactory.actor.episode_stats import ExtraStatsTracker
from sfactory.env.conversion import BadObservation
from sfactory.env.lifecycle import close_env

BeforeEach = Callable[[], None]


class Group(Protocol):
    """N envs that are stepped together. What the last step did is told as lists of the envs it was done to.

    observations: N current observations, in the form that the split's writer takes
    rewards: N rewards of the last step
    terminated, truncated: envs whose episode ended with the last step, never both
    resumed: envs that were reset instead of stepped in the last step
    lost: envs whose last step cannot be learned from, since what its value depends on was not given
    broken: envs that failed in the last step, or gave what is no data: the step is lost, and so is its episode, which
        counts nowhere; they were made good, and are at the start of another. None of the lists above holds them
    first: envs whose current observation is the first of an episode
    extras: extra statistics that episodes gave at their ends, not yet sent

    Of envs with many agents each agent is a row, and stands for an env here (NOTE [Rows of agents]). Agents may take no
    part in a step, which the rest is about; it is empty elsewhere. See NOTE [Agent life].

    idle: rows that had no part in the last step, and are in none of the lists above (those of an env that was reset are
        in ``resumed``)
    paused: rows whose agent fell asleep with the last step, in which its episode did not end
    absent: rows that nobody need act for in the next step: they show zeros
    """

    observations: Any
    rewards: Any
    terminated: list[int]
    truncated: list[int]
    resumed: list[int]
    lost: list[int]
    broken: list[int]
    idle: list[int]
    paused: list[int]
    absent: list[int]
    extras: ExtraStatsTracker

    @property
    def size(self) -> int:
        """N."""

    @property
    def first(self) -> list[int]:
        """See above."""

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """Reset every env for the first time; ``before_each`` is called before all that may take long."""

    def step(self, actions: Any) -> None:
        """Step every env with ``actions``, in the form that the split's action reader gives them.

        Raises EnvFaults if one failed that may not be made anew any more, StopOrdered if a stop came before it was.
        """

    def lose(self, envs: Sequence[int]) -> None:
        """What the last step of ``envs`` gave is no data: they are ``broken``, and reset unless they were already."""

    def show_reset(self, envs: Sequence[int]) -> Sequence[int]:
        """``envs`` show what is no data at the start of an episode: reset them again; returns all that were."""

    def reset_truncated(self) -> list[int]:
        """Reset those that the last step truncated, at once and without a truncation row; returns those it could."""

    def close(self, name: str) -> None:
        """Close every env of what ``name`` calls this group. What that raises is only logged."""


def reward_row(rewards: Any) -> npt.NDArray[np.float64]:
    """[N] float64 of N rewards, as a list or an array; NaN for one that is no number."""
    try:
        row = np.array(rewards, np.float64)
    except (TypeError, ValueError):
        row = np.empty(0)
    return row if row.shape == (len(rewards),) else np.array([_number(reward) for reward in rewards], np.float64)


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError):
        return float("nan")


StepResult = tuple[Any, Any, Any, Any, dict[str, Any]]
_NONE: gymnasium.Env[Any, Any] = gymnasium.Env()  # stands where one was closed and none could be made


class EnvBatch:
    """N environments, stepped one by one. Attributes as in ``Group``; observations and rewards are lists of N."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], restart_plan: RestartPlan | None = None) -> None:
        """``restart_plan``: how an env that raises is made anew; without one, what it raises is passed on."""
        self.envs = list(envs)
        self._restart_plan = restart_plan
        self.observations: list[Any] = [None] * len(self.envs)
        self.rewards: list[Any] = [0.0] * len(self.envs)
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.resumed: list[int] = []
        self.lost: list[int] = []  # none ever is: an env that ended is reset when that suits the slot
        self.broken: list[int] = []
        self.idle: list[int] = []  # these three are of envs with many agents
        self.paused: list[int] = []
        self.absent: list[int] = []
        self.extras = ExtraStatsTracker()
        self._steps: list[Callable[[Any], StepResult]] = [env.step for env in self.envs]
        self._late_resets = [self._late_reset_of(env) for env in range(len(self.envs))]

    @property
    def size(self) -> int:
        """N."""
        return len(self.envs)

    @property
    def first(self) -> list[int]:
        """Envs whose current observation is the first of an episode; those just truncated show its last."""
        return self.terminated + self.resumed + self.broken

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """Reset every env for the first time, each with its own seed; ``before_each`` is called before each of them."""
        for index, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
            if before_each is not None:
                before_each()
            self.observations[index] = env.reset(seed=seed)[0]

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
                return
            except (EnvFaults, StopOrdered):
                raise
            except Exception as error:  # foreign code may raise anything; the loop goes on behind it
                self._mend(index, error)
                self._lose(index)

    def lose(self, envs: Sequence[int]) -> None:
        """See Group."""
        for env in envs:
            if env not in self.terminated:
                self._show_reset(env)
            self._lose(env)

    def show_reset(self, envs: Sequence[int]) -> Sequence[int]:
        """See Group."""
        for env in envs:
            self._show_reset(env)
        return envs

    def reset_truncated(self) -> list[int]:
        """Reset the envs that the last step truncated, at once and without a truncation row; returns them."""
        late, self.truncated = self.truncated, []
        for env in late:
            self._steps[env] = self.envs[env].step
            self._reset(env)
        return late

    def close(self, name: str) -> None:
        """Close every env; one whose close() raises keeps no other from being closed."""
        for index, env in enumerate(self.envs):
            close_env(env, f"env {index} of {name}")

    def _end(self, env: int, terminated: bool, info: dict[str, Any]) -> None:
        self.extras.add(info, env)
        if terminated:
            self.terminated.append(env)
            self._reset(env)
        else:
            self.truncated.append(env)
            self._steps[env] = self._late_resets[env]

    def _late_reset_of(self, env: int) -> Callable[[Any], StepResult]:
        def reset(_action: Any) -> StepResult:
            self._steps[env] = self.envs[env].step
            self._reset(env)
            self.resumed.append(env)
            return self.observations[env], 0.0, False, False, {}

        return reset

    def _reset(self, env: int, seed: int | None = None) -> None:
        """Begin the next episode of ``env``, with a fresh env if this one raises."""
        restart_plan = self._restart_plan
        if restart_plan is not None:
            restart_plan.restarter.resetting(True)
        try:
            obs, _ = self.envs[env].reset() if seed is None else self.envs[env].reset(seed=seed)
        except Exception as error:  # as in ``step``
            self._mend(env, error)
        else:
            self.observations[env] = obs
            if restart_plan is not None:
                restart_plan.restarter.resetting(False)

    def _show_reset(self, env: int) -> None:
        """Reset ``env`` with another seed; one that shows no data then, too, is made anew."""
        restart_plan = self._restart_plan
        assert restart_plan is not None, "what is no data is an error where nobody makes it good"
        self._steps[env] = self.envs[env].step
        self._reset(env, restart_plan.restarter.fresh_seed(restart_plan.first + env))
        try:
            restart_plan.check([self.observations[env]])
        except BadObservation as error:
            self._mend(env, error)

    def _lose(self, env: int) -> None:
        """The last step of ``env`` and its episode are lost; it is at the start of another."""
        for told in (self.terminated, self.truncated, self.resumed):
            if env in told:
                told.remove(env)
        self.rewards[env] = 0.0
        self.broken.append(env)

    def _mend(self, env: int, error: Exception) -> None:
        """Make ``env`` anew, because it raised ``error``; afterwards it is at the start of an episode."""
        restart_plan = self._restart_plan
        if restart_plan is None:
            raise error

        def recreate(seed: int) -> None:
            old, self.envs[env] = self.envs[env], _NONE
            close_env(old, f"env {restart_plan.first + env}, which is made anew")
            self.envs[env] = restart_plan.make(seed)
            restart_plan.restarter.begin_work()
            obs, _ = self.envs[env].reset(seed=seed)
            restart_plan.check([obs])
            self.observations[env] = obs

        self._steps[env] = no_env
        restart_plan.restarter.mend(restart_plan.first + env, error, recreate)
        self._steps[env] = self._first_step_of(env, restart_plan)

    def _first_step_of(self, env: int, restart_plan: RestartPlan) -> Callable[[Any], StepResult]:
        """The first step of an env that was made anew: if it is good, the next failure is a new one."""

        def step(action: Any) -> StepResult:
            self._steps[env] = self.envs[env].step
            result: StepResult = self.envs[env].step(action)
            restart_plan.restarter.proved(restart_plan.first + env)
            return result

        return step
