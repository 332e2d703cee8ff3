"""Room: which policy plays each row of a split. In: rows that begin an episode. Out: policy ids, beside the rows.

A row keeps one policy from the first observation of an episode to the last. ``PolicyAssignment`` holds the current
policy of each row and writes it into slots; an ``AssignmentRule`` chooses the next. Without a rule the whole split
belongs to one policy, which is written once for each slot, and forward passes are as wide as the split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sfactory.errors import EnvError
from sfactory.shared.trajectories import NOBODY, Slot

SOLE_AGENT = "agent"  # the name of an env's agent where there is no other
Ids = npt.NDArray[np.int16]
Mapping = Callable[[str, int, int], int]  # (agent, episode of its env, env of the run) -> policy


class AssignmentRule(Protocol):
    """Says which policies play the episodes that begin."""

    def draw(self, env: int, episode: int, before: Ids) -> Sequence[int]:
        """The policies of the agents of ``env`` (its number in the split) in its ``episode``, the first being 0.

        before: [A] - those of the episode before; of the first: zeros.
        """


class PolicyAssignment:
    """Who plays each of the N rows of a split.

    ids: [N] int16, of the present episodes. may_play: whoever may play in it, now or later. frozen: the policies that
    do not learn. after_draw: called when it was drawn who plays next.
    """

    def __init__(
        self,
        rows: int,
        agents: int,
        policy: int,
        draw: AssignmentRule | None = None,
        policies: int = 1,
        frozen: Sequence[int] = (),
    ) -> None:
        """``policy``: whose the split is, if nobody draws; of ``policies`` otherwise."""
        self.frozen = frozen
        self.after_draw: Callable[[], None] | None = None
        self.ids: Ids = np.full(rows, policy, np.int16)
        self._agents, self._draw = agents, draw
        self._episodes = np.zeros(rows // agents, np.int64)
        self._absent: Sequence[int] = ()
        self._present: tuple[int, ...] = (policy,)
        self.may_play: Sequence[int] = range(policies) if draw is not None else (policy,)
        if draw is not None:
            self.begin_episodes(range(rows))

    @property
    def present(self) -> tuple[int, ...]:
        """The policies that are to act in the row that was written last, in order."""
        return self._present

    @property
    def is_fixed(self) -> bool:
        """Whether the whole split is of one policy for ever."""
        return self._draw is None

    def begin_episodes(self, rows: Sequence[int]) -> None:
        """New episodes begin in ``rows``; an env is drawn for once, however many of its rows begin."""
        if self._draw is None:
            return
        for env in dict.fromkeys(row // self._agents for row in rows):
            own = slice(env * self._agents, (env + 1) * self._agents)
            self.ids[own] = self._draw.draw(env, int(self._episodes[env]), self.ids[own].copy())
            self._episodes[env] += 1
        self._present = _present(self.ids)
        if self.after_draw is not None:
            self.after_draw()

    def begin(self, slot: Slot, absent: Sequence[int]) -> None:
        """``slot`` begins; nobody acts for the rows ``absent`` in its first step."""
        assert slot.policy_id is not None
        if self._draw is None:
            slot.policy_id.fill(self.ids[0])
        self.write(slot, 0, absent)

    def write(self, slot: Slot, t: int, absent: Sequence[int]) -> None:
        """Write who acts in row ``t``: nobody for the rows ``absent``."""
        assert slot.policy_id is not None
        if self._draw is None and not absent:
            if self._absent:
                self._absent, self._present = (), _present(self.ids)
            return
        row = slot.policy_id[t]
        row[:] = self.ids
        if absent:
            row[absent] = NOBODY
            self._present = _present(row)
        elif self._absent:
            self._present = _present(self.ids)
        self._absent = list(absent)


class RandomAssignment:
    """A policy at random, anew every so many episodes of an env: for the whole env, or for each of its agents."""

    def __init__(self, policies: int, episodes: int, each_agent: bool, seed: int) -> None:
        self._policies, self._episodes, self._each_agent = policies, episodes, each_agent
        self._generator = np.random.default_rng(seed)

    def draw(self, env: int, episode: int, before: Ids) -> Sequence[int]:
        """See Draw."""
        if episode % self._episodes:
            return [int(policy) for policy in before]
        if self._each_agent:
            return [int(policy) for policy in self._generator.integers(0, self._policies, len(before))]
        return [int(self._generator.integers(0, self._policies))] * len(before)


class CustomAssignment:
    """What a user's function says."""

    def __init__(self, name: str, function: Mapping, agents: Sequence[str], first_env: int, policies: int) -> None:
        """``name``: of the function, as module:function. ``first_env``: the split's first env, counted over the run."""
        self._name, self._function, self._agents = name, function, agents
        self._first_env, self._policies = first_env, policies

    def draw(self, env: int, episode: int, before: Ids) -> Sequence[int]:
        """See Draw; raises EnvError for what is no policy."""
        return [self._policy_of(agent, episode, self._first_env + env) for agent in self._agents]

    def _policy_of(self, agent: str, episode: int, env: int) -> int:
        policy = self._function(agent, episode, env)
        # A numpy integer is one, too; True is none.
        if isinstance(policy, int | np.integer) and not isinstance(policy, bool) and 0 <= policy < self._policies:
            return int(policy)
        raise EnvError(
            f"--policy_mapping={self._name} gave {policy!r} for agent {agent!r}, episode {episode}, env {env}; it must "
            f"give a policy from 0 to {self._policies - 1} (--num_policies={self._policies})"
        )


def _present(ids: Ids) -> tuple[int, ...]:
    return tuple(np.unique(ids[ids != NOBODY]).tolist())
