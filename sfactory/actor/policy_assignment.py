"""Decides which policy acts in each row of a split.

A row keeps one policy from the first observation of an episode to the last. ``PolicyAssignment`` holds the current
policy of each row and writes it into slots; an ``AssignmentRule`` chooses the next. Without a rule the whole split
belongs to one policy, which is written once for each slot, and forward passes are as wide as the split.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from sfactory.actor.opponents import Opponents
from sfactory.config.flags import assigned
from sfactory.config.import_strings import Unresolved, find_callable
from sfactory.config.population_rules import agents_by_pattern
from sfactory.errors import ConfigError, EnvError
from sfactory.shared.trajectories import NOBODY, Slot

SOLE_AGENT = "agent"  # the name of an env's agent where there is no other
Ids = npt.NDArray[np.int16]
Mapping = Callable[[str, int, int], int]  # (agent, episode of its env, env of the run) -> policy

# Envs, and episodes of each, for which a function must choose the same to be taken for a lasting choice.
_ASKED = 8
_EPISODES_ASKED = (*range(_ASKED), *(10**power for power in range(2, 8)))


# Chooses the policies of the agents of an env when an episode begins. Arguments: the env's number in the split, the
# number of its episode, the first being 0, and the policies [A] of the episode before (of the first: zeros).
AssignmentRule = Callable[[int, int, Ids], Sequence[int]]


class PolicyAssignment:
    """The policies of the N rows of a split.

    ids: [N] int16, of the current episodes
    present: the policies that act in the row that was written last, in order
    may_play: policies that may act in the split, now or later
    policies: number of policies with a learner; higher ids are those of opponents, of whom nothing is learned
    opponents: past versions that play against policy 0; None without a pool
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
        opponents: Opponents | None = None,
    ) -> None:
        """``policy``: that of the whole split without ``rule``; else ``rule`` chooses among ``policies``."""
        self.policies, self.opponents = policies, opponents
        self.frozen = frozen
        self.after_draw: Callable[[], None] | None = None
        self.ids: Ids = np.full(rows, policy, np.int16)
        self._agents, self._rule = agents, rule
        self._episodes = np.zeros(rows // agents, np.int64)
        self._some_absent = False
        self.present: tuple[int, ...] = (policy,)
        self.may_play: Sequence[int] = range(policies) if rule is not None else (policy,)
        if opponents is not None:
            self.may_play, self.frozen = range(policies + len(opponents.ids)), opponents.ids
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
            self.ids[own] = self._rule(env, int(self._episodes[env]), self.ids[own].copy())
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
        if self._rule is not None:
            slot.policy_id[t] = self.ids
        if absent:
            row = slot.policy_id[t]
            row[absent] = NOBODY
            self._some_absent, self.present = True, _present(row)
        elif self._some_absent:
            self._some_absent, self.present = False, _present(self.ids)


def random_assignment(policies: int, episodes: int, each_agent: bool, seed: int) -> AssignmentRule:
    """A random policy every ``episodes`` episodes of an env: for the whole env, or for each of its agents."""
    generator = np.random.default_rng(seed)

    def draw(_env: int, episode: int, before: Ids) -> Sequence[int]:
        if episode % episodes:
            return [int(policy) for policy in before]
        if each_agent:
            return [int(policy) for policy in generator.integers(0, policies, len(before))]
        return [int(generator.integers(0, policies))] * len(before)

    return draw


def policies_by_name(mapping: str, agents: Sequence[str]) -> list[int]:
    """By agent, the policy of the first pattern of ``mapping`` that fits its name; raises ConfigError if none fits."""
    chosen = []
    for agent in agents:
        fitting = [policy for pattern, policy in agents_by_pattern(mapping) if fnmatch.fnmatchcase(agent, pattern)]
        if not fitting:
            raise ConfigError([f"--policy_mapping={mapping}: no pattern fits agent {agent!r}, of {', '.join(agents)}"])
        chosen.append(fitting[0])
    return chosen


def fixed_assignment(policies: Sequence[int]) -> AssignmentRule:
    """Always these policies, by agent."""
    return lambda _env, _episode, _before: policies


def custom_assignment(
    name: str, function: Mapping, agents: Sequence[str], first_env: int, policies: int
) -> AssignmentRule:
    """The policies that a user's function chooses; the rule raises EnvError if the function returns no policy.

    name: of the function, as module:function. first_env: the split's first env, counted over the run.
    """

    def draw(env: int, episode: int, _before: Ids) -> Sequence[int]:
        chosen = []
        for agent in agents:
            policy = function(agent, episode, first_env + env)
            # A numpy integer is valid, too; True is not.
            if not isinstance(policy, int | np.integer) or isinstance(policy, bool) or not 0 <= policy < policies:
                raise EnvError(
                    f"--policy_mapping={name} returned {policy!r} for agent {agent!r}, episode {episode}, env "
                    f"{first_env + env}; it must return a policy from 0 to {policies - 1} (--num_policies={policies})"
                )
            chosen.append(int(policy))
        return chosen

    return draw


def lasting_policies(mapping: str, agents: Sequence[str], policies: int) -> tuple[int, ...]:
    """By agent, its policy, if ``mapping`` gives it the same one in all episodes; () of any other ``mapping``, and of a
    function that fails for some of the episodes that it is asked for here.

    Raises ConfigError as ``policies_by_name``, and for a function that does not exist.
    """
    if agents_by_pattern(mapping):
        return tuple(policies_by_name(mapping, agents))
    if ":" not in mapping:
        return ()
    try:
        rule = custom_assignment(mapping, cast(Mapping, find_callable(mapping)), agents, 0, policies)
    except Unresolved as error:
        raise ConfigError([f"{assigned('policy_mapping', mapping)}: {error}"]) from error.__cause__
    try:
        before = np.zeros(len(agents), np.int16)
        drawn = {tuple(rule(env, episode, before)) for env in range(_ASKED) for episode in _EPISODES_ASKED}
    except Exception:  # the run may have fewer envs, and the user's function may raise anything for others
        return ()
    return drawn.pop() if len(drawn) == 1 else ()


def _present(ids: Ids) -> tuple[int, ...]:
    return tuple(np.unique(ids[ids != NOBODY]).tolist())
