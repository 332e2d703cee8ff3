"""Dead workers are replaced as often as allowed, and their slots are freed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sfactory.errors import WorkerDied
from sfactory.shared.slots import SlotState
from sfactory.shared.status import State
from sfactory.supervise.process_group import ProcessExit
from sfactory.supervise.restarts import RestartBudget, WorkerReplacement
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR, small_layout


def test_slots_of_a_dead_actor_are_freed_and_replacements_have_a_bound() -> None:
    shared, replaced = SharedObjects(VECTOR, small_layout(), weight_bytes=8), list[str]()
    group: Any = SimpleNamespace(replace=replaced.append, start_actors=lambda: None)
    replacement = WorkerReplacement(group, shared, RestartBudget("max_worker_restarts", 2))
    death, row = ProcessExit("sf-actor-1", -9, ""), shared.status.row("sf-actor-1")
    slot = shared.table.slots_of(1)[0]
    results = []

    for _ in range(3):
        row.set("state", State.RUNNING)
        shared.table.begin(slot)
        shared.table.count_steps(slot, 2)
        row.add("env_steps", 2)
        assert replacement.is_for(death)
        results.append(replacement.after(death, hung=None))
        if results[-1] is None:
            assert shared.table.state(slot) is SlotState.FREE

    assert results[:2] == [None, None]
    assert isinstance(results[2], WorkerDied)
    assert "2 of --max_worker_restarts=2 were replaced before" in str(results[2])
    assert replaced == ["sf-actor-1", "sf-actor-1"]
    assert (row.get("discarded_steps"), row.get("restarts")) == (4, 2)
