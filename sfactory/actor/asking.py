"""Room: what an actor has asked of policies. In: splits with an observation. Out: requests; whether all have answered.

A split asks every policy that plays one of its rows, once, and is stepped when all of them have answered. When a policy
worker was replaced, what the one before has not answered is asked again: see NOTE [Lives].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sfactory.actor.split import Split
from sfactory.errors import SFactoryError
from sfactory.messages import ActReply, ActRequest, ToPolicy
from sfactory.shared.channel import Channel
from sfactory.shared.status import StatusRow


class Asking:
    """Requests of one actor. ``to_policies``: of each policy, the ring of the worker that serves this actor."""

    def __init__(
        self, actor: int, life: int, to_policies: Sequence[Channel[ToPolicy]], splits: Sequence[Split], row: StatusRow
    ) -> None:
        """``life``: of the actor."""
        self._actor, self._life, self._to_policies, self._row = actor, life, to_policies, row
        self._lives = [channel.life for channel in to_policies]
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

    def lives(self) -> list[int]:
        """Which life each policy's worker is in now."""
        return [channel.life for channel in self._to_policies]

    def ask_again(self, lives: list[int], receive: Callable[[float], bool]) -> None:
        """Ask workers that have taken over what those before have not answered and never will.

        lives: what ``lives()`` gave before the last wait: what a dead worker has answered is here by then, and
        ``receive(0)`` takes it in, as long as there is any.
        """
        if lives == self._lives:
            return
        while receive(0):
            pass
        self._lives = lives
        for split in self._splits:
            for policy in sorted(self._awaited[split.index]):
                if self._asked[split.index][policy] < lives[policy]:
                    self._ask(split, policy)

    def _ask(self, split: Split, policy: int) -> None:
        recorder, channel = split.recorder, self._to_policies[policy]
        life = channel.life
        self._asked[split.index][policy] = life
        request = ActRequest(self._actor, split.index, recorder.slot.index, recorder.t, split.phase, self._life)
        self._row.enter_ring()
        channel.put(request, life)
        self._row.leave_ring()
