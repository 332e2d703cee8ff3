"""Room: what comes from envs and policies is looked at before it is used. In: rows of a split. Out: rows of numbers.

NaN, infinity, and observations of another shape or dtype than promised are no data. The step that gave them is lost
like one that raised (``Group.broken``): nothing of it is learned from, counted, or enters statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sfactory.actor.env_batch import Group, reward_row
from sfactory.actor.env_restarts import EnvFaults
from sfactory.env.conversion import NOT_FINITE, BadObservation, Flaw, Rows, Writer
from sfactory.errors import SFactoryError
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import Array, Slot, all_true
from sfactory.spec import BoxHead, EnvSpec

_log = logging.getLogger(__name__)

FEW = 20  # so many bad steps are borne, whatever their share
REWARD = "reward"


class BadActions(SFactoryError):
    """A policy chose an action that is not finite."""


class BadDataCounter:
    """How often envs of one actor gave what is no data. The count stands in the actor's status row."""

    def __init__(self, actor: str, most: float, row: StatusRow) -> None:
        """``most``: see --max_bad_env_data."""
        self._actor, self._most, self._row = actor, most, row
        self._told: set[tuple[str, bool]] = set()

    def add(self, flaws: Mapping[int, Flaw]) -> None:
        """Count one step of each env (by its number in the actor); raises EnvFaults if it is one too many."""
        for env, flaw in flaws.items():
            self._row.add("bad_env_data", 1)
            count = int(self._row.get("bad_env_data"))
            steps = int(self._row.get("env_steps")) + count
            if count >= FEW and count > self._most * steps:
                raise EnvFaults(
                    f"env {env} of {self._actor} gave what is no data: {_said(flaw)}; so did {count} of {steps} env "
                    f"steps of the actor ({count / steps:.1%}), and --max_bad_env_data={self._most} allows no more"
                )
            kind = flaw.key, flaw.text == NOT_FINITE
            if kind not in self._told:
                self._told.add(kind)
                _log.warning(
                    "env %d of %s gave what is no data: %s; the step is not learned from, its episode counts nowhere, "
                    "and the env is reset (--max_bad_env_data=%s of the steps; others like it are only counted)",
                    *(env, self._actor, _said(flaw), self._most),
                )


class DataValidator:
    """Looks at all that one split gives and takes."""

    def __init__(self, spec: EnvSpec, writer: Writer, size: int, first: int, bad_data: BadDataCounter | None) -> None:
        """``size``: rows. ``first``: number of the split's first env in its actor.

        Without ``bad_data`` what is no data is an error.
        """
        self._writer, self._first, self._bad_data = writer, first, bad_data
        self._agents, self._num_agents = spec.agents, spec.num_agents
        self._finite = np.empty(size, bool)
        # Only real numbers can be something else than numbers.
        self._real = [
            (key, np.empty((size, *tensor.shape), bool)) for key, tensor in spec.obs if tensor.dtype.startswith("float")
        ]
        self._real_actions = [head.key for head in spec.actions if isinstance(head, BoxHead)]

    def record(self, group: Group, reward: Array, rows: Rows) -> npt.NDArray[np.float64]:
        """Write rewards and observations of the group's last step into ``reward`` [N] and ``rows``; returns rewards.

        What is no data has been made good then, and is told in ``group.broken``.
        """
        rewards = reward_row(group.rewards)
        reward[:] = rewards
        if not all_true(np.isfinite(reward, out=self._finite)):
            bad = [env for env in np.flatnonzero(~self._finite).tolist() if env not in group.resumed]
            self._count({env: Flaw(REWARD, f"is {rewards[env]:g}") for env in bad})
            if bad:
                group.lose(bad)
            rewards[~self._finite] = reward[~self._finite] = 0.0
        if not self._write(group, rows):
            flaws = self._flaws(group)
            first = group.first
            if again := [env for env in flaws if env in first]:
                group.show_reset(again)
            if lost := [env for env in flaws if env not in group.first]:
                group.lose(lost)
            self._writer.write(group.observations, rows)
        if group.broken:
            rewards[group.broken] = reward[group.broken] = 0.0
        return rewards

    def begin(self, group: Group, rows: Rows) -> list[int]:
        """Write the present observations into ``rows``; returns envs that had to be reset for it."""
        if self._write(group, rows):
            return []
        renewed = list(group.show_reset(list(self._flaws(group))))
        self._writer.write(group.observations, rows)
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

    def _write(self, group: Group, rows: Rows) -> bool:
        """Write the observations; whether all of them are data."""
        try:
            self._writer.write(group.observations, rows)
        except BadObservation:
            if self._bad_data is None:
                raise
            return False
        finite = True
        for key, mask in self._real:
            finite &= all_true(np.isfinite(rows[key], out=mask))
        return finite

    def _flaws(self, group: Group) -> dict[int, Flaw]:
        flaws = self._writer.flaws(group.observations, group.size)
        self._count(flaws)
        return flaws

    def _count(self, flaws: Mapping[int, Flaw]) -> None:
        if not flaws:
            return
        if self._bad_data is None:
            row, flaw = next(iter(flaws.items()))
            raise BadObservation(f"env {self._env(row)}{self._agent(row)}: {_said(flaw)}")
        # An env counts once, whatever number of its agents gave what is no data.
        told = {self._env(row): flaw._replace(agent=self._agent(row)) for row, flaw in flaws.items()}
        self._bad_data.add(told)

    def _env(self, row: int) -> int:
        """Number in the actor of the env that ``row`` is of."""
        return self._first + row // self._num_agents

    def _agent(self, row: int) -> str:
        """What errors add of the agent that ``row`` is of, if envs have many."""
        return f", agent {self._agents[row % self._num_agents]!r}" if self._agents else ""


def _said(flaw: Flaw) -> str:
    what = REWARD if flaw.key == REWARD else f"observation {flaw.key!r}"
    return f"{what} {flaw.text}{flaw.agent}"
