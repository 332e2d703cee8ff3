"""Checks that rows of FaultyCounting envs are recorded exactly, and that rows of faults are masked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfactory_envs.synthetic.counting import CountingRules, Position, decode
from sfactory_envs.synthetic.faulty_counting import Fault, step_fault
from tests.support.counting_check import Column, check_row_of_reset, check_row_of_step


@dataclass
class FaultyTally:
    """identities: of the envs that stood in the place, in turn. rows: how many were "valid", "reset" or of a fault."""

    identities: list[int] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)


def check_faulty_column(column: Column, rules: CountingRules, every: int, faults: tuple[Fault, ...]) -> FaultyTally:
    """Assert that a column of whole slots holds each good transition once, with its own action, flags and reward.

    The step of a fault is invalid, has no reward and no flags, and is followed by the start of another episode: a later
    one of the same env, or the first of an env that was not there before.
    """
    assert column.rollout is not None
    assert column.slot_end_obs is not None
    assert column.slot_end_is_first is not None
    tally, position, reset_due = FaultyTally(), None, False
    for row in range(len(column.obs)):
        position = _arrive(tally, decode(column.obs[row]), position, f"row {row}")
        assert bool(column.is_first[row]) == (position.step == 0), f"row {row}: is_first at {position}"
        if reset_due:
            check_row_of_reset(column, row)
            tally.rows["reset"] += 1
            due, reset_due = None, False
        else:
            fault = _fault_of(position, rules, every, faults)
            if fault is not None:
                _check_lost(column, row, fault)
                due = None
            else:
                check_row_of_step(column, row, position, rules)
                reset_due = bool(column.truncated[row])
                over = bool(column.terminated[row])
                due = None if over else Position(position.identity, position.episode, position.step + 1)
            tally.rows[fault or "valid"] += 1
        position = _after(position) if due is None else due
        if (row + 1) % column.rollout == 0:
            slot = row // column.rollout
            position = _arrive(tally, decode(column.slot_end_obs[slot]), position, f"obs[T] of slot {slot}")
            assert bool(column.slot_end_is_first[slot]) == (position.step == 0), f"is_first[T] of slot {slot}"
            if reset_due:  # the final observation of a truncated episode stands in obs[T] alone
                position, reset_due = _after(position), False
    return tally


def _after(position: Position) -> Position:
    """Stands for the start of any episode after that of ``position``."""
    return Position(position.identity, position.episode, -1)


def _arrive(tally: FaultyTally, found: Position, due: Position | None, where: str) -> Position:
    """The position found, if it is ``due`` (see ``_after``)."""
    if due is not None and due.step >= 0:
        assert found == due, f"{where}: obs is {found}, but {due} was due"
    else:
        assert found.step == 0, f"{where}: {found} is no start of an episode"
    if not tally.identities or tally.identities[-1] != found.identity:
        assert due is None or due.step < 0, f"{where}: another env in mid-episode"
        assert found.identity not in tally.identities, f"{where}: env {found.identity} came back"
        tally.identities.append(found.identity)
    elif due is not None and due.step < 0:
        assert found.episode > due.episode, f"{where}: episode {found.episode} again"
    return found


def _fault_of(position: Position, rules: CountingRules, every: int, faults: tuple[Fault, ...]) -> Fault | None:
    """The fault that the trainer gets to see: the final observation of a terminated episode is not looked at."""
    fault = step_fault(position, every, faults)
    over = position.step + 1 == rules.length(position.identity, position.episode)
    unseen = over and rules.ending(position.identity, position.episode) != "truncated"
    return None if unseen and fault in ("inf obs", "short obs") else fault


def _check_lost(column: Column, row: int, fault: Fault) -> None:
    flags: dict[str, Any] = {name: bool(getattr(column, name)[row]) for name in ("valid", "terminated", "truncated")}
    assert flags == {"valid": False, "terminated": False, "truncated": False}, f"row {row} ({fault}): {flags}"
    assert column.reward[row] == 0, f"row {row} ({fault}): reward {column.reward[row]}"
    assert np.isfinite(column.obs[row]).all()
