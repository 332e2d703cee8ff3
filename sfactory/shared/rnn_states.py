"""Room: what the policy remembers of every env, between its steps. In: states after a step. Out: those before the next.

NOTE [State phases]: every split has two states, and a step reads the one of its phase and writes the other, so that a
request may be answered twice: the second answer reads what the first one read. The phase is the actor's: it flips with
every step of the split and travels with the request. Who reads a state zeroes the rows whose observation is the first
of an episode; doing so twice changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from sfactory.layout import Layout
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec


class RnnStates:
    """[2, actor x splits + split, N, S] float32 in shared memory. Used with central inference."""

    def __init__(self, layout: Layout) -> None:
        self._splits = layout.splits
        self._shared = SharedArrays("rnn-states", {"states": _states(layout)})

    @staticmethod
    def bytes_needed(layout: Layout) -> int:
        """Bytes that the states of a layout take."""
        return _states(layout).nbytes

    def of(self, phase: int, actor: int, split: int) -> npt.NDArray[Any]:
        """[N, S] of a split: before the step of ``phase``."""
        state: npt.NDArray[Any] = self._shared["states"][phase, actor * self._splits + split]
        return state


def _states(layout: Layout) -> TensorSpec:
    return TensorSpec((2, layout.num_splits, layout.rows, layout.state_size), "float32")
