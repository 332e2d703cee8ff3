"""Room: the memory of agents that sleep. In: a row in which nobody acts for them. Out: the same states, one phase on.

A state is written by whoever acts (NOTE [State phases]). For a row that nobody acts in the actor carries it on, so that
an agent that wakes up remembers what it did when it fell asleep.
"""

from __future__ import annotations

import numpy as np

from sfactory.actor.split import Split
from sfactory.layout import Layout
from sfactory.shared.rnn_states import RnnStates
from sfactory.shared.trajectories import NOBODY


class Sleepers:
    """Of one actor, under central inference."""

    def __init__(self, actor: int, states: RnnStates, layout: Layout) -> None:
        self._actor, self._states = actor, states
        self._recurrence, self._rollout = layout.recurrence, layout.rollout

    def carry(self, split: Split) -> None:
        """Before the split's step: what is remembered of the rows that nobody acts in stays what it is."""
        slot, t = split.recorder.slot, split.recorder.t
        assert slot.policy_id is not None
        rows = np.flatnonzero(slot.policy_id[t] == NOBODY)
        if not len(rows):
            return
        states = self._states.of(split.phase, self._actor, split.index)[rows]
        states[slot.is_first[t, rows]] = 0.0
        self._states.of(1 - split.phase, self._actor, split.index)[rows] = states
        if t % self._recurrence == 0:
            slot.rnn_states[t // self._recurrence, rows] = states
        if t + 1 == self._rollout:
            slot.rnn_states[-1, rows] = states
