"""Population-based training: decides which policy is replaced or mutated, and when.

It only decides and remembers. The caller of ``turn`` carries the event out (copies weights from the parent, gives
hyperparameters to the learner and reward shaping to the envs) and then records it, as done or as skipped. Until then
the state does not change, so a run that is killed in between repeats the turn.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from sfactory.config.flags import assigned, config_with, value_of
from sfactory.config.hyperparameters import hyperparameters
from sfactory.config.population_rules import member_numbers
from sfactory.config.schema import Config
from sfactory.config.validation import find_problems
from sfactory.errors import EnvError
from sfactory.pbt.event_log import Event, Kind, append_event, numbered_events
from sfactory.pbt.mutation import Shaping, Values, leaves, mutated, mutated_shaping, shaping_problem, within_range
from sfactory.pbt.ranking import Objectives, Place, best_of, standing
from sfactory.pbt.state import Member, PopulationState, load_state, save_state
from sfactory.seeds import Branch, seed_at

_log = logging.getLogger(__name__)


class Population:
    """The members of a population and their turns."""

    def __init__(self, run_dir: Path, config: Config, state: PopulationState, session_start: Mapping[int, int]) -> None:
        """Use ``begin`` or ``restore`` instead. session_start: env steps of each policy at the start of the session."""
        self._options = config.population
        self._run_dir, self._config, self.state = run_dir, config, state
        self._declared = hyperparameters(config)
        self._given: Values = {each.name: each.default for each in self._declared}  # the values of the flags
        self._learning = member_numbers(config)
        self._others: Mapping[int, Member] = {}  # of other runs
        # Where turns wait for a ranking; {} in a new run, and once all members have been ranked in the session.
        self._resumed_at = {p: session_start.get(p, 0) for p in self._learning} if any(session_start.values()) else {}

    @property
    def mutates_rewards(self) -> bool:
        """Whether turns mutate a reward shaping, so that each policy earns by one of its own."""
        return self._options.pbt_mutation_rate > 0 and any(number for _, number in leaves(self.state.reward_shaping))

    @classmethod
    def begin(
        cls, run_dir: Path, config: Config, seed: int, env_steps: Mapping[int, int], reward_shaping: Shaping | None
    ) -> Population:
        """A new population. The first policy has the values of the flags, all others have mutated values.

        The event log of an earlier population of the run is kept. env_steps: of each policy so far. reward_shaping: the
        env's own, if it has one; raises EnvError if it is not a nested mapping of numbers.
        """
        problem = None if reward_shaping is None else shaping_problem(reward_shaping)
        if problem is not None:
            raise EnvError(f"the reward shaping of the environment {problem}")
        # As it will be after a resume: lists for tuples.
        shaping: Shaping | None = json.loads(json.dumps(reward_shaping))
        number = max(numbered_events(run_dir), default=-1) + 1
        population = cls(run_dir, config, PopulationState(seed, number, shaping, {}), env_steps)
        for policy in population._learning:
            population.record(population._first(policy, env_steps.get(policy, 0)))
        return population

    @classmethod
    def restore(cls, run_dir: Path, config: Config, env_steps: Mapping[int, int]) -> Population | None:
        """The population saved in the run directory, or None; raises RunDirError if its files are invalid.

        env_steps: of each policy, from its checkpoint. Hyperparameters that have become mutable, or invalid with the
        flags, or are no longer mutated, get the values of the flags. A member restored from before its last turn waits
        a full period.
        """
        state = load_state(run_dir)
        if state is None:
            return None
        population = cls(run_dir, config, state, env_steps)
        for policy in population._learning:
            steps, member = env_steps.get(policy, 0), state.members.get(policy)
            event = population._first(policy, steps) if member is None else population._restored(member, steps)
            if event.reason:
                _log.warning("policy %d: %s", policy, event.reason)
            population.record(event)
        return population

    @property
    def members(self) -> Mapping[int, Member]:
        """Members by policy, including members that do not learn in this session."""
        return self.state.members

    def config_for(self, policy: int) -> Config:
        """The run's config with the hyperparameters of ``policy`` if it is a member."""
        member = self.members.get(policy)
        return config_with(self._config, member.hyperparameters if member else {})

    def meet(self, others: Mapping[int, Member]) -> None:
        """Rank members of other runs, too, from now on; their hyperparameters are fitted to the flags of this run."""
        fitted = {number: self._fitted(member.hyperparameters)[0] for number, member in others.items()}
        self._others = {n: dataclasses.replace(each, hyperparameters=fitted[n]) for n, each in others.items()}

    def look_at(self, objectives: Objectives) -> None:
        """Check whether all members can be ranked, see ``due``. objectives: as for ``turn``."""
        known = self._known(objectives)
        if None not in [known[policy] for policy in self._learning]:
            self._resumed_at = {}

    def due(self, policy: int, env_steps: int) -> bool:
        """Whether ``policy`` has a turn at its env step ``env_steps``.

        A resumed session has no episode statistics at first. Until all members have been ranked, a turn waits, but at
        most one period from the start of the session.
        """
        is_late = policy in self._learning and env_steps >= self.members[policy].next_turn
        return is_late and not self._waits(policy, env_steps)

    def turn(self, policy: int, env_steps: int, objectives: Objectives) -> Event:
        """The event for ``policy``; the same one until it is recorded.

        objectives: mean objective of each policy that learns over its last episodes; None after too few episodes.
        """
        known, member = self._known(objectives), self.members[policy]
        found = standing(policy, known, self._options)
        if found.parents:
            return self._replace(policy, found.parents, env_steps, known, "among the worst, by more than the gaps")
        kind, values, shaping, reason = Kind.KEEP, member.hyperparameters, member.reward_shaping, found.place.value
        if found.place in (Place.MIDDLE, Place.WORST):
            values, shaping = self._mutation(values, shaping, self._rng(policy))
            kind = Kind.MUTATE
            reason += ", by less than the gaps" if found.place is Place.WORST else ""
            if (values, shaping) == (member.hyperparameters, member.reward_shaping):
                kind, reason = Kind.KEEP, "no value was drawn for mutation"
        return Event(kind, policy, env_steps, values, shaping, None, known, reason)

    def reseed(self, policy: int, env_steps: int, objectives: Objectives, lost: Collection[int]) -> Event | None:
        """The event for a member that lost its weights: it copies one of the best members that are not ``lost``.

        None while it waits for these to be ranked, see ``due``. Raises ValueError if all are lost.
        """
        known = self._known(objectives).items()
        others = {other: value for other, value in known if other != policy and other not in lost}
        if not others:
            raise ValueError(f"no member other than policy {policy} has weights")
        if None in others.values() and self._waits(policy, env_steps):
            return None
        parents = best_of(others, self._options) or list(others)
        return self._replace(policy, parents, env_steps, others, "its own weights are lost")

    def record(self, event: Event) -> None:
        """Record an event of ``turn`` or ``reseed`` after it was carried out, or if it failed, with the kind SKIP.

        If the disk is full, a warning is logged and the next event saves the complete state.
        """
        number, before = self.state.events, self.members.get(event.policy)
        if event.kind is Kind.SKIP and before is not None:
            values, shaping = before.hyperparameters, before.reward_shaping
            event = dataclasses.replace(event, hyperparameters=values, reward_shaping=shaping)
        members = dict(sorted({**self.members, event.policy: self._after(event, before)}.items()))
        self.state = dataclasses.replace(self.state, events=number + 1, members=members)
        try:
            append_event(self._run_dir, number, event)
            save_state(self._run_dir, self.state)
        except OSError as error:
            _log.warning("the state of the population cannot be saved in %s: %s", self._run_dir, error)

    def _after(self, event: Event, before: Member | None) -> Member:
        """The member after ``event``."""
        start, values, shaping = self._options.pbt_start_mutation, event.hyperparameters, event.reward_shaping
        if before is None:
            return Member(event.policy, values, shaping, None, start, 1)
        next_turn_at = max(start, event.env_steps + self._options.pbt_period_env_steps)
        if event.kind is Kind.RESTORE:  # start may have changed
            next_turn = start if before.turns == 1 else max(start, min(before.next_turn, next_turn_at))
            return dataclasses.replace(before, hyperparameters=values, next_turn=next_turn)
        moved = dataclasses.replace(before, next_turn=next_turn_at, turns=before.turns + 1)
        if event.kind in (Kind.KEEP, Kind.SKIP):
            return moved
        parent = event.parent if event.kind is Kind.REPLACE else before.parent
        return dataclasses.replace(moved, hyperparameters=values, reward_shaping=shaping, parent=parent)

    def _known(self, objectives: Objectives) -> dict[int, float | None]:
        """Finite objectives of the policies that learn, here or in other runs, as plain numbers."""
        found = {policy: objectives.get(policy) for policy in (*self._learning, *self._others)}
        return {p: float(value) if value is not None and math.isfinite(value) else None for p, value in found.items()}

    def _waits(self, policy: int, env_steps: int) -> bool:
        resumed_at = self._resumed_at.get(policy)
        return resumed_at is not None and env_steps < resumed_at + self._options.pbt_period_env_steps

    def _rng(self, policy: int) -> np.random.Generator:
        """The generator of the current turn of ``policy``."""
        turns = self.members[policy].turns if policy in self.members else 0
        return np.random.default_rng(seed_at(self.state.seed, Branch.POPULATION, policy, turns))

    def _first(self, policy: int, env_steps: int) -> Event:
        values, shaping = self._given, self.state.reward_shaping
        if policy != (0 if self._options.pbt_dir else self._learning[0]):
            values, shaping = self._mutation(values, shaping, self._rng(policy), at_least_one=True)
        return Event(Kind.BEGIN, policy, env_steps, values, shaping)

    def _restored(self, member: Member, env_steps: int) -> Event:
        values, reason = self._fitted(member.hyperparameters)
        return Event(Kind.RESTORE, member.policy, env_steps, values, member.reward_shaping, reason=reason)

    def _fitted(self, found: Values) -> tuple[Values, str]:
        """The values of ``found``, or those next to them that are valid with the flags, and which are not as found."""
        values, problems = self._given, []
        for each in self._declared:
            saved = found.get(each.name, each.default)
            proposed = {**values, each.name: saved if saved == each.default else within_range(saved, each)}
            if self._is_legal(each.name, proposed):
                values = proposed
            if values[each.name] != saved:
                problems.append(f"{each.name}={saved:g} is not valid with the flags, {values[each.name]:g} is used")
        for name, saved in found.items():
            if name not in values and saved != (flag := value_of(self._config, name)):
                problems.append(f"{name}={saved:g} is no longer mutated, {assigned(name, flag)} is used")
        return values, "; ".join(problems)

    def _replace(
        self, policy: int, parents: Sequence[int], env_steps: int, objectives: Objectives, reason: str
    ) -> Event:
        rng = self._rng(policy)
        parent = parents[int(rng.integers(len(parents)))]
        source = {**self.members, **self._others}[parent]
        values, shaping = self._mutation(source.hyperparameters, source.reward_shaping, rng)
        return Event(Kind.REPLACE, policy, env_steps, values, shaping, parent, objectives, reason)

    def _mutation(
        self, values: Values, shaping: Shaping | None, rng: np.random.Generator, at_least_one: bool = False
    ) -> tuple[Values, Shaping | None]:
        new = mutated(values, self._declared, self._options, rng, self._is_legal, at_least_one)
        if shaping is None or self.state.reward_shaping is None:
            return new, shaping
        return new, mutated_shaping(shaping, self.state.reward_shaping, self._options, rng)

    def _is_legal(self, name: str, values: Values) -> bool:
        """Whether a new value of ``name`` passes all checks of the command line."""
        problems = find_problems(config_with(self._config, values))
        return not any(name in problem.flags for problem in problems)
