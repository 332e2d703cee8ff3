"""Shows agents what they did last and earned for it, as observations that the core reads (``--core_inputs``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfactory.action_heads import DiscreteHead
from sfactory.env.conversion import Rows
from sfactory.spec import LAST_ACTION, LAST_REWARD, EnvSpec


class PreviousSteps:
    """The last action and reward of each of N rows; zeros at the start of an episode.

    The action is one-hot for each discrete head, and for each Box as the policy gave it, neither clipped nor squashed.
    An agent that was inactive meanwhile sees its own last action, and the sum of its rewards since. Envs
    that were stepped before the run began (``--decorrelate_envs_on_one_worker``) begin with zeros, too.
    """

    def __init__(self, spec: EnvSpec, size: int) -> None:
        """``spec`` has core inputs; ``size``: N."""
        self._heads, self._rows = spec.actions, np.arange(size)
        self._last = {path: np.zeros((size, *leaf.shape), np.float32) for path, leaf in spec.obs if leaf.is_core_input}

    @staticmethod
    def of(spec: EnvSpec, size: int) -> PreviousSteps | None:
        """None without core inputs."""
        return PreviousSteps(spec, size) if any(leaf.is_core_input for _, leaf in spec.obs) else None

    def begin_episodes(self, rows: Sequence[int]) -> None:
        """Set ``rows`` to zero."""
        if rows:
            for last in self._last.values():
                last[list(rows)] = 0.0

    def record(self, actions: Rows, rewards: npt.ArrayLike, idle: Sequence[int], first: Sequence[int]) -> None:
        """Take in a step. actions: as in slots. rewards: [N]. idle: rows that did not act. first: rows that begin."""
        if (last := self._last.get(LAST_ACTION)) is not None:
            kept = last[idle] if idle else None
            last.fill(0.0)
            column = 0
            for head in self._heads:
                if isinstance(head, DiscreteHead):
                    last[self._rows, column + actions[head.key]] = 1.0
                    column += head.n
                else:
                    last[:, column : column + head.size] = actions[head.key]
                    column += head.size
            if kept is not None:
                last[idle] = kept
        if (earned := self._last.get(LAST_REWARD)) is not None:
            before = earned[idle] if idle else None
            earned[:, 0] = rewards
            if before is not None:
                earned[idle] += before
        self.begin_episodes(first)

    def write(self, rows: Rows) -> None:
        """Into the observations {path: [N, ...]}."""
        for path, last in self._last.items():
            rows[path][...] = last
