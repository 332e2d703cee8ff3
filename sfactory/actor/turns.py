"""Credits the turns of agents that act in turn with what follows until the next one.

NOTE [Turns]: where agents act in turn (``AgentsEnv.in_turns``), an agent that does not act waits. Its rows are idle,
and the row of its last turn in the slot is its open turn: it is paid what the agent earns while it waits, it is
terminated if the episode ends then, and what it led to is the agent's next turn. The learner passes over the rows
between (``sfactory/algo/returns.py``). If the agent is truncated while it waits, the next row shows its final
observation, as in NOTE [Agent life]. An open turn has no value after it, and becomes invalid, if the slot ends while
the agent waits, if its env breaks, or if the agent is truncated without an observation.
"""

from __future__ import annotations

import numpy as np

from sfactory.actor.multi_agent_batch import MultiAgentBatch
from sfactory.shared.trajectories import NOBODY, Slot

_NONE = -1


class OpenTurns:
    """The open turns of the N rows of a split; see NOTE [Turns]."""

    def __init__(self, size: int) -> None:
        self._at = np.full(size, _NONE)  # row of the slot

    def begin(self) -> None:
        """A slot begins: no turn of it is open."""
        self._at.fill(_NONE)

    def record(self, slot: Slot, t: int, batch: MultiAgentBatch) -> None:
        """After step ``t``, of which the ends of acting agents and the rewards of all are recorded."""
        at, policy_id = self._at, slot.policy_id
        assert policy_id is not None
        at[policy_id[t] != NOBODY] = t
        waited = np.flatnonzero((at >= 0) & (at < t))
        slot.reward[at[waited], waited] += slot.reward[t, waited]
        for row in batch.died:
            if at[row] >= 0:
                slot.terminated[at[row], row] = True
        self.leave_out(slot, [*batch.lost, *batch.broken])
        for rows in (batch.terminated, batch.truncated, batch.ended, batch.resumed, batch.broken):
            at[rows] = _NONE

    def leave_out(self, slot: Slot, rows: list[int]) -> None:
        """Mark the open turns of ``rows`` as invalid: those of ``batch.absent`` when the slot is complete."""
        for row in rows:
            if self._at[row] >= 0:
                slot.valid[self._at[row], row] = False
