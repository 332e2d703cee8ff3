"""Evaluates a saved policy: several processes play exactly so many episodes.

Every process plays a fixed share of them, so that long episodes count as much as short ones. The number of an episode
determines its seed, so that the episodes are the same for any number of processes (those of a vector env are not, which
may be seeded only when it is made).
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch

from sfactory.clock import BLOCK_S, Every
from sfactory.config.commands import EvaluateConfig
from sfactory.config.flags import values_of
from sfactory.config.import_strings import objects_of_program
from sfactory.config.trust import NETWORKS
from sfactory.env.factory import EnvFactory
from sfactory.env.lifecycle import close_env
from sfactory.errors import CheckpointError, ConfigError, EnvError, EnvFaults, Refused, traceback_of
from sfactory.experiment.saved_policy import SavedPolicy
from sfactory.planning.env_probe import probing
from sfactory.play.evaluation import Evaluation
from sfactory.play.player import EnvFailed, Episode, Player
from sfactory.play.rendering import AnyEnv
from sfactory.play.saved_policies import SavedPolicies
from sfactory.process.spawn import Spawner
from sfactory.seeds import ENV_SEED_BITS, Branch, seed_at, seed_libraries
from sfactory.system.cores import Cores

_SIGN_S = 1.0  # an interval in which a process shows that its env steps
_READY, _STEPPING = "ready", "stepping"  # what a process says beside its episodes
_FOR_ENV = 2**31  # in place of an episode's number: the seed for making an env

Report = Callable[[Sequence[Episode]], None]


class Share(NamedTuple):
    """The episodes that one process plays. numbers: of the episodes."""

    policies: SavedPolicies
    factory: EnvFactory
    numbers: range
    seed: int
    deterministic: bool

    def __call__(self, tell: Callable[[Any], None], at_end: contextlib.ExitStack) -> str | Refused | None:
        """Play them, and tell each with its number. Returns the error text of an env that fails, or what is refused."""
        torch.set_num_threads(1)
        name = f"--env={self.factory.name}"
        seed = seed_at(self.seed, Branch.EVALUATION, _FOR_ENV, self.numbers.start, bits=ENV_SEED_BITS)
        seed_libraries(seed)
        env = self.factory.either(seed=seed)
        at_end.callback(close_env, env, name)
        due = Every(_SIGN_S)

        def show(env: AnyEnv) -> None:
            if due.due():
                tell(_STEPPING)

        try:
            is_first = self.numbers.start == 0
            spec = self.policies.saved.spec_of(env, self.factory.name, says=is_first)
            model = self.policies.with_weights(torch.from_numpy).acting_model(spec, says=is_first)
        except (CheckpointError, ConfigError) as error:
            return error
        player = Player(env, spec, model, show, name=name, deterministic=self.deterministic)
        tell(_READY)
        try:
            for number in self.numbers:
                (episode,) = player.episodes(1, seed=seed_at(self.seed, Branch.EVALUATION, number))
                tell((number, episode))
        except EnvFailed as error:
            return f"{traceback_of(error.__cause__) if error.__cause__ else ''}{error}"
        return None


class EvaluationPlan(NamedTuple):
    """What is evaluated: a policy, in envs of a factory."""

    saved: SavedPolicy
    factory: EnvFactory
    episodes: int
    workers: int
    seed: int
    deterministic: bool

    @staticmethod
    def of(saved: SavedPolicy, config: EvaluateConfig) -> EvaluationPlan:
        """As ``config`` says, which does not choose the policy here. Raises ConfigError as ``saved.env_factory``."""
        seed = secrets.randbits(31) if config.seed is None else config.seed
        workers, factory = config.workers_of(Cores.available().count), saved.env_factory(config)
        factory = dataclasses.replace(factory, kwargs={**factory.kwargs, **config.env_kwargs})
        return EvaluationPlan(saved, factory, config.episodes, workers, seed, config.eval_deterministic)

    def run(self, report: Report = lambda episodes: None) -> Evaluation:
        """Play, once a Spawner has been opened. ``report``: called twice a second with the episodes so far.

        Raises EnvError if the env cannot be made or hangs, EnvFaults if it fails, and the errors of SavedPolicies.
        """
        # Torch would send weights as shared memory.
        policies = SavedPolicies.of(self.saved).with_weights(lambda weight: weight.numpy())
        spawner = Spawner(objects_of_program(self._code()))
        found: dict[int, Episode] = {}
        with ThreadPoolExecutor(self.workers) as pool, contextlib.ExitStack() as processes:
            # Each process has a stack of its own, so that its end is explained by what belongs to it.
            stacks = [processes.enter_context(contextlib.ExitStack()) for _ in range(self.workers)]
            futures = [
                pool.submit(_collect, self._start(spawner, policies, worker, stack), found)
                for worker, stack in enumerate(stacks)
            ]
            while not _over(futures):
                report(_in_order(found))
            for stack, future in zip(stacks, futures, strict=True):
                if future.done():  # the first failure ends the others
                    with stack:
                        future.result()
        episodes = _in_order(found)
        report(episodes)
        return Evaluation(self._played(), tuple(episodes))

    def _code(self) -> Iterator[object]:
        """The flags that name code of env, networks and policy mapping, or hold it."""
        values = values_of(self.saved.config)
        yield self.factory.name
        yield from (values[name] for name in ("wrapper", "policy_mapping", *NETWORKS))
        yield from self.factory.kwargs.values()

    def _start(
        self, spawner: Spawner, policies: SavedPolicies, worker: int, stack: contextlib.ExitStack
    ) -> Callable[[], Any]:
        numbers = range(worker, self.episodes, self.workers)
        factory = dataclasses.replace(self.factory, env_index=self.factory.env_index - worker)
        share = Share(policies, factory, numbers, self.seed, self.deterministic)
        limit_s = self.saved.config.sampling.reset_timeout_seconds
        return stack.enter_context(probing(spawner, self.factory.name, share, limit_s, name=f"sf-eval-{worker}"))

    def _played(self) -> dict[str, object]:
        return {
            "env": self.factory.name,
            "env_kwargs": dict(self.factory.kwargs),
            "policy": self.saved.wanted.policy_index,
            "checkpoint": str(self.saved.checkpoint),
            "checkpoint_env_steps": self.saved.state.env_steps,
            "deterministic": self.deterministic,
            "seed": self.seed,
            "workers": self.workers,
        }


def _collect(received: Callable[[], Any], found: dict[int, Episode]) -> None:
    """Take what one process tells, to its last word: None, or an error."""
    is_ready = False
    while (answer := received()) is not None:
        if isinstance(answer, tuple):
            number, episode = answer
            found[number] = episode
        elif isinstance(answer, Refused):
            raise answer
        elif answer == _READY:
            is_ready = True
        elif answer != _STEPPING:
            raise (EnvFaults if is_ready else EnvError)(answer)


def _over(futures: Sequence[Future[None]]) -> bool:
    """Whether all are done, or one has failed; waits for it for BLOCK_S."""
    done, waiting = wait(futures, BLOCK_S, FIRST_EXCEPTION)
    return not waiting or any(future.exception() is not None for future in done)


def _in_order(found: dict[int, Episode]) -> list[Episode]:
    return [episode for _, episode in sorted(dict(found).items())]
