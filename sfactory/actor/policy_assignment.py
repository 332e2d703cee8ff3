"""Decides which policy acts in each row of a split.

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
    """Chooses the policies of the episodes that begin."""

    def draw(self, env: int, episode: int, before: Ids) -> Sequence[int]:
        """The policies of the agents of ``env`` (its number in the split) in its ``episode``, the first being 0.

        before: [A] - those of the episode before; of the first: zeros.
        """


class PolicyAssignment:
    """The policies of the N rows of a split.

    ids: [N] int16, of the current episodes
    present: the policies that act in the row that was written last, in order
    may_play: policies that may act in the split, now or later
    frozen: policies that do not learn
    after_draw: called when policies were chosen
    """

    def __init__(
        self,
        rows: int,
        agents: int,
        policy: int,
        rule: AssignmentRule | None = None,
        policies: int = 1,
        frozen: Sequence[int] = (),
    ) -> None:
        """``policy``: that of the whole split without ``rule``; else ``rule`` chooses among ``policies``."""
        self.frozen = frozen
        self.after_draw: Callable[[], None] | None = None
        self.ids: Ids = np.full(rows, policy, np.int16)
        self._agents, self._rule = agents, rule
        self._episodes = np.zeros(rows // agents, np.int64)
        self._absent: Sequence[int] = ()
        self.present: tuple[int, ...] = (policy,)
        self.may_play: Sequence[int] = range(policies) if rule is not None else (policy,)
        if rule is not None:
            self.begin_episodes(range(rows))

    @property
    def is_fixed(self) -> bool:
        """Whether the whole split always belongs to one policy."""
        return self._rule is None

    def begin_episodes(self, rows: Sequence[int]) -> None:
        """New episodes begin in ``rows``; policies are chosen once per env, however many of its rows begin."""
        if self._rule is None:
            return
        for env in dict.fromkeys(row // self._agents for row in rows):
            own = slice(env * self._agents, (env + 1) * self._agents)
            self.ids[own] = self._rule.draw(env, int(self._episodes[env]), self.ids[own].copy())
            self._episodes[env] += 1
        self.present = _present(self.ids)
        if self.after_draw is not None:
            self.after_draw()

    def begin(self, slot: Slot, absent: Sequence[int]) -> None:
        """``slot`` begins; no policy acts in the rows ``absent`` in its first step."""
        assert slot.policy_id is not None
        if self._rule is None:
            slot.policy_id.fill(self.ids[0])
        self.write(slot, 0, absent)

    def write(self, slot: Slot, t: int, absent: Sequence[int]) -> None:
        """Write which policies act in row ``t``: none in the rows ``absent``."""
        assert slot.policy_id is not None
        if self._rule is None and not absent:
            if self._absent:
                self._absent, self.present = (), _present(self.ids)
            return
        row = slot.policy_id[t]
        row[:] = self.ids
        if absent:
            row[absent] = NOBODY
            self.present = _present(row)
        elif self._absent:
            self.present = _present(self.ids)
        self._absent = list(absent)


class RandomAssignment:
    """A random policy every so many episodes of an env: for the whole env, or for each of its agents."""

    def __init__(self, policies: int, episodes: int, each_agent: bool, seed: int) -> None:
        self._policies, self._episodes, self._each_agent = policies, episodes, each_agent
        self._generator = np.random.default_rng(seed)

    def draw(self, env: int, episode: int, before: Ids) -> Sequence[int]:
        """See AssignmentRule."""
        if episode % self._episodes:
            return [int(policy) for policy in before]
        if self._each_agent:
            return [int(policy) for policy in self._generator.integers(0, self._policies, len(before))]
        return [int(self._generator.integers(0, self._policies))] * len(before)


class CustomAssignment:
    """Calls a user's function."""

    def __init__(self, name: str, function: Mapping, agents: Sequence[str], first_env: int, policies: int) -> None:
        """``name``: of the function, as module:function. ``first_env``: the split's first env, counted over the run."""
        self._name, self._function, self._agents = name, function, agents
        self._first_env, self._policies = first_env, policies

    def draw(self, env: int, episode: int, before: Ids) -> Sequence[int]:
        """See AssignmentRule; raises EnvError if the function does not return a policy."""
        env_of_run, policies = self._first_env + env, []
        for agent in self._agents:
            policy = self._function(agent, episode, env_of_run)
            # A numpy integer is valid, too; True is not.
            if not isinstance(policy, int | np.integer) or isinstance(policy, bool) or not 0 <= policy < self._policies:
                raise EnvError(
                    f"--policy_mapping={self._name} returned {policy!r} for agent {agent!r}, episode {episode}, env "
                    f"{env_of_run}; it must return a policy from 0 to {self._policies - 1} "
                    f"(--num_policies={self._policies})"
                )
            policies.append(int(policy))
        return policies


def _present(ids: Ids) -> tuple[int, ...]:
    return tuple(np.unique(ids[ids != NOBODY]).tolist())
