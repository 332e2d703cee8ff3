"""Room: the loop of an actor under central inference. In: replies. Out: requests, trajectories.

get replies -> step the splits that have all of theirs -> put requests. A split that has completed its slot goes on as
soon as the actor owns a free one.
"""

from __future__ import annotations

from sfactory.actor.asking import Asking
from sfactory.actor.decorrelation import FirstWait
from sfactory.actor.outbox import Outbox
from sfactory.actor.setup import ActorSetup
from sfactory.actor.sleepers import Sleepers
from sfactory.actor.split import Split
from sfactory.messages import ActReply
from sfactory.shared.status import StatusRow, Stopwatch


class ActorWorker:
    """Steps splits as their actions arrive."""

    def __init__(self, setup: ActorSetup, splits: list[Split], outbox: Outbox, row: StatusRow) -> None:
        assert setup.to_policies, "central inference needs policy workers to ask"
        self._setup, self._splits, self._outbox, self._row = setup, splits, outbox, row
        self._asking = Asking(setup.actor, setup.inbox.life, setup.to_policies, splits, row)
        layout, sleep = setup.layout, setup.spec.num_agents > 1 and setup.layout.state_size > 0
        self._sleepers = Sleepers(setup.actor, setup.states, layout) if sleep else None
        self._watch = Stopwatch(row)
        self._first_wait = FirstWait(len(splits), setup.first_wait_s, setup.control, self._watch)

    def turn(self, timeout: float) -> None:
        """Begin what can be begun, then wait up to ``timeout`` seconds for messages, and do what they ask for."""
        for split in self._splits:
            if split.recorder.waiting_for_slot and self._outbox.begin(split):
                self._go_on(split)
        lives = self._asking.lives()
        self._receive(timeout)
        self._asking.ask_again(lives, self._receive)

    def _receive(self, timeout: float) -> bool:
        """Wait for messages and do what they ask for; whether there were any."""
        self._watch.before_wait()
        messages = self._setup.inbox.get(timeout)
        self._watch.after_wait()
        self._row.count_depth(len(messages))
        for message in messages:
            if type(message) is ActReply and self._asking.answered(message):
                self._watch.lap()  # each split's step is a piece of work of its own
                split = self._splits[message.split]
                self._step(split)
                self._go_on(split)
        return bool(messages)

    def _go_on(self, split: Split) -> None:
        """Ask for the split's present row; where nobody acts in it, go on to the next, up to the end of the slot."""
        while not split.recorder.waiting_for_slot and not self._asking.ask(split):
            if self._setup.control.stopping:  # a step in which an env fails then records nothing, for ever
                return
            self._step(split)

    def _step(self, split: Split) -> None:
        """The actions for the split's present row are there: step, record; a complete slot goes to its learners."""
        if self._sleepers is not None:
            self._sleepers.carry(split)
        steps = split.step()
        self._outbox.count_steps(split, steps)
        self._row.count_env_steps(steps)
        if split.recorder.completed:
            self._row.enter_ring()
            self._outbox.finish(split)
            self._row.leave_ring()
            self._first_wait.completed(split.index)
