"""Room: a vector env as the envs of one split. In: an array of actions. Out: arrays, and lists of what ended.

A vector env resets its envs by itself, in one of two ways (Gymnasium's ``AutoresetMode``):

NEXT_STEP: the step after an end resets instead of stepping. So every end, terminations included, is followed by what
NOTE [Truncation row] calls a truncation row; after a termination nothing asks for its value. An end on the last row
of a slot leaves that row to the next slot, whose row 0 it is.

SAME_STEP: the step that ends an episode gives the first observation of the next. The value after a truncated step
would be that of an observation which is no row of the slot, so such a step is not learned from: the one before it
looks ahead to the value of the observation between them, which is a row. Nothing is biased, and a truncated episode
costs one row, as in the other mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from sfactory.actor.episodes import EXTRA_STATS, ExtraTally
from sfactory.actor.group import BeforeEach
from sfactory.env.close import close_env
from sfactory.env.vector import VectorEnv, autoreset_mode, info_of_end, infos_of_ends
from sfactory.messages import TRUE_OBJECTIVE


class VectorGroup:
    """The N envs of one vector env. Attributes as in ``Group``; observations and rewards are arrays over N."""

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.observations: Any = None
        self.rewards: Any = np.zeros(env.num_envs)
        self.terminated: list[int] = []
        self.truncated: list[int] = []
        self.resumed: list[int] = []
        self.lost: list[int] = []
        self.extras = ExtraTally()
        self._resets_next_step = autoreset_mode(env) is AutoresetMode.NEXT_STEP

    @property
    def size(self) -> int:
        """N."""
        return self.env.num_envs

    @property
    def first(self) -> list[int]:
        """Envs whose current observation is the first of an episode."""
        return self.resumed if self._resets_next_step else self.terminated + self.truncated

    def reset(self, seeds: Sequence[int], before_each: BeforeEach | None = None) -> None:
        """Reset all envs at once. Of ``seeds`` the first is used: not every vector env takes more than one."""
        if before_each is not None:
            before_each()
        self.observations, _ = self.env.reset(seed=seeds[0])

    def step(self, actions: Any) -> None:
        """Step every env (those that ended with the last step may be reset instead)."""
        if self._resets_next_step:
            self.resumed = self.terminated + self.truncated
        self.observations, self.rewards, terminated, truncated, infos = self.env.step(actions)
        self.terminated = _where(terminated)
        self.truncated = _where(np.logical_and(truncated, np.logical_not(terminated)))
        if not self._resets_next_step:
            self.lost = self.truncated
        if self.terminated or self.truncated:
            self._add_extras(infos)

    def reset_truncated(self) -> list[int]:
        """None can be reset alone: they are reset by the next step, or have been by the last."""
        return []

    def close(self, name: str) -> None:
        """Close the vector env."""
        close_env(self.env, name)

    def _add_extras(self, infos: Mapping[str, Any]) -> None:
        told = infos_of_ends(infos)
        if EXTRA_STATS in told or TRUE_OBJECTIVE in told:  # else nobody need look at what each env tells
            for env in self.terminated + self.truncated:
                self.extras.add(info_of_end(infos, env))


def _where(mask: npt.ArrayLike) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found
