"""Carries out the decisions of population-based training: sends commands to learners and records the results.

A turn that changes something takes several beats: the parent saves a checkpoint, the child loads it, and then the event
is recorded. Learners execute commands between datasets and while they wait for one. Training continues meanwhile.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from sfactory.actor.reward_shaping import RewardShaping
from sfactory.config.flags import assigned
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import SFactoryError
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.pbt.event_log import Event, Kind
from sfactory.pbt.population import Population
from sfactory.pbt.ranking import SHAPED_RETURN, Objectives, is_return, ranking_metric
from sfactory.report.collector import ReportCollector
from sfactory.shared.control import LearnerCommand
from sfactory.shared.objects import SharedObjects

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Turn:
    """An event in progress. saving: the parent that was asked to save and has not answered; None once it has."""

    event: Event
    saving: int | None


class PbtDriver:
    """Advances turns at every beat. failure: why the run cannot continue, if it cannot."""

    def __init__(
        self,
        config: Config,
        seed: int,
        resumed: Resumed,
        reports: ReportCollector,
        shared: SharedObjects,
        rundir: RunDir,
        reward_shaping: RewardShaping | None = None,
    ) -> None:
        """Restore the population of the run directory, or begin a new one with the env's own reward shaping."""
        self._first = config.population.pbt_member or 0  # the member that is policy 0
        steps = {self._first + policy: each.env_steps for policy, each in enumerate(resumed.policies)}
        population = Population.restore(rundir.path, config, steps)
        if population is None:
            population = Population.begin(rundir.path, config, seed, steps, reward_shaping)
        learning = {*learning_policies(config)}
        lost = learning & {policy for policy, each in enumerate(resumed.policies) if not each.has_checkpoint}
        # Members without weights that have no parent yet. If all are lost there is no policy to copy.
        self._orphans = lost if lost != learning else set[int]()
        self._population, self._reports, self._rundir = population, reports, rundir
        self._commands, self._reward_shaping = shared.learner_commands, shared.reward_shaping
        self._mutates_rewards = self._reward_shaping is not None and population.mutates_rewards
        self._is_done = shared.has_learned_enough  # it has saved then, and its learner executes no commands any more
        self._target, self._stats_avg = config.population.pbt_target_objective, config.report.stats_avg
        self._objective: str | None = None
        self._turn: _Turn | None = None  # one at a time: a parent must not change while a child takes over from it
        self._last = -1  # the policy that had the last turn
        self.failure: SFactoryError | None = None
        for policy in range(config.population.num_policies):
            member = population.members.get(self._first + policy)
            self._shape(policy, reward_shaping if member is None else member.reward_shaping)
        checkpoint = config.checkpoint
        if checkpoint.save_best_after <= config.run.most_env_steps(config.frames_per_step):  # otherwise none is saved
            self._check_metric("save_best_metric", checkpoint.save_best_metric, checkpoint.save_best_metric)

    def config_of(self, policy: int) -> Config:
        """The config with which the learner of ``policy`` starts."""
        return self._population.config_for(self._first + policy)

    def look(self) -> None:
        """Advance the turn in progress, and begin the next one that is due."""
        objective = self._find_objective()
        if objective is None:
            return
        self._advance()
        objectives = self._reports.objectives(objective)
        self._population.look_at(objectives)
        for policy in self._in_order():
            if self._turn is not None:
                return
            event = None if self._is_done(policy) else self._next(policy, objectives)
            if event is not None:
                self._last = policy
                self._begin(event)

    def settle(self) -> None:
        """Record a turn that was carried out before the last learner ended; any other comes again."""
        turn = self._turn
        if turn is not None and turn.saving is None:
            self._conclude(turn.event)

    def _find_objective(self) -> str | None:
        """The statistic that policies are ranked by; None while it is not known."""
        if self._objective is None and self.failure is None:
            episodes, reported = self._reports.episodes.episodes, self._reports.extra_names
            try:
                self._objective = ranking_metric(self._target, self._stats_avg, episodes, reported)
            except SFactoryError as error:
                self.failure = error
            self._check_metric("pbt_target_objective", self._target, self._objective)
        return self._objective

    def _check_metric(self, flag: str, value: str, metric: str | None) -> None:
        """Warn if ``metric``, which ``value`` of ``flag`` means, is a return, and returns do not compare policies."""
        if self._mutates_rewards and metric is not None and is_return(metric):
            _log.warning(SHAPED_RETURN, assigned(flag, value))

    def _in_order(self) -> list[int]:
        """All members: those without weights first, then in rotation, so that short periods reach every member."""
        return sorted(self._population.members, key=lambda p: (p not in self._orphans, p <= self._last, p))

    def _next(self, policy: int, objectives: Objectives) -> Event | None:
        """The event of ``policy`` that is due now, if any."""
        population, steps = self._population, self._reports.env_steps_of(policy)
        if policy in self._orphans:
            event = population.reseed(policy, steps, objectives, self._orphans)
            if event is not None:
                self._orphans.remove(policy)  # if it fails now, its next turn is an ordinary one
            return event
        if not population.due(policy, steps):
            return None
        # No member may copy fresh weights, however well they may have done by chance.
        return population.turn(policy, steps, {p: mean for p, mean in objectives.items() if p not in self._orphans})

    def _begin(self, event: Event) -> None:
        """Give the first command of ``event``."""
        if event.kind is Kind.KEEP:
            self._population.record(event)
        elif event.parent is not None and not self._is_done(event.parent):
            self._commands.give(event.parent, LearnerCommand(save=True))
            self._turn = _Turn(event, saving=event.parent)
        else:
            self._command(event)

    def _advance(self) -> None:
        turn = self._turn
        if turn is None:
            return
        if turn.saving is None:
            self._conclude(turn.event)
        elif self._is_done(turn.saving) or self._commands.answer(turn.saving) is not None:
            # If the parent could not save, it may have saved before; the child finds out.
            self._command(turn.event)

    def _conclude(self, event: Event) -> None:
        """Record ``event`` once the learner of its policy has answered."""
        policy = event.policy - self._first
        done = self._is_done(policy)  # asked first: from then on it answers nothing
        problem = self._commands.answer(policy)
        if problem is not None or done:
            self._turn = None
        if problem is None:
            return
        # It learns with the new values since a beat ago at most, and the next period begins.
        event = dataclasses.replace(event, env_steps=self._reports.env_steps_of(policy))
        if problem:
            _log.warning("policy %d keeps what it has: %s", event.policy, problem)
            self._population.record(dataclasses.replace(event, kind=Kind.SKIP, reason=problem))
            return
        values = ", ".join(f"{name}={value:.4g}" for name, value in sorted(event.hyperparameters.items()))
        if event.kind is Kind.REPLACE:
            self._reports.forget_episodes(policy)
            _log.info("policy %d copies policy %s (%s): %s", event.policy, event.parent, event.reason, values)
        else:
            _log.info("policy %d continues with %s (%s)", event.policy, values, event.reason)
        self._shape(policy, event.reward_shaping)
        self._population.record(event)

    def _command(self, event: Event) -> None:
        """Have the learner of the event's policy load its parent's checkpoint, if any, and the new hyperparameters."""
        parent = None if event.parent is None else str(self._weights_of(event.parent))
        command = LearnerCommand(parent=parent, hyperparameters=dict(event.hyperparameters))
        self._commands.give(event.policy - self._first, command)
        self._turn = _Turn(event, saving=None)

    def _weights_of(self, parent: int) -> Path:
        """The folder with the checkpoints of a parent."""
        return self._rundir.checkpoint_dir(parent)

    def _shape(self, policy: int, shaping: RewardShaping | None) -> None:
        if self._reward_shaping is not None and shaping is not None:
            self._reward_shaping.set(policy, shaping)
