"""Runs learners, policy workers and actors in one process, where they take turns.

Workers and shared objects are those of a parallel run. On a CPU, two runs with the same seed are equal bit by bit:
nothing that is learned from depends on time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Protocol

import torch

from sfactory.actor.actor_process import make_actor
from sfactory.actor.setup import ActorSetup, make_splits
from sfactory.clock import TIMEOUTS, Every
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import ExitCode, Passing, SFactoryError, failure_text
from sfactory.experiment.summary import Outcome
from sfactory.inference.policy_worker import PolicySetup, PolicyWorker
from sfactory.learner.learner import Learner
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.setup import LearnerSetup
from sfactory.model.torch_state import OwnTorchState
from sfactory.planning.plan import device_of
from sfactory.process.orphans import Started, new_children_end
from sfactory.process.signals import Interrupted, TimeIsUp, bounded, in_main_thread, stdout_to_stderr
from sfactory.process.spawn import Spawner
from sfactory.runner.context import Executor, RunContext
from sfactory.seeds import Branch, seed_at, seed_libraries
from sfactory.shared.control import Stop
from sfactory.shared.objects import SharedObjects
from sfactory.supervise.hang_detection import SerialHangWatch
from sfactory.supervise.monitors import IdlePolicyWarning, StatusDump
from sfactory.supervise.process_group import ProcessExit
from sfactory.supervise.supervisor import BEAT_S
from sfactory.system.gpu import use_device

_log = logging.getLogger(__name__)

_IDLE_BEATS = 120  # half a minute of turns in which no worker had anything to do
_CLOSE_S = TIMEOUTS.stall  # for the envs at the end


class TurnTaker(Protocol):
    """What collects in its turns: an actor."""

    def turn(self, timeout: float) -> None:
        """Do what can be done, waiting up to ``timeout`` seconds for a message."""

    def report(self) -> None:
        """At the end: send main the episodes that have finished."""


@contextlib.contextmanager
def processes_of_envs_end(spawner: Spawner) -> Iterator[Started]:
    """End what envs have started inside, also if this process is killed. See NOTE [Processes of envs].

    Outside the main thread nothing is ended: the program goes on beside it, and may start processes.
    """
    if not in_main_thread():
        yield Started()
        return
    spawner.envs_live_here(True)
    try:
        with new_children_end() as started:
            yield started
    finally:
        spawner.envs_live_here(Started.blocks > 0)


class SerialSampling:
    """The policy workers and actors of a run, which take turns in this process. envs: closes their envs."""

    def __init__(self, config: Config, shared: SharedObjects, seed: int, generation: int, device: str) -> None:
        """``generation``: see ActorSetup."""
        self._config, self._shared, self._seed, self._generation = config, shared, seed, generation
        self._device = device
        self._policy_workers: list[PolicyWorker] = []
        self.actors: list[TurnTaker] = []
        self.envs = contextlib.ExitStack()

    def make(self) -> None:
        """Make all workers; actions are drawn from here on, different ones in each session."""
        layout = self._shared.layout
        torch.manual_seed(seed_at(self._seed, Branch.INFERENCE, 0, 0, self._generation))
        self._policy_workers = [self._make_policy_worker(worker) for worker in range(len(layout.policy_worker_names))]
        self.actors = [self.make_actor(actor) for actor in range(layout.num_actors)]

    def turn(self) -> None:
        """One turn of each."""
        layout = self._shared.layout
        for name, policy_worker in zip(layout.policy_worker_names, self._policy_workers, strict=True):
            with failing_as(name):
                policy_worker.turn(0)
        for name, actor in zip(layout.actor_names, self.actors, strict=True):
            with failing_as(name):
                actor.turn(0)

    def make_actor(self, actor: int) -> TurnTaker:
        """Make an actor and its envs."""
        shared, name = self._shared, self._shared.layout.actor_names[actor]
        row = shared.status.row(name)
        with failing_as(name):
            setup = ActorSetup(self._config, shared, actor, self._seed, self._generation)
            return make_actor(setup, make_splits(setup, row, self.envs), row)

    def _make_policy_worker(self, worker: int) -> PolicyWorker:
        shared, layout = self._shared, self._shared.layout
        name = layout.policy_worker_names[worker]
        with failing_as(name), OwnTorchState():
            device = device_of(worker // layout.policy_workers, self._device)
            setup = PolicySetup(self._config, shared, worker, self._seed, self._generation, device)
            return PolicyWorker(setup, setup.make_policy(), shared.status.row(name))


class SerialExecutor(Executor):
    """Creates all workers, gives each its turn until the end, and saves."""

    _worker_of: type[LearnerWorker] = LearnerWorker
    _sampling_of: type[SerialSampling] = SerialSampling

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._layout = context.plan.layout
        self._watch = SerialHangWatch(self._shared.status)
        generation, device = context.resumed.env_steps, context.plan.device
        self._sampling = self._sampling_of(context.config, self._shared, context.seed, generation, device)
        self._learners: list[Learner] = []
        self._learner_workers: list[LearnerWorker] = []
        self._last_counts, self._idle_beats = (-1, -1), 0
        self._idle_policies = IdlePolicyWarning(
            learning_policies(context.config), self._reports.env_steps_of, self._shared.has_learned_enough
        )

    def run(self) -> Outcome:
        """See Executor."""
        interrupts = self._context.interrupts
        failure: SFactoryError | None = None
        done = False
        with contextlib.closing(self._reporter):
            try:
                with self._watch, stdout_to_stderr(), processes_of_envs_end(self._context.spawner), self._envs_closed():
                    if not self._context.observers.over:
                        self._make_workers()
                        self._announce_start()
                        done = self._train()
            except Interrupted:
                if interrupts.raising:
                    raise  # nothing has happened yet; otherwise it is the second signal, and nothing was saved
            except SFactoryError as error:
                failure = error
            finally:
                interrupts.raising = interrupts.raising_again = False
                interrupts.on_first = None
            self._reports.poll()
            return self._finish(failure, done)

    @contextlib.contextmanager
    def _envs_closed(self) -> Iterator[None]:
        """Close the envs after the block. A signal, or the end of _CLOSE_S, ends a close() that does not return."""
        interrupts = self._context.interrupts
        try:
            yield
        finally:
            before, interrupts.raising = interrupts.raising, True  # nothing is left to be saved
            try:
                with bounded(_CLOSE_S):
                    self._sampling.envs.close()
            except (Interrupted, TimeIsUp):
                _log.warning("an env's close() does not return, and is left; nothing is lost")
            finally:
                interrupts.raising = before

    def _make_workers(self) -> None:
        """Make all workers. Until then signals raise Interrupted; later the first ends the turns, the second raises."""
        layout, seed, interrupts = self._layout, self._context.seed, self._context.interrupts
        generation = self._context.resumed.env_steps
        use_device(self._context.plan.device)
        seed_libraries(seed_at(seed, Branch.LIBRARIES, 0, generation, 0))
        self._learner_workers = [self._make_learner(policy) for policy in range(layout.num_policies)]
        self._sampling.make()
        interrupts.take_back()
        interrupts.on_first = self._order_stop
        interrupts.raising_again = True
        interrupts.raising = False

    def _train(self) -> bool:
        """Take turns to the end, and save; returns whether a limit was reached or an observer ended the run."""
        try:
            self._take_turns()
            if self._context.interrupts.count:
                _log.info("%s", self._context.interrupts.announcement)
            for actor in self._sampling.actors:
                actor.report()
            self._reports.poll()
            self._reporter.beat()  # so that the learner judges its last policy by the last episodes
        except Passing:
            raise
        except BaseException as error:  # what an env has left behind, such as a timer, may raise anything, anywhere
            try:
                if not self._context.run_dir.lost:
                    self._save_all()  # the learners that have not failed keep what they have learned
            except SFactoryError as another:
                _log.error("%s", another)  # the other fault came first, and the run ends with it
            if isinstance(error, SFactoryError):
                raise
            raise _death("sf-main", error) from error
        self._save_all()
        learned = all(self._learners[policy].over for policy in learning_policies(self._context.config))
        return learned or (self._context.observers.enough and not self._context.interrupts.count)

    def _take_turns(self) -> None:
        layout, context = self._layout, self._context
        status_dump, beat = StatusDump(self._shared), Every(BEAT_S)
        while not self._all_over():
            self._sampling.turn()
            for name, worker, learner in zip(layout.learner_names, self._learner_workers, self._learners, strict=True):
                with failing_as(name), OwnTorchState():
                    self._learn(worker, learner)
            if self._pbt_driver is not None:  # after every round, so that nothing of it depends on time
                self._reports.poll()
                self._pbt_driver.look()
                if self._pbt_driver.failure is not None:
                    raise self._pbt_driver.failure
            if beat.due():
                context.run_dir.require_held()
                context.interrupts.take_back()
                self._reports.poll()
                self._reporter.beat()
                status_dump.look(context.interrupts)
                self._require_progress()
                self._look_for_starvation()
                if context.observers.over:
                    self._order_stop()

    def _require_progress(self) -> None:
        """Raise SFactoryError if no worker had anything to do for _IDLE_BEATS, which is a defect."""
        counts = self._reports.sampled_env_steps, self._reports.updates
        self._idle_beats = self._idle_beats + 1 if counts == self._last_counts else 0
        self._last_counts = counts
        if self._idle_beats >= _IDLE_BEATS:
            raise SFactoryError(f"nothing has happened for {_IDLE_BEATS * BEAT_S:.0f} s after {counts[0]} env steps")

    def _look_for_starvation(self) -> None:
        """Warn of policies that get no data, as nothing else would: the others go on. Raises Starved."""
        self._idle_policies.look()
        for worker in self._learner_workers:
            if worker.setup.trains and not worker.over():
                worker.starvation.look()

    def _all_over(self) -> bool:
        """Whether every policy that learns has learned enough, or a stop was ordered."""
        # A list, so that each of them looks at the clock.
        overs = [self._learner_workers[policy].over() for policy in learning_policies(self._context.config)]
        return all(overs)

    def _learn(self, worker: LearnerWorker, learner: Learner) -> None:
        """One turn of a learner; one that has learned enough, or does not learn, frees the slots that it is sent."""
        if not worker.setup.trains or (len(self._learners) > 1 and worker.over()):
            if worker.setup.trains and learner.over and not learner.finished:
                learner.finish(save=True)  # other policies may copy what is saved
            worker.discard(0)
        elif worker.assemble(0):
            with self._watch.paused(), _threads(self._context.config.learner.learner_num_threads or 1):
                worker.learn()
            worker.starvation.begin()
        if learner.commands.is_due:
            with self._watch.paused():
                learner.execute_command()

    def _order_stop(self) -> None:
        """End the turns, also within a long dataset."""
        self._shared.control.order_stop(Stop.SAVE)

    def _make_learner(self, policy: int) -> LearnerWorker:
        context, shared, name = self._context, self._shared, self._layout.learner_names[policy]
        with failing_as(name), OwnTorchState():
            torch.manual_seed(seed_at(context.seed, Branch.LEARNER, policy))
            config = context.config if self._pbt_driver is None else self._pbt_driver.config_of(policy)
            directory = str(context.run_dir.checkpoint_dir(policy))
            device = device_of(policy, context.plan.device)
            setup = LearnerSetup(config, shared, policy, context.seed, device, 1, directory)
            row = shared.status.row(name)
            learner = Learner(setup, row)
            learner.progress.awake = self._watch.awake
            self._learners.append(learner)
            learner.begin()
            if not setup.trains:
                learner.checkpointer.save_first()
            return self._worker_of(setup, learner, row)

    def _save_all(self) -> None:
        """Have every learner save that has not failed; raises the first failure once all have tried."""
        failures: list[SFactoryError] = []
        for name, learner in zip(self._layout.learner_names, self._learners, strict=True):
            try:
                with failing_as(name), OwnTorchState():
                    if not learner.finished and learner.failure is None:
                        learner.finish(save=True)
            except SFactoryError as failure:
                failures.append(failure)
        for other in failures[1:]:
            _log.error("%s", other)
        if failures:
            raise failures[0]


@contextlib.contextmanager
def failing_as(name: str) -> Iterator[None]:
    """Turn exceptions into the error that the death of the process ``name`` would be in a parallel run."""
    try:
        yield
    except Passing:
        raise
    except BaseException as error:  # foreign code may raise anything
        raise _death(name, error) from error


def _death(name: str, error: BaseException) -> SFactoryError:
    code = error.exit_code if isinstance(error, SFactoryError) else ExitCode.FAULTS
    return ProcessExit(name, int(code), failure_text(error)).as_error()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch computes on ``count`` threads inside, and on one outside: more would slow small batches down."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)
