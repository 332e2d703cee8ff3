"""Room: a training run in one process. In: a resolved configuration. Out: files, and an Outcome.

The rooms are those of a parallel run, and so are the shared objects between them; they take turns instead of
running side by side. On a CPU two runs with the same seed are the same bit by bit: nothing that is learned from
depends on time.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator

import torch

from sfactory.actor.life import Actor, make_actor
from sfactory.actor.setup import close_envs, make_splits
from sfactory.clock import Every
from sfactory.config.schema import Config
from sfactory.errors import ExitCode, LearnerDied, SFactoryError
from sfactory.inference.acting import ActingPolicy
from sfactory.learner.learning import Learning
from sfactory.learner.worker import LearnerWorker
from sfactory.policy.worker import PolicyWorker
from sfactory.run.console import Console
from sfactory.run.crew import Death
from sfactory.run.hang_watch import HangWatch
from sfactory.run.inquiry import Inquiry
from sfactory.run.observer import RunFacts
from sfactory.run.observers import Observers
from sfactory.run.outcome import Outcome
from sfactory.run.plan import Plan
from sfactory.run.reporting import Reporting
from sfactory.run.resumed import Resumed
from sfactory.run.rundir import RunDir
from sfactory.run.signals import Interrupted, Interrupts
from sfactory.run.stdout import stdout_to_stderr
from sfactory.run.supervision import BEAT_S
from sfactory.run.wiring import Wiring
from sfactory.seeds import Branch, seed_at, seed_libraries
from sfactory.shared.control import Stop

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
        self._wiring = Wiring(plan.spec, plan.layout, plan.weight_bytes)
        self._watch = HangWatch(self._wiring.status)
        self._learning: Learning | None = None

    def run(self, interrupts: Interrupts, process_started_at: float) -> Outcome:
        """Train until a limit, a signal or a fault."""
        config, wiring = self._config, self._wiring
        observers, resumed = self._observers, self._resumed
        wanted = observers.begin(RunFacts(config, self._seed, self._rundir.path, self._plan.spec, resumed.env_steps))
        reporting = Reporting(config, wiring, self._rundir, resumed, self._console, process_started_at, observers)
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

    def _train(self, interrupts: Interrupts, reporting: Reporting, closing: contextlib.ExitStack) -> bool:
        """From the making of the rooms to the last checkpoint; True if a limit was reached.

        Signals raise Interrupted while rooms are made; then the first one ends the turns, and a second one raises.
        """
        layout = self._plan.layout
        seed_libraries(seed_at(self._seed, Branch.LIBRARIES, 0, self._resumed.env_steps, 0))
        learner = self._make_learner()
        policies = [self._make_policy_worker(worker) for worker in range(layout.policy_workers)]
        actors = [self._make_actor(actor, closing) for actor in range(layout.num_actors)]
        interrupts.on_first = self._order_stop
        interrupts.raising_again = True
        interrupts.raising = False
        self._observers.on_start()
        try:
            self._take_turns(learner, policies, actors, reporting, interrupts)
        except LearnerDied:
            raise
        except SFactoryError:
            try:
                self._finish_learning()  # what was learned before an actor failed is kept
            except SFactoryError as error:
                _log.error("%s", error)  # the actor's fault came first, and is what the run ends with
            raise
        reporting.reports.poll()
        reporting.beat()  # so that the learner judges its last policy by the last episodes
        self._finish_learning()
        assert self._learning is not None
        return self._learning.over

    def _take_turns(
        self,
        learner: LearnerWorker,
        policies: list[PolicyWorker],
        actors: list[Actor],
        reporting: Reporting,
        interrupts: Interrupts,
    ) -> None:
        layout, inquiry = self._plan.layout, Inquiry(self._wiring)
        beat_due, idle = Every(BEAT_S), _IdleWatch(reporting)
        while not learner.over():
            for name, policy in zip(layout.policy_worker_names, policies, strict=True):
                with _blaming(name):
                    policy.turn(0)
            for name, actor in zip(layout.actor_names, actors, strict=True):
                with _blaming(name):
                    actor.turn(0)
            with _blaming(layout.learner_names[0]):
                if learner.assemble(0):
                    with self._watch.paused(), _threads(self._config.learner.learner_num_threads or 1):
                        learner.learn()
            if beat_due.due():
                reporting.reports.poll()
                reporting.beat()
                inquiry.look(interrupts)
                idle.look()
                if self._observers.failed:
                    self._order_stop()

    def _order_stop(self) -> None:
        """Have every room come to an end, also within a long dataset."""
        self._wiring.control.order_stop(Stop.SAVE)

    def _make_learner(self) -> LearnerWorker:
        config, plan, wiring = self._config, self._plan, self._wiring
        name = plan.layout.learner_names[0]
        with _blaming(name):
            torch.manual_seed(seed_at(self._seed, Branch.LEARNER, 0))
            directory = str(self._rundir.checkpoint_dir(0))
            setup = wiring.learner(0, config, self._seed, plan.device, 1, directory)
            row = wiring.status.row(name)
            self._learning = Learning(setup, row)
            self._learning.begin()
            # Actions are drawn from here on, other ones in each session.
            torch.manual_seed(seed_at(self._seed, Branch.INFERENCE, 0, 0, self._resumed.env_steps))
            return LearnerWorker(setup, self._learning, row)

    def _make_policy_worker(self, worker: int) -> PolicyWorker:
        config, plan, wiring = self._config, self._plan, self._wiring
        name = plan.layout.policy_worker_names[worker]
        with _blaming(name):
            setup = wiring.policy_worker(0, worker, config, self._seed, self._resumed.env_steps, plan.device)
            policy = ActingPolicy(setup.spec, setup.model, setup.weights, torch.device(setup.device))
            return PolicyWorker(setup, policy, wiring.status.row(name))

    def _make_actor(self, actor: int, closing: contextlib.ExitStack) -> Actor:
        config, wiring = self._config, self._wiring
        name = self._plan.layout.actor_names[actor]
        with _blaming(name):
            setup = wiring.actor(actor, config, self._seed, self._resumed.env_steps)
            row = wiring.status.row(name)
            splits = make_splits(setup, row)
            closing.callback(close_envs, splits)
            return make_actor(setup, splits, config.model, row)

    def _finish_learning(self) -> None:
        with _blaming(self._plan.layout.learner_names[0]):
            assert self._learning is not None
            self._learning.finish(save=True)


class _IdleWatch:
    """Ends a run in which nothing happens although everybody has turns: a defect, and no reason to spin for ever."""

    def __init__(self, reporting: Reporting) -> None:
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
        raise Death(name, int(code), traceback.format_exc()).as_error() from error


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch computes on ``count`` threads inside, and on one outside: small batches are slower on more."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)
