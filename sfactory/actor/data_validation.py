"""Checks what envs and policies return before it is used.

NaN, infinity, and observations of another shape or dtype than the space promises are invalid. A step that returned
invalid data is discarded like one that raised (``BaseBatch.broken``): it is not learned from, not counted, and not part
of any statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sfactory.action_heads import BoxHead
from sfactory.actor.env_batch import BaseBatch, reward_row
from sfactory.actor.env_restarts import BadDataCounter
from sfactory.env.conversion import (
    LARGEST_READ,
    OF_VALUES,
    REWARD,
    BadObservation,
    Flaw,
    ObsWriter,
    Rows,
    first_choices,
    has_legal_action,
    quiet_context,
)
from sfactory.errors import SFactoryError, clean
from sfactory.shared.trajectories import Array, Slot, all_true
from sfactory.spec import EnvSpec

_MOST_SHOWN = 100  # characters of a reward


class BadActions(SFactoryError):
    """A policy chose an action that is not finite."""


class DataValidator:
    """Checks observations, rewards and actions of one split."""

    def __init__(self, spec: EnvSpec, writer: ObsWriter, size: int, first: int, bad_data: BadDataCounter) -> None:
        """size: rows. first: number of the split's first env in its actor."""
        self._writer, self._first, self._bad_data = writer, first, bad_data
        self._agents, self._num_agents = spec.agents, spec.num_agents
        self._finite = np.empty(size, bool)
        self._quiet = quiet_context()
        # Only floats can be NaN or infinite, and only float64 beyond what networks read.
        self._real = [
            (key, np.empty((size, *t.shape), bool), np.empty((size, *t.shape)) if t.dtype == "float64" else None)
            for key, t in spec.obs
            if t.dtype.startswith("float") and not t.is_core_input
        ]
        self._choices = [(key, *limits) for key, tensor in spec.obs if (limits := tensor.limits) is not None]
        may_wait = spec.agents and not spec.in_turns  # with a mask that allows nothing
        self._masks = [] if may_wait else [(key, first_choices(mask)) for key, mask in spec.masks if mask.heads]
        self._real_actions = [head.key for head in spec.actions if isinstance(head, BoxHead)]

    def record(self, batch: BaseBatch, reward: Array, rows: Rows) -> npt.NDArray[np.float64]:
        """Write rewards and observations of the batch's last step into ``reward`` [N] and ``rows``; returns rewards.

        Rows with invalid data are in ``batch.broken`` then, and show the start of a new episode.
        """
        rewards, is_valid = self._quiet.run(self._write_all, batch, reward, rows)
        if not (is_valid or all_true(self._finite)):
            bad = [env for env in np.flatnonzero(~self._finite).tolist() if env not in batch.resumed]
            self._count({env: Flaw(REWARD, _shown(batch.rewards[env], rewards[env])) for env in bad})
            if bad:
                batch.discard(bad)
            rewards[~self._finite] = reward[~self._finite] = 0.0
            is_valid = self._quiet.run(self._write, batch, rows)
        if not is_valid:
            flaws = self._flaws(batch)
            first = batch.first
            if again := [env for env in flaws if env in first]:
                batch.reset_again(again)
            if lost := [env for env in flaws if env not in batch.first]:
                batch.discard(lost)
            self._quiet.run(self._writer.write, batch.observations, rows)
        if batch.broken:
            rewards[batch.broken] = reward[batch.broken] = 0.0
        return rewards

    def begin(self, batch: BaseBatch, rows: Rows) -> list[int]:
        """Write the current observations into ``rows``; returns rows reset because theirs were invalid."""
        if self._quiet.run(self._write, batch, rows):
            return []
        renewed = list(batch.reset_again(list(self._flaws(batch))))
        self._quiet.run(self._writer.write, batch.observations, rows)
        return renewed

    def check_actions(self, slot: Slot, t: int, actions: Rows) -> None:
        """Raise BadActions unless ``actions``, row ``t`` of ``slot``, are finite."""
        for key in self._real_actions:
            row = actions[key]
            if not np.isfinite(row).all():
                env = int(np.flatnonzero(~np.isfinite(row.reshape(len(row), -1)).all(axis=1))[0])
                raise BadActions(
                    f"policy version {slot.policy_version[t, env]} chose {key!r} = {row[env].tolist()} for env "
                    f"{self._env(env)}, which is not finite and is not passed on to the env: its network gives "
                    "numbers that are too large; lower --learning_rate or --max_grad_norm, and resume from a checkpoint"
                )

    def _write_all(self, batch: BaseBatch, reward: Array, rows: Rows) -> tuple[npt.NDArray[np.float64], bool]:
        """Write the rewards and, if they are finite, the observations; returns rewards, and whether all is valid."""
        rewards = reward_row(batch.rewards)
        reward[:] = rewards
        return rewards, all_true(np.isfinite(reward, out=self._finite)) and self._write(batch, rows)

    def _write(self, batch: BaseBatch, rows: Rows) -> bool:
        """Write the observations; whether all of them are valid."""
        try:
            self._writer.write(batch.observations, rows)
        except BadObservation:
            return False
        valid = True
        for key, mask, sizes in self._real:
            row = rows[key]
            if sizes is None:
                np.isfinite(row, out=mask)
            else:
                np.less_equal(np.abs(row, out=sizes), LARGEST_READ, out=mask)
            valid &= all_true(mask) or _replace(row, mask, 0.0, batch.unvalued)
        for key, least, largest in self._choices:
            row = rows[key]
            mask = (row >= least) & (row <= largest)
            valid &= bool(mask.all()) or _replace(row, mask, least, batch.unvalued)
        for key, firsts in self._masks:
            legal = has_legal_action(rows[key], firsts)
            valid &= all_true(legal) or set(np.flatnonzero(~legal).tolist()) <= set(batch.unplayed)
        return valid

    def _flaws(self, batch: BaseBatch) -> dict[int, Flaw]:
        found = self._writer.flaws(batch.observations, batch.size, set(batch.unplayed) if self._masks else ())
        unvalued = set(batch.unvalued)
        # Of two flaws of a row one is known: if none is left, another one kept the observations from being written.
        flaws = {row: flaw for row, flaw in found.items() if not (flaw.text in OF_VALUES and row in unvalued)} or found
        self._count(flaws)
        return flaws

    def _count(self, flaws: Mapping[int, Flaw]) -> None:
        # An env counts once, however many of its agents returned invalid data.
        self._bad_data.add({self._env(row): flaw._replace(agent=self._agent(row)) for row, flaw in flaws.items()})

    def _env(self, row: int) -> int:
        """Number in the actor of the env of ``row``."""
        return self._first + row // self._num_agents

    def _agent(self, row: int) -> str:
        """Addition to errors about ``row`` in multi-agent envs."""
        return f", agent {self._agents[row % self._num_agents]!r}" if self._agents else ""


def _replace(block: Array, valid: Array, instead: npt.ArrayLike, rows: Sequence[int]) -> bool:
    """In ``rows`` of ``block`` [N, ...] put ``instead`` where it is not ``valid``; whether all is valid then."""
    block[rows] = np.where(valid, block, instead)[rows]
    valid[rows] = True
    return bool(valid.all())


def _shown(reward: Any, number: float) -> str:
    """What is wrong with a ``reward`` that is ``number``, which is NaN also for what is no number."""
    is_number = isinstance(reward, int | float | np.number)
    return f"is {number:g}" if is_number else f"is {clean(repr(reward), _MOST_SHOWN)}, which is no finite number"
