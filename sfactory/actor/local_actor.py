"""The actor under local inference: it owns a copy of each policy and waits only for free slots.

No message is sent per step: the actor reads its observation from the slot, acts, and writes the action beside it.
Weights are refreshed at rollout borders, so that a rollout is collected with one policy version.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sfactory.actor.base_actor import Actor
from sfactory.actor.env_restarts import StopOrdered
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.inference.acting_policy import ActingPolicy, ObsRows
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import Slot


class SlotActing:
    """Acts with policies on the CPU in rows of slots, and records RNN states where the learner needs them."""

    def __init__(self, policies: Sequence[ActingPolicy], recurrence: int) -> None:
        """``recurrence``: steps between two states that are recorded."""
        self.policies = policies
        self._remembers = policies[0].state_size > 0
        self._recurrence = recurrence
        self._rows = ObsRows()

    def act(self, slot: Slot, t: int, state: Tensor, present: Sequence[int] = (0,)) -> Tensor:
        """Act on row ``t`` of ``slot``, and write actions, log-probs, values and policy versions into it.

        state: [N, S] float32, after row t-1. present: the policies that act in the row. Returns the state after row t,
        which is the one before it where no policy acts.
        """
        if self._remembers:
            first = slot.is_first[t]
            if first.any():
                state = state.masked_fill(torch.from_numpy(first).unsqueeze(-1), 0.0)
            if t % self._recurrence == 0:
                slot.rnn_states[t // self._recurrence] = state.numpy()
        obs = self._rows.row(slot, t)
        for policy in present:
            state = self._act(policy, slot, t, obs, state)
        if self._remembers and t + 1 == len(slot.value):
            slot.rnn_states[-1] = state.numpy()
            state = state.clone()  # it may be a view of observations in the slot, which is not this actor's from now on
        return state

    def _act(self, policy: int, slot: Slot, t: int, obs: dict[str, Tensor], state: Tensor) -> Tensor:
        """The rows of one policy; returns the state with theirs replaced."""
        rows, acting = slot.rows_of(policy, t), self.policies[policy]
        if isinstance(rows, slice):
            acted = acting.act(obs, state)
            state = acted.state
        else:
            index = torch.from_numpy(rows)
            acted = acting.act({path: obs[path][index] for path in acting.paths}, state[index])
            if self._remembers:
                state = state.index_copy(0, index, acted.state)
        for key, actions in acted.actions.items():
            slot.actions[key][t, rows] = actions.numpy()
        slot.log_prob[t, rows] = acted.log_prob.numpy()
        slot.value[t, rows] = acted.value.numpy()
        slot.policy_version[t, rows] = acting.version
        return state


class LocalActor(Actor):
    """Fills slot after slot, waiting only for a free one."""

    def __init__(self, setup: ActorSetup, splits: list[Split], row: StatusRow, policies: list[ActingPolicy]) -> None:
        super().__init__(setup, splits, row)
        layout = setup.shared.layout
        self._control, self._policies = setup.shared.control, policies
        self._acting = SlotActing(policies, layout.recurrence)
        self._states = [policies[0].fresh_state(layout.rows) for _ in splits]

    def turn(self, timeout: float) -> None:
        """Fill a slot for each split that gets one, waiting up to ``timeout`` seconds if none does."""
        inbox, watch, control = self._inbox, self._watch, self._control
        inbox.get(0)  # wake-ups for slots that were freed while this actor was busy
        try:
            begun = [split for split in self._splits if self._output.begin(split)]
            if not begun:
                watch.before_wait()
                inbox.get(timeout)
                watch.after_wait()
                begun = [split for split in self._splits if self._output.begin(split)]
            for split in begun:
                for policy in split.may_play:
                    self._policies[policy].refresh()
                slot, state = split.slot, self._states[split.index]
                while not split.needs_slot and not control.stopping:
                    watch.lap()  # a rollout may take long without a wait in it
                    state = self._acting.act(slot, split.t, state, split.policies)
                    self._step(split)
                self._states[split.index] = state
        except StopOrdered:
            return  # see NOTE [Stop during a restart]
