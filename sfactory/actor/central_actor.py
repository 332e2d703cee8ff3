"""The actor under central inference: receive replies, step the splits that have all of theirs, send requests.

A split asks the worker of every policy that acts in one of its rows, once, and is stepped when all of them have
answered. When a policy worker is replaced, requests that its predecessor did not answer are sent again: see NOTE
[Incarnations].

The RNN state of a row is written by the policy worker that acts in it (NOTE [State phases]). For a row in which no
policy acts the actor copies the state to the next phase, so that an agent that wakes up remembers what it knew when it
fell asleep.
"""

from __future__ import annotations

import numpy as np

from sfactory.actor.base_actor import Actor
from sfactory.actor.env_restarts import StopOrdered
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.errors import SFactoryError
from sfactory.messages import ActReply, ActRequest
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import NOBODY


class CentralActor(Actor):
    """Steps splits as their actions arrive from policy workers."""

    def __init__(self, setup: ActorSetup, splits: list[Split], row: StatusRow) -> None:
        super().__init__(setup, splits, row)
        shared, layout = setup.shared, setup.shared.layout
        self._actor, self._incarnation = setup.actor, self._inbox.incarnation
        self._to_policies = setup.to_policies
        self._known_incarnations = self._incarnations()
        # By split: policies that have not answered, and which incarnation of each policy's worker was asked last.
        self._awaited: list[set[int]] = [set() for _ in splits]
        self._asked = [[0] * len(self._to_policies) for _ in splits]
        self._keeps_states = bool(shared.spec.agents) and layout.state_size > 0
        self._states, self._recurrence, self._rollout = shared.states, layout.recurrence, layout.rollout

    def turn(self, timeout: float) -> None:
        """Start splits for which there is a slot, then wait up to ``timeout`` seconds for messages and handle them."""
        inbox, watch = self._inbox, self._watch
        try:
            for split in self._splits:
                if split.needs_slot and self._output.begin(split):
                    self._ask(split)
            incarnations = self._incarnations()
            watch.before_wait()
            messages = inbox.get(timeout)
            watch.after_wait()
            replaced = incarnations != self._known_incarnations
            while replaced and (more := inbox.get(0)):
                messages = [*messages, *more]
            self._row.count_depth(len(messages))
            for message in messages:
                if type(message) is ActReply and self._answered(message):
                    split = self._splits[message.split]
                    self._step(split)
                    self._ask(split)
            if replaced:
                self._repeat(incarnations)
        except StopOrdered:
            return  # see NOTE [Stop during a restart]

    def _incarnations(self) -> list[int]:
        """The current incarnation of each policy's worker."""
        return [channel.incarnation for channel in self._to_policies]

    def _ask(self, split: Split) -> None:
        """Ask for actions; where no policy acts, step on to the next row, up to the end of the slot."""
        while not split.needs_slot:
            asked = split.asked
            for policy in asked:
                self._awaited[split.index].add(policy)
                self._send(split, policy)
            if asked:
                return
            self._step(split)

    def _step(self, split: Split) -> None:
        self._watch.lap()  # each step is timed on its own
        if self._keeps_states:
            self._carry_states(split)
        super()._step(split)

    def _send(self, split: Split, policy: int) -> None:
        channel = self._to_policies[policy]
        incarnation = channel.incarnation
        self._asked[split.index][policy] = incarnation
        request = ActRequest(self._actor, split.index, split.slot.index, split.t, split.phase, self._incarnation)
        self._row.enter_ring()
        channel.put(request, incarnation)
        self._row.leave_ring()

    def _answered(self, reply: ActReply) -> bool:
        """A policy has answered; whether all have."""
        split, awaited = self._splits[reply.split], self._awaited[reply.split]
        if reply.policy not in awaited or split.needs_slot or split.t != reply.t:
            raise SFactoryError(
                f"split {reply.split} got actions of policy {reply.policy} for step {reply.t}, which it does not "
                "wait for"
            )
        awaited.remove(reply.policy)
        return not awaited

    def _repeat(self, incarnations: list[int]) -> None:
        """Repeat to replaced policy workers the requests that their predecessors did not answer.

        incarnations: of the workers before the inbox was read. All answers of their predecessors had arrived by then.
        """
        self._known_incarnations = incarnations
        for split in self._splits:
            for policy in sorted(self._awaited[split.index]):
                if self._asked[split.index][policy] < incarnations[policy]:
                    self._send(split, policy)

    def _carry_states(self, split: Split) -> None:
        """Before the split's step: copy the RNN states of rows in which no policy acts to the next phase.

        They are recorded in the slot where the learner needs them.
        """
        slot, t, actor = split.slot, split.t, self._actor
        assert slot.policy_id is not None
        rows = np.flatnonzero(slot.policy_id[t] == NOBODY)
        if not len(rows):
            return
        kept = self._states.of(split.phase, actor, split.index)[rows]
        kept[slot.is_first[t, rows]] = 0.0
        self._states.of(1 - split.phase, actor, split.index)[rows] = kept
        if t % self._recurrence == 0:
            slot.rnn_states[t // self._recurrence, rows] = kept
        if t + 1 == self._rollout:
            slot.rnn_states[-1, rows] = kept
