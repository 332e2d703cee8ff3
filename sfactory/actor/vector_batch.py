"""Steps one vector env as the envs of a split.

A vector env resets its envs by itself, in one of two ways (Gymnasium's ``AutoresetMode``):

NEXT_STEP: the step after an end resets instead of stepping. So every end, terminations included, is followed by a row
as in NOTE [Truncation row]; after a termination its value is not used. An end on the last row of a slot leaves that row
to the next slot, as its row 0.

SAME_STEP: the step that ends an episode returns the first observation of the next. The value after a truncated step
would be that of an observation which is no row of the slot, so such a step is not learned from: the step before it
bootstraps from the observation between them, which is a row. A truncated episode costs one row, as in the other mode.
A reward that is paid at a time limit alone is not learned from.

A vector env that raises is recreated as a whole (``FaultHandling``). One that returns invalid data for one of its envs
is reset as a whole, unless all of them have just begun an episode: the last step of all N is discarded, and so are
their episodes. In NEXT_STEP mode the numbers of the final observation of a terminated episode may be any: those that
are invalid are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from sfactory.actor.env_batch import BaseBatch
from sfactory.actor.episode_stats import STATISTICS
from sfactory.env.vector import VectorEnv, autoreset_mode, info_of, infos_of_ends, unreadable, with_lists
from sfactory.errors import Passing

_READ = (*STATISTICS, *(f"_{name}" for name in STATISTICS))  # and their masks


class VectorEnvBatch(BaseBatch):
    """The N envs of one vector env; observations and rewards are arrays over N."""

    _may_share = False  # a vector env has arrays of its own

    def __init__(self, env: VectorEnv) -> None:
        super().__init__([env], env.num_envs)
        self.observations: Any = None
        self.rewards: Any = np.zeros(self.size)
        self._resets_next_step = autoreset_mode(env) is AutoresetMode.NEXT_STEP

    @property
    def first(self) -> list[int]:
        """See BaseBatch."""
        return self.broken + (self.resumed if self._resets_next_step else self.terminated + self.truncated)

    @property
    def unplayed(self) -> list[int]:
        """See BaseBatch."""
        return self.terminated + self.truncated if self._resets_next_step else []

    @property
    def unvalued(self) -> list[int]:
        """See BaseBatch."""
        return self.terminated if self._resets_next_step else []

    def step(self, actions: Any) -> None:
        """Step every env (those that ended with the last step may be reset instead)."""
        if self._resets_next_step:
            self.resumed = self.terminated + self.truncated
        self.broken = []
        try:
            self.observations, self.rewards, terminated, truncated, infos = self._steps[0](actions)
            for what, values in (("rewards", self.rewards), ("terminated", terminated), ("truncated", truncated)):
                if np.shape(values) != (self.size,):  # one number would be taken for that of each env
                    raise ValueError(f"step() gave {what} of shape {np.shape(values)} for {self.size} envs")
            self.terminated = np.flatnonzero(terminated).tolist()
            self.truncated = np.flatnonzero(np.logical_and(truncated, np.logical_not(terminated))).tolist()
        except Passing:
            raise
        except BaseException as error:  # foreign code may raise anything
            self._recreate(0, error)
            self._discard(0)
            return
        if not self._resets_next_step:
            self.lost = self.truncated
        if self.terminated or self.truncated:
            self._note(infos_of_ends(infos))

    def reset_again(self, rows: Sequence[int]) -> Sequence[int]:
        """See BaseBatch. All are reset, so the steps of the others are lost, too."""
        self._reset_again(0)
        self._discard(0)
        return self.broken

    def reset_truncated(self) -> list[int]:
        """No env can be reset alone: the next step resets them, or the last one has."""
        return []

    def _note(self, infos: Any) -> None:
        """Note what ``infos`` say of the episodes that ended with the last step."""
        if self.extras.recorder is None and isinstance(infos, Mapping):
            infos = {key: infos[key] for key in _READ if key in infos}
            if not infos:  # no env's part of it need be looked at
                return
        if problem := unreadable(infos, self.size, STATISTICS):
            self.extras.refuse(problem)
        infos = with_lists(infos, self.size)
        for env in self.terminated + self.truncated:
            self.extras.note(info_of(infos, env, self.size), env)

    def _begin(self, env: int, shown: Any) -> None:
        self.observations, _ = shown

    def _shown(self, env: int) -> Any:
        return self.observations

    def _discard(self, env: int) -> None:
        self.rewards = np.zeros(self.size)  # that of the env may be read-only
        super()._discard(env)
