"""Room: the environments of one split. In: one action per env. Out: observations, rewards and ends, as lists.

The only per-env Python in the data path is the loop in ``step``. An env that was truncated is not stepped in
the next row but reset (see NOTE [Truncation row]); its entry in the list of step functions is swapped for a
reset, so that the loop needs no branch for it.

NOTE [Truncation row]: when an episode is truncated by step t, row t+1 holds the true final observation, so
that the ordinary forward pass of row t+1 values it. Nothing is stepped in row t+1, its action is thrown
away, it is invalid, and row t+2 starts the next episode. If row t+1 would be the first of the next slot, the
final observation is the old slot's obs[T] and the new slot starts with the reset observation at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from sfactory.actor.episodes import ExtraTally

StepResult = tuple[Any, Any, Any, Any, dict[str, Any]]


class EnvGroup:
    """N environments stepped together.

    observations: N current observations, as the envs gave them
    rewards: N rewards of the last step
    terminated, truncated: envs whose episode ended with the last step
    resumed: envs that were reset instead of stepped in the last step
    extras: extra statistics that episodes gave at their ends, not yet sent
    """

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self.envs = list(envs)
        self.observations: list[Any] = [None] * len(self.envs)
        self.rewards: list[Any] = [0.0] * len(self.envs)
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.resumed: list[int] = []
        self.extras = ExtraTally()
        self._steps: list[Callable[[Any], StepResult]] = [env.step for env in self.envs]
        self._late_resets = [self._late_reset_of(env) for env in range(len(self.envs))]

    def reset(self, seeds: Sequence[int], before_each: Callable[[], None] | None = None) -> None:
        """Reset every env for the first time, each with its own seed; ``before_each`` is called before each of them."""
        for index, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
            if before_each is not None:
                before_each()
            self.observations[index] = env.reset(seed=seed)[0]

    def step(self, actions: Sequence[Any]) -> None:
        """Step every env (those truncated by the last step are reset instead)."""
        observations, rewards = self.observations, self.rewards
        self.terminated.clear()
        self.truncated.clear()
        self.resumed.clear()
        for index, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            observations[index], rewards[index], terminated, truncated, info = step(action)
            if terminated or truncated:
                self._end(index, bool(terminated), info)

    def reset_truncated(self) -> list[int]:
        """Reset the envs that the last step truncated, at once and without a truncation row; returns them."""
        late, self.truncated = self.truncated, []
        for env in late:
            self._steps[env] = self.envs[env].step
            self.observations[env] = self.envs[env].reset()[0]
        return late

    def _end(self, env: int, terminated: bool, info: dict[str, Any]) -> None:
        self.extras.add(info)
        if terminated:
            self.terminated.append(env)
            self.observations[env] = self.envs[env].reset()[0]
        else:
            self.truncated.append(env)
            self._steps[env] = self._late_resets[env]

    def _late_reset_of(self, env: int) -> Callable[[Any], StepResult]:
        def reset(_action: Any) -> StepResult:
            obs, info = self.envs[env].reset()
            self._steps[env] = self.envs[env].step
            self.resumed.append(env)
            return obs, 0.0, False, False, info

        return reset


def reward_row(rewards: Sequence[Any]) -> npt.NDArray[np.float64]:
    """[N] float64 of a list of N rewards."""
    return np.array(rewards, np.float64)
