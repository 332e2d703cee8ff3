"""Room: the loop of an actor under central inference. In: replies. Out: requests, trajectories.

get replies -> step the splits that have all of theirs -> put requests. A split that has completed its slot goes on as
soon as the actor owns a free one.

Room: what an actor has asked of policies. In: splits with an observation. Out: requests; whether all have answered.

A split asks every policy that plays one of its rows, once, and is stepped when all of them have answered. When a policy
worker was replaced, what the one before has not answered is asked again: see NOTE [Lives].

Room: the memory of agents that sleep. In: a row in which nobody acts for them. Out: the same states, one phase on.

A state is written by whoever acts (NOTE [State phases]). For a row that nobody acts in the actor carries it on, so that
an agent that wakes up remembers what it did when it fell asleep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sfactory.actor.decorrelation import FirstWait
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.actor.trajectory_output import TrajectoryOutput
from sfactory.errors import SFactoryError
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest, ToPolicy
from sfactory.shared.channel import Channel
from sfactory.shared.status import StatusRow, Stopwatch
from sfactory.shared.trajectories import NOBODY, RnnStates


class RequestTracker:
    """Requests of one actor. ``to_policies``: of each policy, the ring of the worker that serves this actor."""

    def __init__(
        self,
        actor: int,
        incarnation: int,
        to_policies: Sequence[Channel[ToPolicy]],
        splits: Sequence[Split],
        row: StatusRow,
    ) -> None:
        """``incarnation``: of the actor."""
        self._actor, self._incarnation, self._to_policies, self._row = actor, incarnation, to_policies, row
        self._incarnations = [channel.incarnation for channel in to_policies]
        # By split: which policies have not answered, and which life of each policy's worker was asked last.
        self._awaited: list[set[int]] = [set() for _ in splits]
        self._asked = [[0] * len(to_policies) for _ in splits]
        self._splits = splits

    def ask(self, split: Split) -> bool:
        """Ask for the split's present row; False if nobody acts in it, and it can be stepped at once."""
        for policy in split.policies:
            self._awaited[split.index].add(policy)
            self._ask(split, policy)
        return bool(split.policies)

    def answered(self, reply: ActReply) -> bool:
        """A policy has answered; whether all have."""
        split = self._splits[reply.split]
        awaited, recorder = self._awaited[reply.split], split.recorder
        if reply.policy not in awaited or recorder.waiting_for_slot or recorder.t != reply.t:
            raise SFactoryError(
                f"split {reply.split} got actions of policy {reply.policy} for step {reply.t}, which it does not "
                "wait for"
            )
        awaited.remove(reply.policy)
        return not awaited

    def incarnations(self) -> list[int]:
        """Which life each policy's worker is in now."""
        return [channel.incarnation for channel in self._to_policies]

    def ask_again(self, incarnations: list[int], receive: Callable[[float], bool]) -> None:
        """Repeat to replaced policy workers the requests that their dead predecessors did not answer.

        incarnations: what ``incarnations()`` returned before the last wait. Answers of a dead worker have arrived by
        then; ``receive(0)`` reads them.
        """
        if incarnations == self._incarnations:
            return
        while receive(0):
            pass
        self._incarnations = incarnations
        for split in self._splits:
            for policy in sorted(self._awaited[split.index]):
                if self._asked[split.index][policy] < incarnations[policy]:
                    self._ask(split, policy)

    def _ask(self, split: Split, policy: int) -> None:
        recorder, channel = split.recorder, self._to_policies[policy]
        incarnation = channel.incarnation
        self._asked[split.index][policy] = incarnation
        request = ActRequest(self._actor, split.index, recorder.slot.index, recorder.t, split.phase, self._incarnation)
        self._row.enter_ring()
        channel.put(request, incarnation)
        self._row.leave_ring()


class IdleAgentStates:
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


class ActorWorker:
    """Steps splits as their actions arrive."""

    def __init__(self, setup: ActorSetup, splits: list[Split], output: TrajectoryOutput, row: StatusRow) -> None:
        assert setup.to_policies, "central inference needs policy workers to ask"
        self._setup, self._splits, self._output, self._row = setup, splits, output, row
        self._requests = RequestTracker(setup.actor, setup.inbox.incarnation, setup.to_policies, splits, row)
        layout, sleep = setup.layout, setup.spec.num_agents > 1 and setup.layout.state_size > 0
        self._idle_agents = IdleAgentStates(setup.actor, setup.states, layout) if sleep else None
        self._watch = Stopwatch(row)
        self._first_wait = FirstWait(len(splits), setup.first_wait_s, setup.control, self._watch)

    def turn(self, timeout: float) -> None:
        """Begin what can be begun, then wait up to ``timeout`` seconds for messages, and do what they ask for."""
        for split in self._splits:
            if split.recorder.waiting_for_slot and self._output.begin(split):
                self._go_on(split)
        incarnations = self._requests.incarnations()
        self._receive(timeout)
        self._requests.ask_again(incarnations, self._receive)

    def _receive(self, timeout: float) -> bool:
        """Wait for messages and do what they ask for; whether there were any."""
        self._watch.before_wait()
        messages = self._setup.inbox.get(timeout)
        self._watch.after_wait()
        self._row.count_depth(len(messages))
        for message in messages:
            if type(message) is ActReply and self._requests.answered(message):
                self._watch.lap()  # each split's step is a piece of work of its own
                split = self._splits[message.split]
                self._step(split)
                self._go_on(split)
        return bool(messages)

    def _go_on(self, split: Split) -> None:
        """Ask for the split's present row; where nobody acts in it, go on to the next, up to the end of the slot."""
        while not split.recorder.waiting_for_slot and not self._requests.ask(split):
            if self._setup.control.stopping:  # a step in which an env fails then records nothing, for ever
                return
            self._step(split)

    def _step(self, split: Split) -> None:
        """The actions for the split's present row are there: step, record; a complete slot goes to its learners."""
        if self._idle_agents is not None:
            self._idle_agents.carry(split)
        steps = split.step()
        self._output.count_steps(split, steps)
        self._row.count_env_steps(steps)
        if split.recorder.completed:
            self._row.enter_ring()
            self._output.finish(split)
            self._row.leave_ring()
            self._first_wait.completed(split.index)
