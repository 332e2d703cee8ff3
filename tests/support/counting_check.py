"""Plays Counting envs, and checks that the recorded rows of one env are exactly what it did.

The rules are those of NOTE [Row life]; for envs that reset by themselves they depend on when they do (``Resets``). Of
FaultyCounting envs the rows of faults must be masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sfactory_envs.synthetic.counting import CountingRules, Position, decode
from sfactory_envs.synthetic.faulty_counting import Fault, step_fault

Array = npt.NDArray[Any]

# What resets an env at the end of an episode: the trainer, or the vector env itself, with the next or the same step.
Resets = Literal["trainer", "NextStep", "SameStep"]


NAMES = ("obs", "action", "reward", "terminated", "truncated", "valid", "is_first")


@dataclass(frozen=True)
class Column:
    """K consecutive rows of one env; of an env with A agents, all fields have a second axis of A.

    Shapes:
        obs: [K, D] float32 - what the action was chosen for
        action: [K] int - as the policy chose it
        reward: [K] float - as the env gave it
        terminated, truncated, valid, is_first: [K] bool
        counts: [K] bool - counts_env_step, None where there is one agent
        slot_end_obs, slot_end_is_first: [K // rollout, ...] - obs[T] and is_first[T] of each slot, if ``rollout`` is
            not 0
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    is_first: Array
    counts: Array | None = None
    rollout: int = 0
    slot_end_obs: Array = field(default_factory=lambda: np.empty(0))
    slot_end_is_first: Array = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of_slots(cls, slots: Sequence[Mapping[str, Any]], rollout: int) -> Column:
        """The rows of consecutive slots, each with its fields by name."""
        names = NAMES if slots[0].get("counts") is None else (*NAMES, "counts")
        fields: dict[str, Any] = {name: np.concatenate([slot[name][:rollout] for slot in slots]) for name in names}
        end_obs, end_is_first = (np.stack([slot[name][rollout] for slot in slots]) for name in ("obs", "is_first"))
        return cls(**fields, rollout=rollout, slot_end_obs=end_obs, slot_end_is_first=end_is_first)


@dataclass
class Counts:
    """identities: of the envs of a column, in turn. rows: number by kind or fault. ends: of episodes."""

    identities: list[int] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    ends: int = 0


def check_columns(columns: Sequence[Column], rules: CountingRules, resets: Resets = "trainer") -> list[Counts]:
    """``check_column`` for every column of a run from its start; identities must be distinct."""
    counts = [check_column(column, rules, start=(0, 0), resets=resets) for column in columns]
    identities = [each.identities[0] for each in counts]
    assert len(set(identities)) == len(identities), f"two columns are of the same env: identities {identities}"
    return counts


def check_column(
    column: Column,
    rules: CountingRules,
    *,
    start: tuple[int, int] | None = None,
    resets: Resets = "trainer",
    every: int = 0,
    faults: tuple[Fault, ...] = (),
) -> Counts:
    """Assert that every transition is there once, in order, whole, with its own action, flags and reward.

    The step of a fault (``every`` and ``faults`` as of FaultyCounting) is invalid, has no reward and no flags, and is
    followed by the start of another episode: a later one of the same env, or the first of a new env. ``start``: the
    (episode, step) the first row must have; None takes what it finds.
    """
    return _Check(column, rules, start, resets, every, faults).counts


class _Check:
    """due: the position that the next row must have; its step is -1 for the start of any later episode."""

    def __init__(
        self,
        column: Column,
        rules: CountingRules,
        start: tuple[int, int] | None,
        resets: Resets,
        every: int,
        faults: tuple[Fault, ...],
    ) -> None:
        self.column, self.rules, self.resets, self.every, self.faults = column, rules, resets, every, faults
        self.counts = Counts()
        first = self._decode(column.obs[0], "row 0: obs")
        assert bool(column.valid[0]) or resets == "SameStep" or faults, "row 0: a column cannot begin with a reset"
        assert start in (None, (first.episode, first.step)), f"row 0: is at {first}, not at (episode, step) {start}"
        assert not faults or first.step == 0, f"row 0: {first} is no start of an episode"
        self.counts.identities.append(first.identity)
        self.due, self.reset_due = first, False
        for row in range(len(column.obs)):
            self._check_row(row)
            if column.rollout and (row + 1) % column.rollout == 0:
                self._end_slot(row, row // column.rollout)

    def _check_row(self, row: int) -> None:
        column = self.column
        at = self._arrive(column.obs[row], column.is_first[row], f"row {row}: obs")
        fault = self._fault_of(at)
        if self.reset_due:
            self._check_reset(row)
            kind, self.due, self.reset_due = "invalid", self._next_episode(at), False
        elif fault is not None:
            self._check_reset(row)
            assert column.reward[row] == 0, f"row {row} ({fault}): reward {column.reward[row]}"
            assert np.isfinite(column.obs[row]).all()
            kind, self.due = fault, self._next_episode(at)
        else:
            self._check_step(row, at)
            terminated, truncated = bool(column.terminated[row]), bool(column.truncated[row])
            kind = "valid" if column.valid[row] else "invalid"
            self.counts.ends += terminated or truncated
            # Rows in which nothing is stepped follow a truncation or, where the vector env gives them, every end.
            self.reset_due = self.resets != "SameStep" and (truncated or (terminated and self.resets == "NextStep"))
            ends = (terminated or truncated) and not self.reset_due
            self.due = self._next_episode(at) if ends else Position(at.identity, at.episode, at.step + 1)
        self.counts.rows[kind] += 1

    def _end_slot(self, row: int, slot: int) -> None:
        obs, is_first = self.column.slot_end_obs[slot], self.column.slot_end_is_first[slot]
        self.due = self._arrive(obs, is_first, f"row {row}: obs[T] of slot {slot}")
        if self.reset_due and self.resets == "trainer":
            # The final observation stands in obs[T]; the next slot starts with the truncation over.
            self.due, self.reset_due = self._next_episode(self.due), False

    def _next_episode(self, at: Position) -> Position:
        return Position(at.identity, at.episode, -1) if self.faults else Position(at.identity, at.episode + 1, 0)

    def _arrive(self, obs: Array, is_first: bool, where: str) -> Position:
        """The position found, if it is the one that is due."""
        found, due, identities = self._decode(obs, where), self.due, self.counts.identities
        if due.step >= 0:
            assert found == due, f"{where} is {found}, but {due} was due"
        else:
            assert found.step == 0, f"{where}: {found} is no start of an episode"
            if found.identity == due.identity:
                assert found.episode > due.episode, f"{where}: episode {found.episode} again"
            else:
                assert found.identity not in identities, f"{where}: env {found.identity} came back"
                identities.append(found.identity)
        assert bool(is_first) == (found.step == 0), f"{where} is at step {found.step}, but is_first is {is_first}"
        return found

    @staticmethod
    def _decode(obs: Array, where: str) -> Position:
        try:
            return decode(obs)
        except ValueError as error:
            raise AssertionError(f"{where}: {error}") from error

    def _fault_of(self, at: Position) -> Fault | None:
        """The fault that the trainer sees: it does not look at the final observation of a terminated episode."""
        fault = step_fault(at, self.every, self.faults) if self.faults else None
        over = at.step + 1 == self.rules.length(at.identity, at.episode)
        unseen = over and self.rules.ending(at.identity, at.episode) != "truncated"
        return None if unseen and fault in ("inf obs", "short obs") else fault

    def _check_reset(self, row: int) -> None:
        """Assert that nothing was stepped in ``row``."""
        for name in ("valid", "terminated", "truncated"):
            assert not bool(getattr(self.column, name)[row]), f"row {row}: nothing was stepped, but it is marked {name}"

    def _check_step(self, row: int, at: Position) -> None:
        """Assert that ``row`` is the transition at ``at``: valid, with its own action, flags and reward."""
        column, rules = self.column, self.rules
        # Where the same step resets, the value after a truncation is not to be had, and the step teaches nothing.
        learned = not (self.resets == "SameStep" and bool(column.truncated[row]))
        assert bool(column.valid[row]) == learned, f"row {row}: valid is {not learned} for the transition at {at}"
        action, reward = int(column.action[row]), float(column.reward[row])
        assert 0 <= action < rules.num_actions, f"row {row}: action {action} is not in [0, {rules.num_actions})"
        paid = rules.reward(at, action)
        assert reward == paid, f"row {row}: reward is {reward}, but action {action} at {at} earns {paid}"
        ends = at.step + 1 == rules.length(at.identity, at.episode)
        truncates = rules.ending(at.identity, at.episode) == "truncated"
        # Terminated wins where both are set, so that a recorded truncation always means that there is a value after it.
        for name, due in (("terminated", ends and not truncates), ("truncated", ends and truncates)):
            flag = bool(getattr(column, name)[row])
            assert flag == due, f"row {row}: {name} is {flag} at {at}"
