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

from sfactory.actor.episodes import ExtraTally
from sfactory.actor.group import BeforeEach
from sfactory.env.close import close_env

StepResult = tuple[Any, Any, Any, Any, dict[str, Any]]


class EnvGroup:
    """N environments, stepped one by one. Attributes as in ``Group``; observations and rewards are lists of N."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self.envs = list(envs)
        self.observations: list[Any] = [None] * len(self.envs)
        self.rewards: list[Any] = [0.0] * len(self.envs)
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.resumed: list[int] = []
        self.lost: list[int] = []  # none ever is: an env that ended is reset when that suits the slot
        self.extras = ExtraTally()
        self._steps: list[Callable[[Any], StepResult]] = [env.step for env in self.envs]
        self._late_resets = [self._late_reset_of(env) for env in range(len(self.envs))]

    @property
    def size(self) -> int:
        """N."""
        return len(self.envs)

    @property
    def first(self) -> list[int]:
        """Envs whose current observation is the first of an episode; those just truncated show its last."""
        return self.terminated + self.resumed

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
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

    def close(self, name: str) -> None:
        """Close every env; one whose close() raises keeps no other from being closed."""
        for index, env in enumerate(self.envs):
            close_env(env, f"env {index} of {name}")

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
