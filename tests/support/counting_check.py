"""Checks that the recorded rows of one env are exactly what the Counting env did.

The rules are those of NOTE [Row life]; for envs that reset by themselves they depend on when they do (``Resets``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from sfactory_envs.synthetic.counting import CountingRules, Position, decode

Array = npt.NDArray[Any]

# Who resets an env whose episode has ended: the trainer, or the vector env itself, with the next or the same step.
Resets = Literal["trainer", "NextStep", "SameStep"]


@dataclass(frozen=True)
class Column:
    """K consecutive rows of one env.

    Shapes:
        obs: [K, D] float32 - what the action was chosen for
        action: [K] int - as the policy chose it
        reward: [K] float - as the env gave it
        terminated, truncated, valid, is_first: [K] bool
        slot_end_obs: [K // rollout, D] float32 - obs[T] of each slot, where the rows come in slots of ``rollout``
        slot_end_is_first: [K // rollout] bool - is_first[T] of each slot
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    is_first: Array
    rollout: int | None = None
    slot_end_obs: Array | None = None
    slot_end_is_first: Array | None = None


@dataclass(frozen=True)
class Tally:
    """What a checked column held; ``ends`` counts episodes that ended in it.

    invalid_rows: truncation rows or, where an env resets in the same step, steps that were truncated.
    """

    identity: int
    transitions: int
    invalid_rows: int
    ends: int
    last: Position


def check_column(
    column: Column, rules: CountingRules, *, start: tuple[int, int] | None = None, resets: Resets = "trainer"
) -> Tally:
    """Assert that every transition is there once, in order, whole, with its own action, flags and reward.

    ``start``: the (episode, step) the first row must have; None takes what it finds.
    """
    _check_shapes(column)
    first = _decode(column.obs[0], 0, "obs")
    assert bool(column.valid[0]) or resets == "SameStep", "row 0: a column cannot begin with a truncation row"
    if start is not None:
        assert (first.episode, first.step) == start, f"row 0: is at {first}, not at (episode, step) {start}"
    expected = first
    reset_row_due = False
    invalid_rows = 0
    ends = 0
    for row in range(len(column.obs)):
        _check_obs(column, row, expected)
        if reset_row_due:
            check_row_of_reset(column, row)
            invalid_rows += 1
            reset_row_due = False
            expected = _next_episode(expected)
        else:
            check_row_of_step(column, row, expected, rules, resets)
            terminated, truncated = bool(column.terminated[row]), bool(column.truncated[row])
            ends += terminated or truncated
            invalid_rows += not column.valid[row]
            # Rows in which nothing is stepped follow a truncation or, where the vector env gives them, every end.
            reset_row_due = resets != "SameStep" and (truncated or (terminated and resets == "NextStep"))
            if (terminated or truncated) and not reset_row_due:
                expected = _next_episode(expected)
            else:
                expected = Position(expected.identity, expected.episode, expected.step + 1)
        if _is_slot_end(column, row):
            _check_slot_end(column, row, expected)
            if reset_row_due and resets == "trainer":
                # The final observation stands in obs[T]; the next slot starts with the truncation over.
                reset_row_due = False
                expected = _next_episode(expected)
    return Tally(first.identity, len(column.obs) - invalid_rows, invalid_rows, ends, expected)


def _next_episode(position: Position) -> Position:
    return Position(position.identity, position.episode + 1, 0)


def check_columns(columns: Sequence[Column], rules: CountingRules, resets: Resets = "trainer") -> list[Tally]:
    """``check_column`` for every column of a run from its start; identities must be distinct."""
    tallies = [check_column(column, rules, start=(0, 0), resets=resets) for column in columns]
    identities = [tally.identity for tally in tallies]
    assert len(set(identities)) == len(identities), f"two columns are of the same env: identities {identities}"
    return tallies


def _check_shapes(column: Column) -> None:
    rows = len(column.obs)
    assert rows > 0, "the column is empty"
    for name in ("action", "reward", "terminated", "truncated", "valid", "is_first"):
        assert getattr(column, name).shape == (rows,), f"{name} is {getattr(column, name).shape}, obs has {rows} rows"
    if column.rollout is not None:
        assert rows % column.rollout == 0, f"{rows} rows are not whole slots of {column.rollout}"
        slots = rows // column.rollout
        for name in ("slot_end_obs", "slot_end_is_first"):
            values = getattr(column, name)
            assert values is None or len(values) == slots, f"{name} has {len(values)} entries for {slots} slots"


def _decode(obs: Array, row: int, name: str) -> Position:
    try:
        return decode(obs)
    except ValueError as error:
        raise AssertionError(f"row {row}, {name}: {error}") from error


def _check_obs(column: Column, row: int, expected: Position) -> None:
    found = _decode(column.obs[row], row, "obs")
    assert found == expected, f"row {row}: obs is {found}, but {expected} was due"
    first = bool(column.is_first[row])
    assert first == (expected.step == 0), f"row {row}: is_first is {first} at step {expected.step}"


def check_row_of_reset(column: Column, row: int) -> None:
    """Assert that nothing was stepped in ``row``."""
    assert not bool(column.valid[row]), f"row {row}: nothing was stepped in it, but it is marked valid"
    for name in ("terminated", "truncated"):
        assert not bool(getattr(column, name)[row]), f"row {row}: a row in which nothing was stepped is marked {name}"


def check_row_of_step(
    column: Column, row: int, position: Position, rules: CountingRules, resets: Resets = "trainer"
) -> None:
    """Assert that ``row`` is the transition at ``position``: valid, with its own action, flags and reward."""
    # Where the same step resets, the value after a truncation is not to be had, and the step teaches nothing.
    learned = not (resets == "SameStep" and bool(column.truncated[row]))
    assert bool(column.valid[row]) == learned, f"row {row}: valid is {not learned} for the transition at {position}"
    action = int(column.action[row])
    assert 0 <= action < rules.num_actions, f"row {row}: action {action} is not in [0, {rules.num_actions})"
    due = rules.reward(position, action)
    reward = float(column.reward[row])
    assert reward == due, f"row {row}: reward is {reward}, but action {action} at {position} earns {due}"
    ends = position.step + 1 == rules.length(position.identity, position.episode)
    ending = rules.ending(position.identity, position.episode)
    # Terminated wins where both are set, so that a recorded truncation always means that there is a value after it.
    for name, due_here in (
        ("terminated", ends and ending != "truncated"),
        ("truncated", ends and ending == "truncated"),
    ):
        flag = bool(getattr(column, name)[row])
        assert flag == due_here, f"row {row}: {name} is {flag} at {position}"


def _is_slot_end(column: Column, row: int) -> bool:
    return column.rollout is not None and (row + 1) % column.rollout == 0


def _check_slot_end(column: Column, row: int, expected: Position) -> None:
    assert column.rollout is not None
    slot = row // column.rollout
    if column.slot_end_obs is not None:
        found = _decode(column.slot_end_obs[slot], row, f"obs[T] of slot {slot}")
        assert found == expected, f"row {row}: obs[T] of slot {slot} is {found}, but {expected} was due"
    if column.slot_end_is_first is not None:
        first = bool(column.slot_end_is_first[slot])
        assert first == (expected.step == 0), (
            f"row {row}: is_first[T] of slot {slot} is {first} at step {expected.step}"
        )
