"""Carries out the decisions of population-based training: sends commands to learners and records the results.

A turn that changes something takes several iterations of main: the parent saves a checkpoint, the child loads it, and
then the event is recorded. Learners execute commands between datasets and while they wait for one. Training and the
turns of other policies continue meanwhile.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from sfactory.actor.reward_shaping import RewardShaping
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import EnvError, ExitCode
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.pbt.event_log import Event, Kind
from sfactory.pbt.population import Population
from sfactory.pbt.ranking import Objectives, TargetObjective
from sfactory.pbt.state import STATE_NAME
from sfactory.report.collector import ReportCollector
from sfactory.shared.control import LearnerCommand
from sfactory.supervise.shared_objects import SharedObjects

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Turn:
    """An event in progress. waits_for_parent: the parent was asked to save and has not answered yet."""

    event: Event
    waits_for_parent: bool


class PbtDriver:
    """Looked at in every beat. failure: why the run cannot go on, if it cannot."""

    def __init__(
        self,
        config: Config,
        population: Population,
        reports: ReportCollector,
        shared: SharedObjects,
        rundir: RunDir,
    ) -> None:
        options = config.population
        assert shared.orders is not None, "a population has several policies"
        self._population, self._reports, self._orders = population, reports, shared.orders
        self._is_done = shared.has_learned_enough  # it has saved then, and its learner looks at no orders any more
        self._rundir, self._schemes = rundir, shared.schemes
        self._num_policies = shared.layout.num_policies
        self._target = TargetObjective(options.pbt_target_objective, config.report.stats_avg)
        self._objective: str | None = None
        self._orphans: set[int] = set()  # members without weights that have no parent yet
        self._turns: dict[int, _Turn] = {}
        self._last = -1  # who had the last turn
        self.failure: EnvError | None = None

    @staticmethod
    def of(
        config: Config,
        seed: int,
        resumed: Resumed,
        reports: ReportCollector,
        shared: SharedObjects,
        rundir: RunDir,
        reward_shaping: RewardShaping | None = None,
    ) -> PbtDriver | None:
        """That of the population which the run directory holds, or of a new one; None without ``with_pbt``.

        reward_shaping: the env's own scheme, if it has one.
        """
        if not config.population.with_pbt:
            if (rundir.path / STATE_NAME).exists():
                _log.warning(
                    "--with_pbt=False: policies go on with the values of the flags; those that %s had reached are not "
                    "used, and come back with --with_pbt=True",
                    STATE_NAME,
                )
            return None
        steps = dict(enumerate(resumed.steps_of_policies))
        population = Population.restore(rundir.path, config, steps)
        if population is None:
            population = Population.begin(rundir.path, config, seed, steps, reward_shaping)
        pbt_driver = PbtDriver(config, population, reports, shared, rundir)
        learning = {*learning_policies(config)}
        lost = learning & {*resumed.policies_without_checkpoint}
        # If all are lost there is no policy to copy.
        pbt_driver._orphans = lost if lost != learning else set()
        pbt_driver._shape_all(reward_shaping)
        return pbt_driver

    def config_of(self, policy: int) -> Config:
        """What the learner of ``policy`` begins with."""
        return self._population.config_for(policy)

    def look(self) -> None:
        """Go on with turns that are under way, and begin those that are due."""
        if not self._knows_objective():
            return
        for policy, turn in list(self._turns.items()):
            self._go_on(policy, turn)
        objectives = self._reports.objectives(self._objective_name())
        self._population.look_at(objectives)
        for policy in self._in_order():
            if self._turns:
                return  # one at a time, so that a parent does not change while a child takes over from it
            event = None if self._is_done(policy) else self._next(policy, objectives)
            if event is not None:
                self._last = policy
                self._begin(event)

    def settle(self) -> None:
        """At the end, once no learner is left: record what was still carried out. What was not comes again."""
        for policy, turn in list(self._turns.items()):
            if not turn.waits_for_parent and self._orders.answer(policy) is not None:
                self._go_on(policy, turn)

    def _in_order(self) -> list[int]:
        """All members: those without weights first, then in rotation, so that short periods reach every member."""
        members = sorted(self._population.members, key=lambda policy: (policy <= self._last, policy))
        return sorted(members, key=lambda policy: policy not in self._orphans)

    def _next(self, policy: int, objectives: Objectives) -> Event | None:
        """What becomes of ``policy`` now, if it is time for anything."""
        population, steps = self._population, self._reports.env_steps_of(policy)
        if policy in self._orphans:
            event = population.reseed(policy, steps, objectives, self._orphans, "its own weights are lost")
            if event is not None:
                self._orphans.remove(policy)  # if it fails now, its next turn is one as all others are
            return event
        if not population.due(policy, steps):
            return None
        # Nobody is to take over fresh weights, however well they may have done by chance.
        return population.turn(policy, steps, {p: mean for p, mean in objectives.items() if p not in self._orphans})

    def _shape_all(self, own: RewardShaping | None) -> None:
        """Have every policy rewarded by its scheme; who is no member, by the env's ``own``."""
        for policy in range(self._num_policies):
            member = self._population.members.get(policy)
            self._shape(policy, own if member is None else member.reward_shaping)

    def _shape(self, policy: int, scheme: RewardShaping | None) -> None:
        if self._schemes is not None and scheme is not None:
            self._schemes.set(policy, scheme)

    def _knows_objective(self) -> bool:
        """Whether it is known which statistic policies are ranked by."""
        if self._objective is None and self.failure is None:
            found = self._target.look(self._reports.episodes.episodes, self._reports.extra_names)
            if found is not None and found.name is None:
                self.failure = EnvError(found.text)
                self.failure.exit_code = ExitCode.FAULTS  # training has begun
            elif found is not None:
                if found.text:
                    _log.info("%s", found.text)
                self._objective = found.name
        return self._objective is not None

    def _objective_name(self) -> str:
        assert self._objective is not None
        return self._objective

    def _begin(self, event: Event) -> None:
        """Give the first order that ``event`` takes."""
        if event.kind is Kind.KEEP:
            self._population.record(event)
            return
        if event.kind is not Kind.REPLACE or event.parent is None or self._is_done(event.parent):
            self._order(event)
        else:
            self._orders.give(event.parent, LearnerCommand(save=True))
            self._turns[event.policy] = _Turn(event, waits_for_parent=True)

    def _go_on(self, policy: int, turn: _Turn) -> None:
        event = turn.event
        if turn.waits_for_parent:
            assert event.parent is not None
            problem = "" if self._is_done(event.parent) else self._orders.answer(event.parent)
            if problem is not None:
                # What could not be saved now may have been before; it is for the child to find out.
                self._order(event)
            return
        done = self._is_done(policy)  # asked first: from then on it answers nothing
        problem = self._orders.answer(policy)
        if problem is None:
            if done:
                del self._turns[policy]
                self._population.call_off(policy)
            return
        del self._turns[policy]
        # It learns with what the event says since a beat ago at most, and the next period begins.
        event = dataclasses.replace(event, env_steps=self._reports.env_steps_of(policy))
        if problem:
            _log.warning("policy %d keeps what it has: %s", policy, problem)
            self._population.record(event.skipped(problem))
            return
        if event.kind is Kind.REPLACE:
            self._reports.forget_episodes(policy)
        self._shape(policy, event.reward_shaping)
        _log.info("%s", _told(event))
        self._population.record(event)

    def _order(self, event: Event) -> None:
        parent = None if event.kind is not Kind.REPLACE else str(self._checkpoints_of(event.parent))
        self._orders.give(event.policy, LearnerCommand(parent=parent, hyperparameters=dict(event.hyperparameters)))
        self._turns[event.policy] = _Turn(event, waits_for_parent=False)

    def _checkpoints_of(self, policy: int | None) -> Path:
        assert policy is not None
        return self._rundir.checkpoint_dir(policy)


def _told(event: Event) -> str:
    values = ", ".join(f"{name}={value:.4g}" for name, value in sorted(event.hyperparameters.items()))
    if event.kind is Kind.REPLACE:
        return f"policy {event.policy} takes over from policy {event.parent} ({event.reason}): {values}"
    return f"policy {event.policy} goes on with {values} ({event.reason})"
