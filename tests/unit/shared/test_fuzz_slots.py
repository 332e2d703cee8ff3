"""The table of slots against a model in plain Python: whatever is done in whatever order, both say the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sfactory.shared.slots import IllegalTransition, SlotState, SlotTable

MOST = 3  # actors, splits, slots of a split, policies


@dataclass
class ModelSlot:
    """What is known of one slot. waiting: the policies that have not released it yet. steps: by policy."""

    filling: bool = False
    waiting: set[int] = field(default_factory=set)
    fillings: int = 0
    steps: Counter[int] = field(default_factory=Counter)  # of the present filling, or the last one

    @property
    def state(self) -> SlotState:
        if self.filling:
            return SlotState.FILLING
        return SlotState.READY if self.waiting else SlotState.FREE


class SlotMachine(RuleBasedStateMachine):
    """Any of the three moves on any slot, legal or not. What the model forbids is refused and changes nothing."""

    table_type: type[SlotTable] = SlotTable

    @initialize(sizes=st.tuples(*[st.integers(1, MOST)] * 4))
    def make(self, sizes: tuple[int, int, int, int]) -> None:
        """A table of any shape."""
        self.actors, self.splits, self.per_split, self.policies = sizes
        self.table = self.table_type(*sizes)
        self.model = [ModelSlot() for _ in range(self.actors * self.splits * self.per_split)]

    def slot(self, number: int) -> int:
        return number % len(self.model)

    def tried(self, legal: bool, move: Any, *arguments: int) -> None:
        if legal:
            move(*arguments)
        else:
            with pytest.raises(IllegalTransition):
                move(*arguments)

    @rule(number=st.integers(0, MOST**3))
    def begin(self, number: int) -> None:
        """An actor begins a slot."""
        slot = self.slot(number)
        modelled = self.model[slot]
        legal = modelled.state is SlotState.FREE
        self.tried(legal, self.table.begin, slot)
        if legal:
            modelled.filling = True
            modelled.fillings += 1
            modelled.steps = Counter()

    @rule(number=st.integers(0, MOST**3), policies=st.sets(st.integers(0, MOST - 1)))
    def publish(self, number: int, policies: set[int]) -> None:
        """An actor publishes a slot, to those who have rows in it: to nobody, perhaps."""
        slot, these = self.slot(number), {policy % self.policies for policy in policies}
        modelled = self.model[slot]
        legal = modelled.state is SlotState.FILLING
        self.tried(legal, self.table.publish, slot, *sorted(these))
        if legal:
            modelled.filling = False
            modelled.waiting |= these

    @rule(number=st.integers(0, MOST**3), policy=st.integers(0, MOST - 1))
    def release(self, number: int, policy: int) -> None:
        """A learner releases a slot."""
        slot, policy = self.slot(number), policy % self.policies
        modelled = self.model[slot]
        legal = policy in modelled.waiting
        self.tried(legal, self.table.release, slot, policy)
        modelled.waiting.discard(policy)

    @rule(number=st.integers(0, MOST**3), steps=st.integers(0, 100), policy=st.integers(0, MOST - 1))
    def count(self, number: int, steps: int, policy: int) -> None:
        """An actor has taken steps with a policy, which lie in a slot that it is filling."""
        slot, policy = self.slot(number), policy % self.policies
        if self.model[slot].filling:
            self.table.count_steps(slot, steps, policy)
            self.model[slot].steps[policy] += steps

    @rule(actor=st.integers(0, MOST - 1))
    def reclaim(self, actor: int) -> None:
        """An actor has died, and main takes back what it was filling."""
        actor %= self.actors
        filling = [self.model[slot] for slot in self.table.slots_of(actor) if self.model[slot].filling]
        assert self.table.reclaim(actor) == sum(modelled.steps.total() for modelled in filling)
        for modelled in filling:
            modelled.filling = False

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        """Of every slot: state, for whom it is ready, and number of fillings; and how many steps somebody waits for."""
        if hasattr(self, "table"):
            found = [(self.table.state(slot), self.table.generation(slot)) for slot in range(len(self.model))]
            assert found == [(modelled.state, modelled.fillings) for modelled in self.model]
            for slot, modelled in enumerate(self.model):
                waiting = {policy for policy in range(self.policies) if self.table.is_ready_for(slot, policy)}
                assert waiting == modelled.waiting
                assert self.table.waiting_for(slot) == sorted(waiting)
                steps = [self.table.steps(slot, policy) for policy in range(self.policies)]
                assert steps == [modelled.steps[policy] for policy in range(self.policies)]
            filling = [modelled.steps.total() for modelled in self.model if modelled.filling]
            waiting_steps = [modelled.steps[policy] for modelled in self.model for policy in modelled.waiting]
            assert self.table.steps_held() == sum(filling) + sum(waiting_steps)

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        """Actors' slots are apart, in order, and all that there are; so are those of splits."""
        if hasattr(self, "table"):
            splits = [
                (actor, list(self.table.slots_of_split(actor, split)))
                for actor in range(self.actors)
                for split in range(self.splits)
            ]
            assert [slot for _, slots in splits for slot in slots] == list(range(len(self.model)))
            assert all(self.table.owner(slot) == actor for actor, slots in splits for slot in slots)
            assert all(slot in self.table.slots_of(actor) for actor, slots in splits for slot in slots)


