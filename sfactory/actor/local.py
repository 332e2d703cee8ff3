"""Room: the loop of an actor that owns a copy of each policy. In: weights, free slots. Out: trajectories.

No message per step: the actor reads its observation from the slot, acts, and writes beside it. Weights are
refreshed at rollout borders, so that a rollout is one policy version's work.
"""

from __future__ import annotations

from sfactory.actor.decorrelation import FirstWait
from sfactory.actor.outbox import Outbox
from sfactory.actor.setup import ActorSetup
from sfactory.actor.slot_acting import SlotActing
from sfactory.actor.split import Split
from sfactory.inference.acting import ActingPolicy
from sfactory.shared.status import StatusRow, Stopwatch


class LocalActor:
    """Fills slot after slot, waiting only for a free one."""

    def __init__(
        self, setup: ActorSetup, splits: list[Split], outbox: Outbox, row: StatusRow, policies: list[ActingPolicy]
    ) -> None:
        self._setup, self._splits, self._outbox, self._row, self._policies = setup, splits, outbox, row, policies
        self._acting = SlotActing(policies, setup.layout.recurrence)
        self._watch = Stopwatch(row)
        self._first_wait = FirstWait(len(splits), setup.first_wait_s, setup.control, self._watch)
        self._states = [policies[0].fresh_state(setup.layout.rows) for _ in splits]

    def turn(self, timeout: float) -> None:
        """Fill a slot for each split that gets one, waiting up to ``timeout`` seconds if none does."""
        for split in self._begin(timeout):
            for policy in split.may_play:
                self._policies[policy].refresh()
            self._fill(split)

    def _begin(self, timeout: float) -> list[Split]:
        """Give free slots to splits, waiting for one if there is none; returns the splits that got one."""
        self._setup.inbox.get(0)  # wake-ups of slots that were freed while this actor was busy
        begun = [split for split in self._splits if self._outbox.begin(split)]
        if begun:
            return begun
        self._watch.before_wait()
        self._setup.inbox.get(timeout)
        self._watch.after_wait()
        return [split for split in self._splits if self._outbox.begin(split)]

    def _fill(self, split: Split) -> None:
        recorder, acting, control = split.recorder, self._acting, self._setup.control
        slot = recorder.slot
        while not recorder.completed:
            self._watch.lap()  # a rollout may take long without a wait in it
            states = self._states
            states[split.index] = acting.act(slot, recorder.t, states[split.index], split.policies)
            steps = split.step()
            self._outbox.count_steps(split, steps)
            self._row.count_env_steps(steps)
            if control.stopping:
                return
        self._row.enter_ring()
        self._outbox.finish(split)
        self._row.leave_ring()
        self._first_wait.completed(split.index)
