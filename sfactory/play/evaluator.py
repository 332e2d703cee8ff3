"""Room: a process that evaluates the policy while it is trained. In: published weights. Out: what its episodes came to.

It has an env, seeds and a copy of the weights of its own, and nothing that training has: what is learned is the same
with it as without.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from threadpoolctl import threadpool_limits

from sfactory.clock import BLOCK_S, Deadline, Every
from sfactory.config.schema import ModelConfig
from sfactory.env.conversion import BadObservation
from sfactory.env.factory import EnvFactory
from sfactory.env.lifecycle import close_env, see_gpu_of
from sfactory.env.vector import SoleEnv
from sfactory.errors import SFactoryError
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.layout import evaluator_name
from sfactory.messages import TRUE_OBJECTIVE, EvaluationPart, ToMain
from sfactory.play.player import EnvFailed, Episode, PlayerLike, player_of
from sfactory.play.rendering import AnyEnv
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at, seed_libraries
from sfactory.shared.channel import Channel
from sfactory.shared.control import Control
from sfactory.shared.status import State, StatusRow, Stopwatch
from sfactory.shared.weights import EvalWeights, SharedWeights
from sfactory.spec import EnvSpec

_log = logging.getLogger(__name__)

_FINISH_S = 2.0  # for what is under way at a stop; less than main's shortest grace
_RETRY_S = 0.05
_ENDLESS = 2**62
_MAKING = 0  # evaluations are numbered from 1


@dataclass(frozen=True)
class EvaluatorSetup:
    """Everything an evaluator works with. episodes: its own share. The rest as in ActorSetup."""

    evaluator: int
    episodes: int
    interval_s: float
    deterministic: bool
    generation: int
    seed: int
    gpus: tuple[int, ...]
    single_thread_envs: bool
    factory: EnvFactory
    spec: EnvSpec
    model: ModelConfig
    control: Control
    weights: SharedWeights
    candidate: EvalWeights
    to_main: Channel[ToMain]
    max_env_restarts: int = 0

    def seed_of(self, number: int, attempt: int = 0) -> int:
        """Seed of its episodes of evaluation ``number``; ``attempt``: how often it was begun anew."""
        place = self.evaluator, self.generation, number, *([attempt] if attempt else [])
        return seed_at(self.seed, Branch.EVALUATION, *place, bits=ENV_SEED_BITS)

    @property
    def name(self) -> str:
        """What errors call its env."""
        return f"{evaluator_name(self.evaluator)}, --env={self.factory.name}"


class _Dropped(Exception):
    """A stop leaves no time for the rest of an evaluation."""


class _Attention:
    """Shown the env after each of its resets and steps (see Screen): tells main of work, and looks for a stop."""

    def __init__(self, control: Control, row: StatusRow) -> None:
        self._control, self._row = control, row
        self._deadline: Deadline | None = None

    def show(self, env: AnyEnv) -> None:
        """Raise _Dropped once there is no time left."""
        self._row.begin_work()
        if self.over:
            raise _Dropped

    @property
    def over(self) -> bool:
        """True once a stop was ordered and _FINISH_S have passed since that was seen here."""
        if not self._control.stopping:
            return False
        if self._deadline is None:
            self._deadline = Deadline(_FINISH_S)
        return self._deadline.passed


class Evaluator:
    """Plays its share of each candidate's episodes; the first evaluator presents candidates."""

    def __init__(self, setup: EvaluatorSetup, make: Callable[[int], AnyEnv], row: StatusRow) -> None:
        """``make``: an env, given a seed; called again when one has failed."""
        self._setup, self._make, self._row = setup, make, row
        self._policy = ActingPolicy(setup.spec, setup.model, setup.candidate.weights, torch.device("cpu"))
        self._attention = _Attention(setup.control, row)
        self._restarts = 0
        self._env = make(setup.seed_of(_MAKING))
        self._player = self._player_of(self._env)
        self._due = Every(setup.interval_s)
        self._watch = Stopwatch(row)
        self._played = 0

    def run(self) -> None:
        """Evaluate until a stop is ordered, and finish what has been begun by then, if it does not take long."""
        while not self._setup.control.stopping:
            self.turn(BLOCK_S)
        if self._awaited:
            self._play()

    def turn(self, timeout: float) -> None:
        """Play a candidate if there is one, or wait for one up to ``timeout`` seconds."""
        if self._presents and self._setup.candidate.done and self._setup.weights.publications and self._due.due():
            self._setup.candidate.present(self._setup.weights)
        if self._awaited:
            self._play()
        else:
            self._wait(timeout)

    @property
    def _presents(self) -> bool:
        return self._setup.evaluator == 0

    @property
    def _awaited(self) -> bool:
        """Whether there is a candidate that this evaluator has not played yet."""
        return self._setup.candidate.number > self._played

    def _wait(self, timeout: float) -> None:
        left = self._due.left if self._presents else 0.0
        self._watch.before_wait()
        time.sleep(min(timeout, left) if left else timeout)  # see NOTE [Who may block]
        self._watch.after_wait()

    def close(self) -> None:
        """Close the env."""
        close_env(self._env, self._setup.name)

    def _player_of(self, env: AnyEnv) -> PlayerLike:
        setup = self._setup
        return player_of(
            env, setup.spec, self._policy, self._attention, name=setup.name, deterministic=setup.deterministic
        )

    def _play(self) -> None:
        setup = self._setup
        self._played = number = setup.candidate.number
        self._policy.refresh()
        tally: Tally | None = None
        while tally is None:
            try:
                tally = self._tally(number)
            except _Dropped:
                return
            except (EnvFailed, BadObservation) as error:
                self._mend(error)
        if self._send(tally.part(setup.evaluator, number, self._policy.version)):
            setup.candidate.mark_done(setup.evaluator, number)

    def _tally(self, number: int) -> Tally:
        tally = Tally()
        for episode in self._player.episodes(
            self._setup.episodes, _ENDLESS, self._setup.seed_of(number, self._restarts)
        ):
            tally.add(episode)
        return tally

    def _mend(self, error: SFactoryError) -> None:
        """Make the env anew because of ``error``, which is raised if that was done as often as is allowed."""
        setup = self._setup
        if self._restarts >= setup.max_env_restarts:
            raise error
        self._restarts += 1
        _log.warning(
            "%s; the env is made anew, and the evaluation begun anew (%d of --max_env_restarts=%d)",
            *(error, self._restarts, setup.max_env_restarts),
        )
        self.close()
        self._row.begin_work()
        self._env = self._make(setup.seed_of(_MAKING, self._restarts))
        self._player = self._player_of(self._env)

    def _send(self, part: EvaluationPart) -> bool:
        """Tell main; False if it took nothing any more until the end."""
        while not self._setup.to_main.try_put(part):
            if self._attention.over:
                return False
            time.sleep(_RETRY_S)
        return True


