"""Room: population-based training. In: env steps and objectives of policies. Out: what becomes of each, and when.

It decides and remembers, and copies nothing: whoever asked for a turn carries the event out (weights from the parent,
hyperparameters to the learner, reward shaping to the envs) and has it recorded then, as it was or as skipped. Until
that the state is the one before. A run that is killed in between goes on with that: if the child had taken over by
then, with its parent's weights and its own hyperparameters.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from sfactory.config.flags import config_of, values_of
from sfactory.config.hyperparameters import hyperparameters
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.config.validation import find_problems
from sfactory.errors import EnvError
from sfactory.pbt.event_log import GENEALOGY_NAME, Event, Kind, PbtEventLog, next_number
from sfactory.pbt.mutation import Perturbation, Shaping, Values, mutated, mutated_shaping, shaping_problem, within_range
from sfactory.pbt.ranking import Objectives, Place, Selection, best_of, standing
from sfactory.pbt.state import Member, PopulationState, load_state, save_state
from sfactory.seeds import Branch, seed_at

_log = logging.getLogger(__name__)


class Population:
    """The population of a run: its members, whose turn it is, and what happens in a turn."""

    def __init__(self, run_dir: Path, config: Config, state: PopulationState) -> None:
        """Use ``begin`` or ``restore``."""
        options = config.population
        self._run_dir, self._config, self._state = run_dir, config, state
        self._declared = hyperparameters(config)
        self._by = Perturbation(options.pbt_mutation_rate, options.pbt_perturb_min, options.pbt_perturb_max)
        self._selection = Selection(
            options.pbt_replace_fraction, options.pbt_replace_reward_gap, options.pbt_replace_reward_gap_absolute
        )
        self._learning = learning_policies(config)
        self._genealogy = PbtEventLog(run_dir / GENEALOGY_NAME)
        self._pending: set[int] = set()
        # At which env steps members joined a session that knows of no episodes; {} once all could be ranked.
        self._joined_at: dict[int, int] = {}

    @classmethod
    def begin(
        cls, run_dir: Path, config: Config, seed: int, env_steps: Mapping[int, int], reward_shaping: Shaping | None
    ) -> Population:
        """A new population. The first policy has the values of the flags, all others begin with mutated ones.

        The history of one that the run had before, whose state was moved away, is kept.

        env_steps: of each policy so far. reward_shaping: the env's own, if it has any; raises EnvError if that is no
        nested mapping of numbers.
        """
        problem = None if reward_shaping is None else shaping_problem(reward_shaping)
        if problem is not None:
            raise EnvError(f"the reward shaping that the environment reports {problem}")
        # As it will be read again: lists for tuples.
        shaping: Shaping | None = json.loads(json.dumps(reward_shaping))
        population = cls(run_dir, config, PopulationState(seed, next_number(run_dir), shaping, {}))
        population._join(env_steps)
        for policy in population._learning:
            population.record(population._first(policy, env_steps.get(policy, 0)))
        return population

    @classmethod
    def restore(cls, run_dir: Path, config: Config, env_steps: Mapping[int, int]) -> Population | None:
        """The population that the run directory holds, or None if it holds none; RunDirError if it is damaged.

        env_steps: of each policy, as its checkpoint tells. Hyperparameters that are new among the mutated begin with
        the values of the flags, and so do values that do not go with the flags any more; those that are mutated no more
        are forgotten. Who goes on from before its last turn has the next one a period later.
        """
        state = load_state(run_dir)
        if state is None:
            return None
        population = cls(run_dir, config, state)
        population._join(env_steps)
        for policy in population._learning:
            steps, member = env_steps.get(policy, 0), state.members.get(policy)
            event = population._first(policy, steps) if member is None else population._again(member, steps)
            if event.reason:
                _log.warning("policy %d: %s", policy, event.reason)
            population.record(event)
        return population

    @property
    def state(self) -> PopulationState:
        """What is saved."""
        return self._state

    @property
    def members(self) -> Mapping[int, Member]:
        """Members by policy, those that do not learn at present included."""
        return self._state.members

    def config_for(self, policy: int) -> Config:
        """The run's config with the hyperparameters of ``policy``, or as it is for one that is no member."""
        member = self.members.get(policy)
        return self._config if member is None else self._config_with(member.hyperparameters)

    def look_at(self, objectives: Objectives) -> None:
        """Take note of whether all can be ranked, see ``due``. objectives: as for ``turn``."""
        if None not in self._known(objectives).values():
            self._joined_at = {}

    def due(self, policy: int, env_steps: int) -> bool:
        """Whether ``policy``, at its env step ``env_steps``, has a turn; not while one is being carried out.

        What episodes told in earlier sessions is not known any more: until all could be ranked again, a turn waits, but
        for no more than a period since this session began.
        """
        if policy not in self._learning or policy in self._pending or env_steps < self.members[policy].next_turn:
            return False
        return not self._waits(policy, env_steps)

    def turn(self, policy: int, env_steps: int, objectives: Objectives) -> Event:
        """What the turn of ``policy`` brings; it has another one only when this was recorded.

        objectives: mean objective of each policy over its last episodes; None of one that has had too few. Those of
        policies that do not learn are not looked at.
        """
        known = self._known(objectives)
        found = standing(policy, known, self._selection)
        member, rng = self.members[policy], self._rng(policy)
        if found.place is Place.UNRANKED:
            return self._begun(self._kept(member, env_steps, known, "too few episodes to be ranked"))
        if found.place is Place.BEST:
            return self._begun(self._kept(member, env_steps, known, "among the best"))
        if found.parents:
            parent = found.parents[int(rng.integers(len(found.parents)))]
            return self._begun(self._child(member, self.members[parent], env_steps, known, rng))
        return self._begun(self._mutant(member, env_steps, known, rng, found.place))

    def reseed(
        self, policy: int, env_steps: int, objectives: Objectives, lost: Collection[int], reason: str
    ) -> Event | None:
        """What becomes of a member whose weights are lost: it takes over from one of the best of those not ``lost``.

        None as long as it waits for these to be ranked, as turns do. If none of them is then, it takes over from any.
        Raises ValueError if all are lost.
        """
        known = self._known(objectives).items()
        others = {other: value for other, value in known if other != policy and other not in lost}
        if not others:
            raise ValueError(f"there is no member beside policy {policy} that has its weights")
        if None in others.values() and self._waits(policy, env_steps):
            return None
        rng, parents = self._rng(policy), best_of(others, self._selection) or list(others)
        parent = self.members[parents[int(rng.integers(len(parents)))]]
        event = self._child(self.members[policy], parent, env_steps, others, rng)
        return self._begun(dataclasses.replace(event, reason=reason))

    def call_off(self, policy: int) -> None:
        """The turn of ``policy`` that is being carried out comes to nothing: it has the same one later."""
        self._pending.discard(policy)

    def record(self, event: Event) -> None:
        """Take note of what ``turn`` or ``reseed`` gave once it is done, or of ``event.skipped(...)`` if it failed.

        A disk that is full costs the memory of it, never the run: the next event is saved with all that has changed.
        """
        number, before = self._state.events, self.members.get(event.policy)
        if event.kind is Kind.SKIP and before is not None:
            event = dataclasses.replace(
                event, hyperparameters=before.hyperparameters, reward_shaping=before.reward_shaping
            )
        self._state = self._state.with_member(self._after(event, before))
        self._pending.discard(event.policy)
        try:
            self._genealogy.append(number, event)
            save_state(self._run_dir, self._state)
        except OSError as error:
            _log.warning("the state of the population cannot be saved in %s: %s", self._run_dir, error)

    def _after(self, event: Event, before: Member | None) -> Member:
        """The member that ``event`` makes of the one before."""
        options = self._config.population
        if before is None:
            return Member(
                event.policy, event.hyperparameters, event.reward_shaping, None, options.pbt_start_mutation, 1
            )
        a_period_on = max(options.pbt_start_mutation, event.env_steps + options.pbt_period_env_steps)
        if event.kind is Kind.RESTORE:
            next_turn = min(before.next_turn, a_period_on)
            return dataclasses.replace(before, hyperparameters=event.hyperparameters, next_turn=next_turn)
        moved = dataclasses.replace(before, next_turn=a_period_on, turns=before.turns + 1)
        if event.kind in (Kind.KEEP, Kind.SKIP):
            return moved
        parent = event.parent if event.kind is Kind.REPLACE else before.parent
        return dataclasses.replace(
            moved, hyperparameters=event.hyperparameters, reward_shaping=event.reward_shaping, parent=parent
        )

    def _known(self, objectives: Objectives) -> dict[int, float | None]:
        """The objectives of those that learn, as plain numbers."""
        found = {policy: objectives.get(policy) for policy in self._learning}
        return {p: float(value) if value is not None and math.isfinite(value) else None for p, value in found.items()}

    def _join(self, env_steps: Mapping[int, int]) -> None:
        """A session begins with members at these env steps."""
        if any(env_steps.values()):
            self._joined_at = {policy: env_steps.get(policy, 0) for policy in self._learning}

    def _waits(self, policy: int, env_steps: int) -> bool:
        joined_at = self._joined_at.get(policy)
        return joined_at is not None and env_steps < joined_at + self._config.population.pbt_period_env_steps

    def _begun(self, event: Event) -> Event:
        self._pending.add(event.policy)
        return event

    def _rng(self, policy: int) -> np.random.Generator:
        """The generator of the present turn of ``policy``."""
        member = self.members.get(policy)
        return np.random.default_rng(
            seed_at(self._state.seed, Branch.POPULATION, policy, 0 if member is None else member.turns)
        )

    def _first(self, policy: int, env_steps: int) -> Event:
        values: Values = {each.name: each.default for each in self._declared}
        shaping = self._state.reward_shaping
        if policy != self._learning[0]:
            values, shaping = self._mutation(values, shaping, self._rng(policy), at_least_one=True)
        return Event(Kind.BEGIN, policy, env_steps, values, shaping)

    def _again(self, member: Member, env_steps: int) -> Event:
        values: Values = {each.name: each.default for each in self._declared}
        problems = []
        for each in self._declared:
            had = member.hyperparameters.get(each.name, each.default)
            proposed = {**values, each.name: had if had == each.default else within_range(had, each)}
            if self._is_legal(each.name, proposed):
                values = proposed
            if values[each.name] != had:
                problems.append(f"{each.name}={had:g} does not go with the flags any more, {values[each.name]:g} does")
        reason = "; ".join(problems)
        return Event(Kind.RESTORE, member.policy, env_steps, values, member.reward_shaping, reason=reason)

    def _kept(self, member: Member, env_steps: int, objectives: Objectives, reason: str) -> Event:
        values, shaping = member.hyperparameters, member.reward_shaping
        return Event(Kind.KEEP, member.policy, env_steps, values, shaping, objectives=objectives, reason=reason)

    def _mutant(
        self, member: Member, env_steps: int, objectives: Objectives, rng: np.random.Generator, place: Place
    ) -> Event:
        values, shaping = self._mutation(member.hyperparameters, member.reward_shaping, rng)
        if (values, shaping) == (member.hyperparameters, member.reward_shaping):
            return self._kept(member, env_steps, objectives, "chance changed nothing")
        reason = "in the middle" if place is Place.MIDDLE else "among the worst, by less than the gaps"
        return Event(Kind.MUTATE, member.policy, env_steps, values, shaping, None, objectives, reason)

    def _child(
        self, member: Member, parent: Member, env_steps: int, objectives: Objectives, rng: np.random.Generator
    ) -> Event:
        values, shaping = self._mutation(parent.hyperparameters, parent.reward_shaping, rng)
        reason = "among the worst, by more than the gaps"
        return Event(Kind.REPLACE, member.policy, env_steps, values, shaping, parent.policy, objectives, reason)

    def _mutation(
        self, values: Values, shaping: Shaping | None, rng: np.random.Generator, at_least_one: bool = False
    ) -> tuple[Values, Shaping | None]:
        new = mutated(values, self._declared, self._by, rng, self._is_legal, at_least_one)
        if shaping is None or self._state.reward_shaping is None:
            return new, shaping
        return new, mutated_shaping(shaping, self._state.reward_shaping, self._by, rng)

    def _config_with(self, values: Values) -> Config:
        return config_of({**values_of(self._config), **values})

    def _is_legal(self, name: str, values: Values) -> bool:
        """Whether a new value of ``name`` passes every check that a value on the command line has to pass."""
        return not any(name in problem.flags for problem in find_problems(self._config_with(values)))
