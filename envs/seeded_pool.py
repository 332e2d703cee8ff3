"""Lets the seed of ``reset`` repeat the episodes of an EnvPool, which EnvPool itself seeds only when it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sfactory.env.vector import VectorEnv, VectorWrapper


class SeededPool(VectorWrapper):
    """A pool that is made again where ``reset`` gets a seed.

    The first reset, with the seed that the pool was made with, needs no new one; so training makes each pool once.
    """

    def __init__(self, make: Callable[..., VectorEnv], seed: Any) -> None:
        """make: takes the keyword argument ``seed``."""
        super().__init__(make(seed=seed))
        self._make, self._seed, self._is_fresh = make, seed, True
        # Those of one env, as a pool has them. They stay, and with them what a caller has seeded.
        self.observation_space = self.single_observation_space = self.env.observation_space
        self.action_space = self.single_action_space = self.env.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the first episodes."""
        if seed is not None and not (self._is_fresh and seed == self._seed):
            self.env.close()
            self.env, self._seed = self._make(seed=seed), seed
        self._is_fresh = False
        return self.env.reset(options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs."""
        return self.env.step(actions)
