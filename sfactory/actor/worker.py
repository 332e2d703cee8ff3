"""Room: the loop of an actor under central inference. In: replies. Out: requests, trajectories.

get replies -> step the splits they belong to -> put requests. A split that has completed its slot goes on as
soon as the actor owns a free one. When its policy worker was replaced it asks again: see NOTE [Lives].
"""

from __future__ import annotations

from sfactory.actor.decorrelation import FirstWait
from sfactory.actor.outbox import Outbox
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.errors import SFactoryError
from sfactory.messages import ActReply, ActRequest
from sfactory.shared.status import StatusRow, Stopwatch


class ActorWorker:
    """Steps splits as their actions arrive."""

    def __init__(self, setup: ActorSetup, splits: list[Split], outbox: Outbox, row: StatusRow) -> None:
        assert setup.to_policy is not None, "central inference needs a policy worker to ask"
        self._setup, self._splits, self._outbox, self._row = setup, splits, outbox, row
        self._to_policy = setup.to_policy
        self._policy_life = self._to_policy.life
        self._asked = [0] * len(splits)  # which life of the policy worker each split asked last
        self._life = setup.inbox.life
        self._watch = Stopwatch(row)
        self._first_wait = FirstWait(len(splits), setup.first_wait_s, setup.control, self._watch)

    def turn(self, timeout: float) -> None:
        """Begin what can be begun, then wait up to ``timeout`` seconds for messages, and do what they ask for."""
        for split in self._splits:
            if split.recorder.waiting_for_slot:
                self._begin(split)
        policy_life = self._to_policy.life  # looked at before the wait: what a dead worker has answered is here by then
        self._receive(timeout)
        if policy_life != self._policy_life:
            self._ask_again(policy_life)

    def _receive(self, timeout: float) -> bool:
        """Wait for messages and do what they ask for; whether there were any."""
        self._watch.before_wait()
        messages = self._setup.inbox.get(timeout)
        self._watch.after_wait()
        self._row.count_depth(len(messages))
        for message in messages:
            if type(message) is ActReply:
                self._watch.lap()  # each split's step is a piece of work of its own
                self.step(self._splits[message.split], message.t)
        return bool(messages)

    def _ask_again(self, policy_life: int) -> None:
        """Another policy worker has taken over: ask it what the one before has not answered and never will."""
        while self._receive(0):
            pass
        self._policy_life = policy_life
        for split in self._splits:
            if not split.recorder.waiting_for_slot and self._asked[split.index] < policy_life:
                self._ask(split)

    def step(self, split: Split, t: int) -> None:
        """Actions for row ``t`` of the split's slot are there: step, record, ask for the next."""
        recorder = split.recorder
        if recorder.waiting_for_slot or recorder.t != t:
            raise SFactoryError(f"split {split.index} got actions for step {t}, which it does not wait for")
        steps = split.step()
        self._outbox.count_steps(split, steps)
        self._row.count_env_steps(steps)
        if recorder.completed:
            self._row.enter_ring()
            self._outbox.finish(split)
            self._row.leave_ring()
            self._first_wait.completed(split.index)
        else:
            self._ask(split)

    def _begin(self, split: Split) -> None:
        if self._outbox.begin(split):
            self._ask(split)

    def _ask(self, split: Split) -> None:
        recorder, policy_life = split.recorder, self._to_policy.life
        self._asked[split.index] = policy_life
        request = ActRequest(self._setup.actor, split.index, recorder.slot.index, recorder.t, split.phase, self._life)
        self._row.enter_ring()
        self._to_policy.put(request, policy_life)
        self._row.leave_ring()
