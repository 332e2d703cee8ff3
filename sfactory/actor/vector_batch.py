"""Room: a vector env as the envs of one split. In: an array of actions. Out: arrays, and lists of what ended.

A vector env resets its envs by itself, in one of two ways (Gymnasium's ``AutoresetMode``):

NEXT_STEP: the step after an end resets instead of stepping. So every end, terminations included, is followed by what
NOTE [Truncation row] calls a truncation row; after a termination nothing asks for its value. An end on the last row
of a slot leaves that row to the next slot, whose row 0 it is.

SAME_STEP: the step that ends an episode gives the first observation of the next. The value after a truncated step
would be that of an observation which is no row of the slot, so such a step is not learned from: the one before it
looks ahead to the value of the observation between them, which is a row. Nothing is biased, and a truncated episode
costs one row, as in the other mode.

A vector env that raises is recreated as a whole (``RestartPlan``). One that returns invalid data for one of its envs is
reset as a whole: the last step of all N is lost, and so are their episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from sfactory.actor.env_batch import BeforeEach
from sfactory.actor.env_restarts import RestartPlan, StopOrdered, no_env
from sfactory.actor.episode_stats import EXTRA_STATS, ExtraStatsTracker
from sfactory.env.lifecycle import close_env
from sfactory.env.vector import VectorEnv, autoreset_mode, info_of_end, infos_of_ends
from sfactory.messages import TRUE_OBJECTIVE


class VectorEnvBatch:
    """The N envs of one vector env. Attributes as in ``Group``; observations and rewards are arrays over N."""

    def __init__(self, env: VectorEnv, restart_plan: RestartPlan | None = None) -> None:
        """``restart_plan``: how a vector env that raises is made anew; without one, what it raises is passed on."""
        self.env: VectorEnv | None = env  # None only while it was closed and none could be made
        self.size, self._restart_plan = env.num_envs, restart_plan
        self.observations: Any = None
        self.rewards: Any = np.zeros(env.num_envs)
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.resumed: list[int] = []
        self.lost: list[int] = []
        self.broken: list[int] = []
        self.idle: list[int] = []  # these three are of envs with many agents
        self.paused: list[int] = []
        self.absent: list[int] = []
        self.extras = ExtraStatsTracker()
        self._resets_next_step = autoreset_mode(env) is AutoresetMode.NEXT_STEP
        self._step: Callable[[Any], Any] = env.step

    @property
    def first(self) -> list[int]:
        """Envs whose current observation is the first of an episode."""
        return self.broken + (self.resumed if self._resets_next_step else self.terminated + self.truncated)

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """Reset all envs at once. Of ``seeds`` the first is used: not every vector env takes more than one."""
        if before_each is not None:
            before_each()
        assert self.env is not None
        self.observations, _ = self.env.reset(seed=seeds[0])

    def step(self, actions: Any) -> None:
        """Step every env (those that ended with the last step may be reset instead)."""
        if self._resets_next_step:
            self.resumed = self.terminated + self.truncated
        self.broken = []
        try:
            self.observations, self.rewards, terminated, truncated, infos = self._step(actions)
            self.terminated = _where(terminated)
            self.truncated = _where(np.logical_and(truncated, np.logical_not(terminated)))
        except StopOrdered:
            raise
        except Exception as error:  # foreign code may raise anything
            self._mend(error)
            self._lose_all()
            return
        if not self._resets_next_step:
            self.lost = self.truncated
        if self.terminated or self.truncated:
            self._add_extras(infos)

    def lose(self, envs: Sequence[int]) -> None:
        """See Group. None can be reset alone, so all are lost."""
        restart_plan = self._restart_plan
        assert restart_plan is not None, "what is no data is an error where nobody makes it good"
        assert self.env is not None
        restart_plan.restarter.resetting(True)
        try:
            self.observations, _ = self.env.reset(seed=restart_plan.restarter.fresh_seed(restart_plan.first))
            restart_plan.check(self.observations)
        except Exception as error:  # as in ``step``
            self._mend(error)
        else:
            restart_plan.restarter.resetting(False)
        self._lose_all()

    def show_reset(self, envs: Sequence[int]) -> Sequence[int]:
        """See Group. All are reset, and all are lost."""
        self.lose(envs)
        return self.broken

    def reset_truncated(self) -> list[int]:
        """None can be reset alone: they are reset by the next step, or have been by the last."""
        return []

    def close(self, name: str) -> None:
        """Close the vector env."""
        if self.env is not None:
            close_env(self.env, name)

    def _mend(self, error: Exception) -> None:
        """Make the vector env anew, because it raised ``error``; afterwards all N are at the start of an episode."""
        restart_plan = self._restart_plan
        if restart_plan is None:
            raise error

        def recreate(seed: int) -> None:
            if self.env is not None:
                old, self.env = self.env, None
                close_env(old, f"the vector env from env {restart_plan.first} on, which is made anew")
            self.env = restart_plan.make(seed)
            restart_plan.restarter.begin_work()
            self.observations, _ = self.env.reset(seed=seed)
            restart_plan.check(self.observations)

        def first_step(actions: Any) -> Any:
            assert self.env is not None
            self._step = self.env.step
            result = self.env.step(actions)
            restart_plan.restarter.proved(restart_plan.first)
            return result

        self._step = no_env
        restart_plan.restarter.mend(restart_plan.first, error, recreate)
        self._step = first_step

    def _lose_all(self) -> None:
        """The last step of all envs is lost, with their episodes; all are at the start of another."""
        self.terminated, self.truncated, self.resumed, self.lost = [], [], [], []
        self.broken = list(range(self.size))
        self.rewards = np.zeros(self.size)

    def _add_extras(self, infos: Mapping[str, Any]) -> None:
        told = infos_of_ends(infos)
        if EXTRA_STATS in told or TRUE_OBJECTIVE in told:  # else nobody need look at what each env tells
            for env in self.terminated + self.truncated:
                self.extras.add(info_of_end(infos, env), env)


def _where(mask: npt.ArrayLike) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found