SETTINGS = settings(max_examples=100, stateful_step_count=40, deadline=None, database=None)


def test_the_table_and_the_model_agree_whatever_is_done() -> None:
    run_state_machine_as_test(SlotMachine, settings=SETTINGS)


class BeginsWhatIsReady(SlotTable):
    """Loses trajectories: an actor may begin a slot that the learner has not read."""

    def begin(self, slot: int) -> None:
        """Looks at its own byte alone."""
        if self.state(slot) is SlotState.FILLING:
            raise IllegalTransition("it is being filled")
        self._shared["generation"][slot] += 1
        self._shared["filling"][slot] = 1


class PublishesWhatIsFree(SlotTable):
    """Hands out slots that nobody has filled."""

    def publish(self, slot: int, *policies: int) -> None:
        """Looks at nothing."""
        self._shared["pending"][slot, list(policies)] = 1
        self._shared["filling"][slot] = 0


class PublishesForTheFirst(SlotTable):
    """Whichever policy a slot was filled for, it goes to the first."""

    def publish(self, slot: int, *policies: int) -> None:
        """Looks at the slot alone."""
        super().publish(slot, 0)


class ReleasesTwice(SlotTable):
    """Takes a second release for a first."""

    def release(self, slot: int, policy: int) -> None:
        """Looks at nothing."""
        self._shared["pending"][slot, policy] = 0


class StaysFilling(SlotTable):
    """A published slot still belongs to its actor."""

    def publish(self, slot: int, *policies: int) -> None:
        """Leaves the other byte as it is."""
        super().publish(slot, *policies)
        self._shared["filling"][slot] = 1


class CountsForTheFirst(SlotTable):
    """Whoever took the steps, they are the first policy's."""

    def count_steps(self, slot: int, steps: int, policy: int = 0) -> None:
        """Looks at the slot alone."""
        super().count_steps(slot, steps)


class LosesWhatItTakesBack(SlotTable):
    """Takes slots back from the dead, and says that nothing was in them."""

    def reclaim(self, actor: int) -> int:
        """Keeps the count for itself."""
        super().reclaim(actor)
        return 0


class CountsNoFillings(SlotTable):
    """A slot's generation stands still."""

    def begin(self, slot: int) -> None:
        """Takes the count back."""
        super().begin(slot)
        self._shared["generation"][slot] -= 1


class SharesASlot(SlotTable):
    """Two splits of one actor have a slot in common."""

    def slots_of_split(self, actor: int, split: int) -> range:
        """One slot too early from the second split on."""
        slots = super().slots_of_split(actor, split)
        return slots if split == 0 else range(slots.start - 1, slots.stop - 1)


# The same moves every time, and no search for the shortest: that it is caught is all that is asked.
OF_WRONG_TABLES = settings(SETTINGS, derandomize=True, phases=[Phase.generate], print_blob=False)
WRONG_TABLES: list[type[SlotTable]] = [
    BeginsWhatIsReady,
    PublishesWhatIsFree,
    PublishesForTheFirst,
    ReleasesTwice,
    StaysFilling,
    CountsForTheFirst,
    LosesWhatItTakesBack,
    CountsNoFillings,
    SharesASlot,
]


@pytest.mark.parametrize("wrong", WRONG_TABLES, ids=lambda wrong: wrong.__name__)
def test_a_table_with_a_wrong_transition_is_caught(wrong: type[SlotTable]) -> None:
    machine = type("Wrong", (SlotMachine,), {"table_type": wrong})

    with pytest.raises((AssertionError, pytest.fail.Exception, IllegalTransition)):
        run_state_machine_as_test(machine, settings=OF_WRONG_TABLES)