class Tally:
    """Sums over episodes, as EvaluationPart has them; nothing of an episode is kept."""

    def __init__(self) -> None:
        self._episodes = self._lengths = 0
        self._finite = self._objectives = 0
        self._returns = self._objective = 0.0
        self._least, self._greatest = math.inf, -math.inf

    def add(self, episode: Episode) -> None:
        """Take in one more. Returns and objectives that are not finite are in no sum."""
        self._episodes += 1
        self._lengths += episode.length
        value = episode.episode_return
        if math.isfinite(value):
            self._finite += 1
            self._returns += value
            self._least, self._greatest = min(self._least, value), max(self._greatest, value)
        objective = episode.stats.get(TRUE_OBJECTIVE, math.nan)
        if math.isfinite(objective):
            self._objectives += 1
            self._objective += objective

    def part(self, evaluator: int, number: int, policy_version: int) -> EvaluationPart:
        """What ``evaluator`` has to tell of evaluation ``number``."""
        return EvaluationPart(
            evaluator=evaluator,
            number=number,
            policy_version=policy_version,
            episodes=self._episodes,
            finite=self._finite,
            return_sum=self._returns,
            return_min=self._least,
            return_max=self._greatest,
            length_sum=self._lengths,
            objectives=self._objectives,
            objective_sum=self._objective,
        )


def run_evaluator(setup: EvaluatorSetup, row: StatusRow) -> None:
    """An evaluator's life: make the env, then evaluate until a stop is ordered."""
    row.begin_work()
    see_gpu_of(setup.evaluator, setup.gpus)
    torch.set_num_threads(1)
    if setup.single_thread_envs:
        threadpool_limits(1)  # for the whole life of the process, and so not used as a context
    seed_libraries(setup.seed_of(_MAKING))
    factory = setup.factory

    def make(seed: int) -> AnyEnv:
        if factory.makes_vectors:
            # Some vector envs can be seeded when they are made, and at no other time.
            return SoleEnv(factory.vector(1, seed))
        return factory.agents() if setup.spec.agents else factory()

    evaluator = Evaluator(setup, make, row)
    try:
        if setup.single_thread_envs:
            threadpool_limits(1)  # of the libraries, too, that came with the env
        row.set("state", State.RUNNING)
        row.set("busy_since", 0)
        evaluator.run()
    finally:
        evaluator.close()
