"""Keeps past versions of a policy in shared memory, which act as its opponents, and how episodes against them ended.

NOTE [Opponent slots]: the learner writes a snapshot of its weights into an empty slot, or over the oldest snapshot.
There is one slot more than the pool has opponents. Once all are full, the oldest is not drawn any more, and episodes
that still play it have a whole interval of snapshots to end before it is replaced. In rows of trajectories the learning
policy has the id 0, and the snapshot in slot k the id k + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.shared.memory import SharedArrays
from sfactory.shared.weights import Bytes, SharedWeights
from sfactory.spec import TensorSpec

Array = npt.NDArray[Any]

EMPTY = -1  # env steps of a slot without a snapshot
RECENT = 100.0  # episodes of one actor that a recent result counts over

_SCORES = (1.0, 0.5, 0.0)
# Columns of results: episodes won, drawn and lost, and recent points and episodes, of which older ones count less.
POINTS, EPISODES = 3, 4


class OpponentPool:
    """Up to ``size`` opponents. weights: of each slot, see NOTE [Opponent slots]."""

    def __init__(self, size: int, weight_bytes: int, num_actors: int) -> None:
        slots = size + 1
        self.size = size
        self.weights = [SharedWeights(weight_bytes, slot + 1) for slot in range(slots)]
        fields = {
            "env_steps": TensorSpec((slots,), "int64"),
            "against": TensorSpec((num_actors, slots), "int64"),  # env steps of the snapshot that results are about
            "results": TensorSpec((num_actors, slots, EPISODES + 1), "float64"),
        }
        self._shared = SharedArrays("opponents", fields)
        self._shared["env_steps"][:] = EMPTY

    def add(self, weights: Bytes, version: int, env_steps: int) -> None:
        """Add a snapshot: ``weights`` [nbytes] uint8 of policy version ``version``. Called by the learner."""
        steps = self._shared["env_steps"]
        slot = int(steps.argmin())
        steps[slot] = EMPTY  # it is not drawn while it is written
        self.weights[slot].publish(weights, version)
        steps[slot] = env_steps

    def newest(self) -> list[int]:
        """Slots of the opponents that may be drawn, the newest snapshot first."""
        steps = self._shared["env_steps"].copy()
        return [int(slot) for slot in np.argsort(-steps)[: self.size] if steps[slot] != EMPTY]

    def env_steps(self, slot: int) -> int:
        """Env steps after which the snapshot in ``slot`` was taken; EMPTY without one."""
        return int(self._shared["env_steps"][slot])

    def record(self, actor: int, slot: int, score: float) -> None:
        """Count an episode of ``actor`` against ``slot``: ``score`` 1 if it was won, 0.5 if drawn, 0 if lost."""
        against, results = self._shared["against"], self._shared["results"][actor, slot]
        if against[actor, slot] != self._shared["env_steps"][slot]:
            results[:] = 0.0
            against[actor, slot] = self._shared["env_steps"][slot]
        results[_SCORES.index(score)] += 1.0
        results[POINTS:] *= 1.0 - 1.0 / RECENT
        results[POINTS] += score
        results[EPISODES] += 1.0

    def results(self) -> Array:
        """[slots, 5] float64 - results of all actors against the present snapshots, in the columns above."""
        current = self._shared["against"] == self._shared["env_steps"]
        results: Array = (self._shared["results"] * current[..., None]).sum(axis=0)
        return results
