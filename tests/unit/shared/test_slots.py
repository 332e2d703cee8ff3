"""The slot table agrees with a model in plain Python after any sequence of moves, and describes refused ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sfactory.shared.slots import IllegalTransition, SlotState, SlotTable

MOST = 3  # actors, splits, slots of a split, policies
NUMBER, POLICY = st.integers(0, MOST**3), st.integers(0, MOST - 1)


@dataclass
class ModelSlot:
    """waiting: the policies that have not released the slot. steps: by policy, of the current or last filling."""

    filling: bool = False
    waiting: set[int] = field(default_factory=set)
    fillings: int = 0
    steps: Counter[int] = field(default_factory=Counter)

    @property
    def state(self) -> SlotState:
        if self.filling:
            return SlotState.FILLING
        return SlotState.READY if self.waiting else SlotState.FREE


class SlotMachine(RuleBasedStateMachine):
    """Any move on any slot, legal or not. Moves that the model forbids are refused and change nothing."""

    @initialize(sizes=st.tuples(*[st.integers(1, MOST)] * 4))
    def make(self, sizes: tuple[int, int, int, int]) -> None:
        self.actors, self.splits, self.per_split, self.policies = sizes
        self.table = SlotTable(*sizes)
        self.model = [ModelSlot() for _ in range(self.actors * self.splits * self.per_split)]

    def try_move(self, legal: bool, move: Any, *arguments: int) -> None:
        if legal:
            move(*arguments)
        else:
            with pytest.raises(IllegalTransition):
                move(*arguments)

    @rule(number=NUMBER)
    def begin(self, number: int) -> None:
        slot = number % len(self.model)
        modelled = self.model[slot]
        legal = modelled.state is SlotState.FREE
        self.try_move(legal, self.table.begin, slot)
        if legal:
            modelled.filling = True
            modelled.fillings += 1
            modelled.steps = Counter()

    @rule(number=NUMBER, policies=st.sets(POLICY))
    def publish(self, number: int, policies: set[int]) -> None:
        slot, these = number % len(self.model), {policy % self.policies for policy in policies}
        modelled = self.model[slot]
        legal = modelled.state is SlotState.FILLING
        self.try_move(legal, self.table.publish, slot, *sorted(these))
        if legal:
            modelled.filling = False
            modelled.waiting |= these

    @rule(number=NUMBER, policy=POLICY)
    def release(self, number: int, policy: int) -> None:
        slot, policy = number % len(self.model), policy % self.policies
        modelled = self.model[slot]
        self.try_move(policy in modelled.waiting, self.table.release, slot, policy)
        modelled.waiting.discard(policy)

    @rule(number=NUMBER, steps=st.integers(0, 100), policy=POLICY)
    def count(self, number: int, steps: int, policy: int) -> None:
        slot, policy = number % len(self.model), policy % self.policies
        if self.model[slot].filling:
            self.table.count_steps(slot, steps, policy)
            self.model[slot].steps[policy] += steps

    @rule(actor=st.integers(0, MOST - 1))
    def reclaim(self, actor: int) -> None:
        actor %= self.actors
        filling = [self.model[slot] for slot in self.table.slots_of(actor) if self.model[slot].filling]
        assert self.table.reclaim(actor) == sum(modelled.steps.total() for modelled in filling)
        for modelled in filling:
            modelled.filling = False

    @invariant()
    def table_equals_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
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


def test_table_agrees_with_the_model_after_any_moves() -> None:
    run_state_machine_as_test(
        SlotMachine, settings=settings(max_examples=100, stateful_step_count=40, deadline=None, database=None)
    )


def test_refusal_of_an_illegal_move_is_described() -> None:
    table = SlotTable(num_actors=2, splits=1, slots_per_split=3, num_policies=2)
    table.begin(0)
    with pytest.raises(IllegalTransition, match="slot 0 of actor 0 is FILLING, not FREE"):
        table.begin(0)
    with pytest.raises(IllegalTransition, match="slot 0 is released by policy 1"):
        table.release(0, 1)


def test_slot_of_an_actor_that_died_inside_publish_is_complete() -> None:
    table = SlotTable(num_actors=2, splits=1, slots_per_split=3, num_policies=1)
    table.begin(0)
    table.count_steps(0, 9)
    table._shared["pending"][0, 0] = 1  # the first of the two bytes that ``publish`` writes

    assert table.reclaim(0) == 0

    assert table.state(0) is SlotState.READY
    assert table.steps_held() == 9


def test_every_slot_has_one_owner() -> None:
    table = SlotTable(num_actors=2, splits=2, slots_per_split=3, num_policies=1)

    splits = [list(table.slots_of_split(actor, split)) for actor in range(2) for split in range(2)]

    assert splits == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert [list(table.slots_of(actor)) for actor in range(2)] == [splits[0] + splits[1], splits[2] + splits[3]]
    assert [table.owner(slot) for slot in range(12)] == 6 * [0] + 6 * [1]
