"""Runs the process that evaluates the newest published policy while training continues.

It has its own env, seeds and copy of the weights, so training gives the same results with it as without. Agents that
always have another policy in training have it here, too; returns are those of the agents of policy 0.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from sfactory.actor.policy_assignment import SOLE_AGENT, lasting_policies
from sfactory.clock import BLOCK_S, Deadline, Every
from sfactory.config.schema import Config
from sfactory.env.conversion import BadObservation
from sfactory.env.drawing import draw_into_memory
from sfactory.env.factory import IMAGES, EnvFactory
from sfactory.env.lifecycle import close_env, see_gpu_of
from sfactory.errors import EnvError, SFactoryError
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.layout import LEARNERS, episodes_of, evaluator_name, learner_name
from sfactory.messages import TRUE_OBJECTIVE, EpisodeTotals, EvaluationPart
from sfactory.play.action_chooser import ActingModel
from sfactory.play.eval_video import EvaluationVideos
from sfactory.play.joint_policy import JointPolicy
from sfactory.play.player import EnvFailed, Player
from sfactory.play.rendering import AnyEnv
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at, seed_libraries
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusRow, Stopwatch

_log = logging.getLogger(__name__)

_FINISH_S = 2.0  # for an evaluation that has begun when a stop is ordered; less than main's shortest grace
_RETRY_S = 0.05
_FOR_ENV = 0  # in place of an evaluation's number, which counts from 1: the seed for making the env


@dataclass(frozen=True)
class EvaluatorSetup:
    """Everything an evaluator works with.

    generation, attempt: see ActorSetup. video_folder: None if it records nothing.
    """

    config: Config
    shared: SharedObjects
    evaluator: int
    seed: int
    generation: int
    video_folder: Path | None = None
    attempt: int = 0

    @cached_property
    def factory(self) -> EnvFactory:
        """Makes its env."""
        index = self.shared.layout.env_index_of_evaluator(self.evaluator)
        return replace(EnvFactory.of(self.config), env_index=index, env_steps=self.generation)

    def seed_of(self, number: int, attempt: int = 0) -> int:
        """Seed of its episodes of evaluation ``number``; ``attempt``: how often the env was recreated before."""
        again = [attempt, self.attempt] if self.attempt else [attempt] if attempt else []
        place = self.evaluator, self.generation, number, *again
        return seed_at(self.seed, Branch.EVALUATION, *place, bits=ENV_SEED_BITS)


class _NoTimeLeft(Exception):
    """A stop leaves no time for the rest of an evaluation."""


class Evaluator:
    """Plays its share of each candidate's episodes; the first evaluator presents candidates."""

    def __init__(self, setup: EvaluatorSetup, make: Callable[[int], AnyEnv], row: StatusRow) -> None:
        """``make``: makes an env, given a seed; called again when an env has failed."""
        self._setup, self._make, self._row = setup, make, row
        self._name = f"{evaluator_name(setup.evaluator)}, --env={setup.factory.name}"  # of the env, for errors
        self._shared, self._evaluation = setup.shared, setup.config.evaluation
        assert setup.shared.candidate is not None, "without evaluators"
        self._candidate = setup.shared.candidate
        self._policies = self._make_policies()
        self._policy = self._policies[0]
        self._learner = setup.shared.status.row(learner_name(0))
        self._is_judged = setup.config.checkpoint.best_by_evaluation
        self._deadline: Deadline | None = None
        self._restarts = 0
        self._played = self._candidate.done_by(setup.evaluator)  # more than 0 if it replaces one that has died
        folder = setup.video_folder
        self._videos = None if folder is None else EvaluationVideos(folder, self._name)
        self._make_env()
        self._due = Every(self._evaluation.eval_interval_sec)
        self._watch = Stopwatch(row)

    def run(self) -> None:
        """Evaluate until a stop is ordered; finish a candidate that waits then, if it does not take long."""
        while not self._shared.control.stopping:
            self.turn(BLOCK_S)
        if self._candidate_waits:
            self._play()

    def turn(self, timeout: float) -> None:
        """Play a candidate if there is one, or wait for one up to ``timeout`` seconds."""
        presents, candidate = self._setup.evaluator == 0, self._candidate
        is_free = candidate.done and (candidate.judged or not self._is_judged)
        weights = self._shared.weights[: len(self._policies)]
        if presents and is_free and all(each.publications for each in weights) and self._due.due():
            candidate.present(weights)
        if self._candidate_waits:
            self._play()
            return
        left = self._due.left if presents else 0.0
        self._watch.before_wait()
        time.sleep(min(timeout, left) if left else timeout)  # see NOTE [Who may block]
        self._watch.after_wait()

    @property
    def _candidate_waits(self) -> bool:
        """Whether there is a candidate that this evaluator has not played yet."""
        return self._candidate.number > self._played

    def close(self) -> None:
        """Close the env."""
        close_env(self._env, self._name)

    def _make_policies(self) -> list[ActingPolicy]:
        """Policy 0, and the others if each plays agents of its own."""
        spec, config = self._shared.spec, self._setup.config
        population, agents = config.population, spec.agents or (SOLE_AGENT,)
        several = bool(self._candidate.others)
        self._plays = lasting_policies(population.policy_mapping, agents, population.num_policies) if several else ()
        weights = [self._candidate.weights, *(self._candidate.others if self._plays else ())]
        return [ActingPolicy(spec, config.model, each, torch.device("cpu")) for each in weights]

    def _make_env(self) -> None:
        setup = self._setup
        self._env = self._make(setup.seed_of(_FOR_ENV, self._restarts))
        policy: ActingModel = self._policy
        if self._plays:
            policy = JointPolicy(dict(enumerate(self._policies)), self._plays, 0)
        self._player = Player(
            *(self._env, self._shared.spec, policy, self._check_stop),
            name=self._name,
            deterministic=self._evaluation.eval_deterministic,
            before_reset=lambda: self._row.begin_reset(True),
        )

    def _check_stop(self, env: AnyEnv) -> None:
        """After each reset and step of the env: report work to main, and raise _NoTimeLeft if there is none."""
        self._row.set("resetting", 0)
        self._row.begin_work()
        if self._no_time_left:
            raise _NoTimeLeft
        if self._videos is not None:
            self._videos.show(env)

    @property
    def _no_time_left(self) -> bool:
        """True once _FINISH_S have passed since a stop was first seen here."""
        if not self._shared.control.stopping:
            return False
        if self._deadline is None:
            self._deadline = Deadline(_FINISH_S)
        return self._deadline.passed

    def _play(self) -> None:
        evaluator, candidate = self._setup.evaluator, self._candidate
        self._played = number = candidate.number
        for policy in self._policies:
            policy.refresh()
        counts = candidate.read()[2]  # another process may have presented it
        env_steps = int(counts["env_steps"])
        totals: EpisodeTotals | None = None
        while totals is None:
            try:
                self._row.begin_work()
                self._player.set_training_info(self._trained_env_steps(counts))
                totals = self._play_episodes(number, env_steps)
            except _NoTimeLeft:
                return
            except (EnvFailed, BadObservation) as error:
                self._recreate_env(error)
        part = EvaluationPart(evaluator, number, self._policy.version, env_steps, totals)
        while not self._reported(part):
            if self._no_time_left:
                return
            time.sleep(_RETRY_S)
        candidate.mark_done(evaluator, number)

    def _trained_env_steps(self, counts: Mapping[str, float]) -> int:
        """Those of all policies: of the candidate's as in its ``counts``, of others as they are now."""
        others = self._shared.status.total("run_env_steps", LEARNERS) - self._learner.get("run_env_steps")
        return int(counts["run_env_steps"] + max(others, 0.0))

    def _reported(self, part: EvaluationPart) -> bool:
        """Tell main, unless it has too much to read."""
        self._row.begin_work()
        self._row.enter_ring()
        try:
            return self._shared.actors_to_main.try_put(part)
        finally:
            self._row.leave_ring()

    def _play_episodes(self, number: int, env_steps: int) -> EpisodeTotals:
        totals, seed = EpisodeTotals(), self._setup.seed_of(number, self._restarts)
        share = episodes_of(self._setup.evaluator, self._shared.layout.evaluators, self._evaluation.eval_episodes)
        with contextlib.ExitStack() as first:
            if self._videos is not None and not self._shared.control.stopping:
                first.enter_context(self._videos.recording(self._env, env_steps))
            for episode in self._player.episodes(share, seed=seed):
                first.close()  # only one is recorded
                objective = episode.stats.get(TRUE_OBJECTIVE, math.nan)
                totals = totals.merged(EpisodeTotals.of(episode.episode_return, episode.length, objective))
        return totals

    def _recreate_env(self, error: SFactoryError) -> None:
        """Recreate the env, or raise ``error`` if that was done as often as is allowed."""
        self._count_restart(error)
        self.close()
        while True:
            self._row.begin_work()
            self._row.begin_reset(True)
            try:
                self._make_env()
            except EnvError as again:
                self._count_restart(again)
            else:
                return

    def _count_restart(self, error: SFactoryError) -> None:
        allowed = self._setup.config.sampling.max_env_restarts
        if self._restarts >= allowed:
            raise error
        self._restarts += 1
        _log.warning(
            "%s; the env is recreated, and the evaluation starts over (%d of --max_env_restarts=%d)",
            *(error, self._restarts, allowed),
        )


def run_evaluator(setup: EvaluatorSetup, row: StatusRow) -> None:
    """Run an evaluator's process: make the env, then evaluate until a stop is ordered."""
    row.begin_work()
    see_gpu_of(setup.evaluator, setup.config.sampling.actor_worker_gpus)
    torch.set_num_threads(1)
    single_thread = setup.config.sampling.force_envs_single_thread
    if single_thread:
        threadpool_limits(1)  # for as long as the process lives, so not used as a context
    seed_libraries(setup.seed_of(_FOR_ENV))
    mode = None if setup.video_folder is None else IMAGES
    if mode is not None:
        draw_into_memory()
    evaluator = Evaluator(setup, lambda seed: setup.factory.either(mode, seed), row)
    try:
        if single_thread:
            threadpool_limits(1)  # also of libraries that the env has loaded
        row.set("state", State.RUNNING)
        row.set("busy_since", 0)
        evaluator.run()
    finally:
        evaluator.close()
