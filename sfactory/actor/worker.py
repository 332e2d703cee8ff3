"""Room: the loop of an actor under central inference. In: replies. Out: requests, trajectories.

get replies -> step the splits they belong to -> put requests. A split that has completed its slot goes on as
soon as the actor owns a free one.
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
        self._watch = Stopwatch(row)
        self._first_wait = FirstWait(len(splits), setup.first_wait_s, setup.control, self._watch)

    def turn(self, timeout: float) -> None:
        """Begin what can be begun, then wait up to ``timeout`` seconds for messages, and do what they ask for."""
        for split in self._splits:
            if split.recorder.waiting_for_slot:
                self._begin(split)
        self._watch.before_wait()
        messages = self._setup.inbox.get(timeout)
        self._watch.after_wait()
        self._row.count_depth(len(messages))
        for message in messages:
            if type(message) is ActReply:
                self.step(self._splits[message.split], message.t)

    def step(self, split: Split, t: int) -> None:
        """Actions for row ``t`` of the split's slot are there: step, record, ask for the next."""
        recorder = split.recorder
        if recorder.waiting_for_slot or recorder.t != t:
            raise SFactoryError(f"split {split.index} got actions for step {t}, which it does not wait for")
        self._row.count_env_steps(split.step())
        if recorder.completed:
            self._outbox.finish(split)
            self._first_wait.completed(split.index)
        else:
            self._ask(split)

    def _begin(self, split: Split) -> None:
        if self._outbox.begin(split):
            self._ask(split)

    def _ask(self, split: Split) -> None:
        recorder = split.recorder
        self._to_policy.put(ActRequest(self._setup.actor, split.index, recorder.slot.index, recorder.t, split.phase))
