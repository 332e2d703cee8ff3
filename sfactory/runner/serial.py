"""Room: a training run in one process. In: a resolved configuration. Out: files, and an Outcome.

The rooms are those of a parallel run, and so are the shared objects between them; they take turns instead of
running side by side. On a CPU two runs with the same seed are the same bit by bit: nothing that is learned from
depends on time.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Sequence

import torch

from sfactory.actor.actor_process import Actor, make_actor
from sfactory.actor.setup import close_envs, make_splits
from sfactory.clock import Every
from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.errors import ExitCode, SFactoryError
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.experiment.summary import Outcome
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.policy_worker import PolicyWorker
from sfactory.learner.learner import Learner
from sfactory.learner.learner_process import LearnerWorker
from sfactory.planning.plan import Plan, device_of
from sfactory.process.signals import Interrupted, Interrupts, stdout_to_stderr
from sfactory.report.console import Console
from sfactory.report.observers import Observers, RunFacts
from sfactory.report.reporter import Reporter
from sfactory.runner.pbt_driver import PbtDriver
from sfactory.seeds import Branch, seed_at, seed_libraries
from sfactory.shared.control import Stop
from sfactory.supervise.hang_detection import SerialHangWatch
from sfactory.supervise.monitors import StatusDump
from sfactory.supervise.process_group import ProcessExit
from sfactory.supervise.shared_objects import SharedObjects
from sfactory.supervise.supervisor import BEAT_S

_log = logging.getLogger(__name__)

_IDLE_BEATS = 120  # half a minute in which every room had its turns and none had anything to do


class SerialRun:
    """Makes every room, lets each take its turn until the end, and saves."""

    def __init__(
        self,
        config: Config,
        seed: int,
        plan: Plan,
        rundir: RunDir,
        resumed: Resumed | None,
        console: Console,
        observers: Observers | None = None,
    ) -> None:
        self._config, self._seed, self._plan, self._rundir, self._console = config, seed, plan, rundir, console
        self._resumed = resumed or Resumed()
        self._observers = Observers() if observers is None else observers
        self._shared = SharedObjects(plan.spec, plan.layout, plan.weight_bytes, plan.is_shaped(config))
        self._pbt_driver: PbtDriver | None = None
        self._watch = SerialHangWatch(self._shared.status)
        self._learnings: list[Learner] = []

    def run(self, interrupts: Interrupts, process_started_at: float) -> Outcome:
        """Train until a limit, a signal or a fault."""
        config, shared = self._config, self._shared
        observers, resumed = self._observers, self._resumed
        wanted = observers.begin(RunFacts(config, self._seed, self._rundir.path, self._plan.spec, resumed.env_steps))
        reporting = Reporter(config, shared, self._rundir, resumed, self._console, process_started_at, observers)
        self._pbt_driver = PbtDriver.of(
            config, self._seed, resumed, reporting.reports, shared, self._rundir, self._plan.reward_shaping
        )
        with contextlib.closing(reporting):
            error: SFactoryError | None = None
            finished = False
            try:
                with self._watch, stdout_to_stderr(), contextlib.ExitStack() as closing:
                    finished = wanted and self._train(interrupts, reporting, closing)
            except Interrupted:
                if interrupts.raising:
                    raise  # nothing has happened yet
                finished = False  # the second signal: nothing was saved
            except SFactoryError as failure:
                error = failure
            finally:
                interrupts.raising = interrupts.raising_again = False
                interrupts.on_first = None
            reporting.reports.poll()
            return reporting.finish("failed" if error else "done" if finished else "interrupted", error)

    def _train(self, interrupts: Interrupts, reporting: Reporter, closing: contextlib.ExitStack) -> bool:
        """From the making of the rooms to the last checkpoint; True if a limit was reached, or an observer had enough.

        Signals raise Interrupted while rooms are made; then the first one ends the turns, and a second one raises.
        """
        layout = self._plan.layout
        seed_libraries(seed_at(self._seed, Branch.LIBRARIES, 0, self._resumed.env_steps, 0))
        learners = [self._make_learner(policy) for policy in range(layout.num_policies)]
        # Actions are drawn from here on, other ones in each session.
        torch.manual_seed(seed_at(self._seed, Branch.INFERENCE, 0, 0, self._resumed.env_steps))
        policies = [
            self._make_policy_worker(policy, worker)
            for policy in range(layout.num_policies)
            for worker in range(layout.policy_workers)
        ]
        actors = [self._make_actor(actor, closing) for actor in range(layout.num_actors)]
        interrupts.on_first = self._order_stop
        interrupts.raising_again = True
        interrupts.raising = False
        self._observers.on_start()
        try:
            self._take_turns(learners, policies, actors, reporting, interrupts)
        except SFactoryError:
            try:
                self._finish_learning()  # what was learned before, by whom it does not concern, is kept
            except SFactoryError as error:
                _log.error("%s", error)  # the other fault came first, and is what the run ends with
            raise
        reporting.reports.poll()
        reporting.beat()  # so that the learner judges its last policy by the last episodes
        self._finish_learning()
        learned = all(self._learnings[policy].over for policy in learning_policies(self._config))
        return learned or (self._observers.enough and not interrupts.count)

    def _take_turns(
        self,
        learners: list[LearnerWorker],
        policies: list[PolicyWorker],
        actors: list[Actor],
        reporting: Reporter,
        interrupts: Interrupts,
    ) -> None:
        layout, status_dump = self._plan.layout, StatusDump(self._shared)
        beat_due, idle = Every(BEAT_S), _IdleWatch(reporting)
        while not self._all_over(learners):
            for name, policy in zip(layout.policy_worker_names, policies, strict=True):
                with _blaming(name):
                    policy.turn(0)
            for name, actor in zip(layout.actor_names, actors, strict=True):
                with _blaming(name):
                    actor.turn(0)
            for name, learner, learning in zip(layout.learner_names, learners, self._learnings, strict=True):
                with _blaming(name):
                    self._have_learn(learner, learning)
            self._breed(reporting)
            if beat_due.due():
                reporting.reports.poll()
                reporting.beat()
                status_dump.look(interrupts)
                idle.look()
                if self._observers.over:
                    self._order_stop()

    def _breed(self, reporting: Reporter) -> None:
        """Look after the population in every turn, so that nothing of it depends on time."""
        if self._pbt_driver is not None:
            reporting.reports.poll()
            self._pbt_driver.look()
            if self._pbt_driver.failure is not None:
                raise self._pbt_driver.failure

    def _all_over(self, learners: Sequence[LearnerWorker]) -> bool:
        """Whether every policy that learns has learned enough, or a stop was ordered."""
        overs = [learners[policy].over() for policy in learning_policies(self._config)]  # each looks at the clock
        return all(overs)

    def _have_learn(self, learner: LearnerWorker, learning: Learner) -> None:
        """One turn of a learner; one that has learned enough, or is not to learn, frees what comes."""
        if not learner.trains or (len(self._learnings) > 1 and learner.over()):
            if learner.trains and learning.over and not learning.finished:
                learning.finish(save=True)  # others may take over from what is saved
            learner.discard(0)
        elif learner.assemble(0):
            with self._watch.paused(), _threads(self._config.learner.learner_num_threads or 1):
                learner.learn()
        elif learning.commands.waiting is not None:
            with self._watch.paused():
                learning.execute_command()

    def _order_stop(self) -> None:
        """Have every room come to an end, also within a long dataset."""
        self._shared.control.order_stop(Stop.SAVE)

    def _make_learner(self, policy: int) -> LearnerWorker:
        config, plan, shared = self._config, self._plan, self._shared
        name = plan.layout.learner_names[policy]
        with _blaming(name):
            torch.manual_seed(seed_at(self._seed, Branch.LEARNER, policy))
            directory = str(self._rundir.checkpoint_dir(policy))
            own = config if self._pbt_driver is None else self._pbt_driver.config_of(policy)
            setup = shared.learner(policy, own, self._seed, device_of(policy, plan.device), 1, directory)
            row = shared.status.row(name)
            learning = Learner(setup, row)
            self._learnings.append(learning)
            learning.begin()
            if not setup.trains:
                learning.checkpointer.save_first()
            return LearnerWorker(setup, learning, row)

    def _make_policy_worker(self, policy: int, worker: int) -> PolicyWorker:
        config, plan, shared = self._config, self._plan, self._shared
        name = plan.layout.policy_worker_names[policy * plan.layout.policy_workers + worker]
        with _blaming(name):
            device = device_of(policy, plan.device)
            setup = shared.policy_worker(policy, worker, config, self._seed, self._resumed.env_steps, device)
            acting = ActingPolicy(setup.spec, setup.model, setup.weights, torch.device(setup.device))
            return PolicyWorker(setup, acting, shared.status.row(name))

    def _make_actor(self, actor: int, closing: contextlib.ExitStack) -> Actor:
        config, shared = self._config, self._shared
        name = self._plan.layout.actor_names[actor]
        with _blaming(name):
            setup = shared.actor(actor, config, self._seed, self._resumed.env_steps)
            row = shared.status.row(name)
            splits = make_splits(setup, row)
            closing.callback(close_envs, splits)
            return make_actor(setup, splits, config.model, row)

    def _finish_learning(self) -> None:
        """Have every learner save that has not failed; raises the first failure after all have had their turn."""
        failures: list[SFactoryError] = []
        for name, learning in zip(self._plan.layout.learner_names, self._learnings, strict=True):
            try:
                with _blaming(name):
                    if not learning.finished and learning.failure is None:
                        learning.finish(save=True)
            except SFactoryError as failure:
                failures.append(failure)
        for other in failures[1:]:
            _log.error("%s", other)
        if failures:
            raise failures[0]


class _IdleWatch:
    """Ends a run in which nothing happens although everybody has turns: a defect, and no reason to spin for ever."""

    def __init__(self, reporting: Reporter) -> None:
        self._reports = reporting.reports
        self._last, self._beats = (-1, -1), 0

    def look(self) -> None:
        """Called at every beat."""
        counts = self._reports.sampled_env_steps, self._reports.updates
        self._beats = self._beats + 1 if counts == self._last else 0
        self._last = counts
        if self._beats >= _IDLE_BEATS:
            raise SFactoryError(f"nothing has happened for {_IDLE_BEATS * BEAT_S:.0f} s after {counts[0]} env steps")


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    """What is raised inside becomes the error that the death of the process called ``name`` would be."""
    try:
        yield
    except (Exception, SystemExit) as error:  # an env may call sys.exit, and that is no end of a run
        code = error.exit_code if isinstance(error, SFactoryError) else ExitCode.FAULTS
        raise ProcessExit(name, int(code), traceback.format_exc()).as_error() from error


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch computes on ``count`` threads inside, and on one outside: small batches are slower on more."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)
