"""Room: the loop of an actor that owns a copy of the policy. In: weights, free slots. Out: trajectories.

No message per step: the actor reads its observation from the slot, acts, and writes beside it. Weights are
refreshed at rollout borders, so that a rollout is one policy version's work.
"""

from __future__ import annotations

from sfactory.actor.outbox import Outbox
from sfactory.actor.setup import ActorSetup
from sfactory.actor.split import Split
from sfactory.clock import BLOCK_S
from sfactory.inference.acting import ActingPolicy
from sfactory.shared.status import StatusRow, Stopwatch


class LocalActor:
    """Fills slot after slot, waiting only for a free one."""

    def __init__(
        self, setup: ActorSetup, splits: list[Split], outbox: Outbox, row: StatusRow, policy: ActingPolicy
    ) -> None:
        self._setup, self._splits, self._outbox, self._row, self._policy = setup, splits, outbox, row, policy

    def run(self) -> None:
        """Work until a stop is ordered."""
        control, watch = self._setup.control, Stopwatch(self._row)
        while not control.stopping:
            for split in self._splits:
                if self._begin(split, watch):
                    self._policy.refresh()
                    self._fill(split)

    def _begin(self, split: Split, watch: Stopwatch) -> bool:
        """Wait for a free slot; False if a stop was ordered meanwhile."""
        watch.before_wait()
        self._setup.inbox.get(0)  # wake-ups of slots that were freed while this actor was busy
        while not (begun := self._outbox.begin(split)) and not self._setup.control.stopping:
            self._setup.inbox.get(BLOCK_S)
        watch.after_wait()
        return begun

    def _fill(self, split: Split) -> None:
        recorder, policy, control = split.recorder, self._policy, self._setup.control
        slot = recorder.slot
        while not recorder.completed:
            t = recorder.t
            policy.act_in_slot(slot, t)
            self._row.count_env_steps(split.step())
            if control.stopping:
                return
        self._outbox.finish(split)
