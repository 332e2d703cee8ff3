"""Starts the child processes of a run, and collects how each of them ended.

An actor that ends before the first reset of its envs is replaced by a process with the same shared objects, its queue
included. NOTE [Death and queues] forbids a second reader, but this one is the first: the dead process never read or
wrote, so it held no lock. An actor that has worked is replaced by one with a new queue: see NOTE [Incarnations].
"""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from sfactory.actor.actor_process import run_actor
from sfactory.actor.setup import ActorSetup
from sfactory.clock import Deadline, now
from sfactory.config.schema import Config
from sfactory.errors import ExitCode, LearnerDied, ProcessesLost, ResourceError, SFactoryError, WorkerDied
from sfactory.inference.policy_worker import PolicySetup, run_policy_worker
from sfactory.layout import ACTORS, EVALUATORS, POLICY_WORKERS, is_actor, is_evaluator, is_learner, is_policy_worker
from sfactory.learner.learner_process import run_learner
from sfactory.learner.setup import LearnerSetup
from sfactory.planning.plan import device_of
from sfactory.play.evaluator import EvaluatorSetup, run_evaluator
from sfactory.process.orphans import OFTEN_S
from sfactory.process.spawn import NOT_KNOWN, ChildSpec, Spawner, child_main
from sfactory.process.stack_dump import STOPPED, StackDump, is_alive, is_stopped
from sfactory.ranks.place import ONE_RANK, Place
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from sfactory.shared.status import State, StatusRow
from sfactory.system.cores import Cores
from sfactory.system.operating_system import signal_name

_REAP_S = 5.0
_LOST = 256  # exit code, which no process has, of one that did not write its own and has no server that would tell
# Added to --default_niceness: the learner is served first, and no process gives its core away to other programs.
_NICER = {POLICY_WORKERS: 1, ACTORS: 2, EVALUATORS: 2}
# Where actors act while the learner trains: its threads wait for one another, so a process that takes the core of one
# holds up all. With 2, Breakout is trained 15% more slowly (docs/performance.md).
_NICER_BESIDE_LEARNER = {POLICY_WORKERS: 1, ACTORS: 7, EVALUATORS: 7}


@dataclass(frozen=True)
class ProcessExit:
    """How a child ended. text: its traceback, or ''."""

    name: str
    exit_code: int
    text: str

    def as_error(self) -> SFactoryError:
        """The error with which this death ends the run, with the exit code of a learner that has set one."""
        text = self.text.rstrip()
        text = self.cause if text in self.cause else f"{text}\n{self.cause}"
        if not is_learner(self.name):
            return WorkerDied(text)
        error = LearnerDied(text)
        error.was_killed = not self.text
        if self.exit_code in (ExitCode.DIVERGED, ExitCode.CANNOT_SAVE, ExitCode.REFUSED):
            error.exit_code = ExitCode(self.exit_code)
        return error

    @property
    def cause(self) -> str:
        """One line: which process ended, and how."""
        if self.exit_code < 0:
            hint = "; perhaps the machine ran out of memory" if self.exit_code == -signal.SIGKILL else ""
            return f"{self.name} was killed by {signal_name(-self.exit_code)}{hint}"
        if self.text:
            return f"{self.name} failed: {self.text.rstrip().splitlines()[-1]}"
        if self.exit_code == _LOST:
            return f"{self.name} was killed, or crashed"
        return f"{self.name} ended with exit code {self.exit_code} although no stop was ordered"


@dataclass(frozen=True)
class ChildProcess:
    """A child that is alive as far as main knows."""

    name: str
    process: ForkServerProcess
    row: StatusRow
    stack: StackDump
    started_at: float

    @property
    def state(self) -> State:
        """Its state, from the status board."""
        return State(int(self.row.get("state")))

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None, "it was started"
        return self.process.pid

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP or a debugger has stopped it."""
        return is_stopped(self.pid)

    def where(self) -> str:
        """A text that what it has not done in time is added to: its stack where it hangs, if it has answered."""
        if self.is_stopped:
            return f"{self.name} is {STOPPED}, and"
        stack = self.stack.read().rstrip()
        headline = f"{self.name} hung here:\n{stack}" if stack else f"{self.name} hung, and did not answer where"
        return f"{headline}\n{self.name}"


@dataclass(frozen=True)
class Workload:
    """Settings of the children.

    generation: env steps at the start; makes the seeds of sessions differ. checkpoint_dirs: of each policy; None if
    nothing is saved. config_of: configs of learners, if they differ. log_path: a file to log to, beside stderr.
    place: among ranks. video_folder: for videos of evaluations, of which the first evaluator makes some; None: no.
    """

    config: Config
    seed: int
    generation: int
    device: str
    cores: Cores
    checkpoint_dirs: Sequence[str | None]
    config_of: Callable[[int], Config] | None = None
    log_path: Path | None = None
    place: Place = ONE_RANK
    video_folder: Path | None = None


class ProcessGroup:
    """Starts the children of a run, and collects how they end.

    failure: set once children cannot be started any more. cut_off: names whose last process was killed, crashed or
    raised. If the fork server has ended, a child that did not write its exit code counts as that.
    """

    def __init__(self, spawner: Spawner, shared: SharedObjects, workload: Workload) -> None:
        self._spawner, self._shared, self._workload = spawner, shared, workload
        self._children: dict[str, ChildProcess] = {}
        self._waiting = deque(range(shared.layout.num_actors))  # actors that are still to be started
        self._attempts = Counter[str]()  # by name, how often a process was replaced
        self._has_server = True
        self.failure: WorkerDied | None = None
        self.cut_off: set[str] = set()

    def start(self, learners: bool = True) -> None:
        """Start all children, actors as far as ``start_actors`` may; ``learners``: also these."""
        shared, layout, work = self._shared, self._shared.layout, self._workload
        threads = work.config.learner.learner_num_threads or work.cores.learner_threads(
            layout.local_actors, layout.num_policies
        )
        for policy, name in enumerate(layout.learner_names if learners else ()):
            config = work.config if work.config_of is None else work.config_of(policy)
            device, directory = device_of(policy, work.device), work.checkpoint_dirs[policy]
            setup = LearnerSetup(config, shared, policy, work.seed, device, threads, directory, work.place)
            self._start(name, run_learner, setup)
        for index in range(len(layout.policy_worker_names)):
            self._start_policy_worker(index)
        for evaluator in range(layout.evaluators):
            self._start_evaluator(evaluator)
        self.start_actors()

    def start_actors(self) -> None:
        """Start waiting actors, as many as may make and reset envs at the same time."""
        layout, work = self._shared.layout, self._workload
        most_starting = work.cores.actors_starting(work.config.sampling.max_workers_starting)
        starting = sum(is_actor(child.name) for child in self.booting())
        for _ in range(min(len(self._waiting), most_starting - starting)):
            actor = self._waiting.popleft()
            name = layout.actor_names[actor]
            own, attempt = self._shared.for_actor(actor), self._attempts[name]
            setup = ActorSetup(work.config, own, actor, work.seed, work.generation, attempt)
            if actor == layout.local_actors:
                from sfactory.remote.gateway import run_gateway  # it needs pyzmq, which few runs have

                self._start(name, run_gateway, setup)
                continue
            pinned = work.config.sampling.set_workers_cpu_affinity
            cores = work.cores.cores_of_actor(actor, layout.local_actors) if pinned else None
            self._start(name, run_actor, setup, cores)

    def replace(self, name: str) -> None:
        """Start a dead policy worker or evaluator again, or have ``start_actors`` start an actor, with new seeds."""
        layout, table = self._shared.layout, self._shared.table
        assert name not in self._children, f"{name} is alive"
        self._shared.status.row(name).clear()  # until then the dead process must not look alive
        self._attempts[name] += 1
        if is_policy_worker(name):
            self._start_policy_worker(layout.policy_worker_names.index(name))
        elif is_evaluator(name):
            self._start_evaluator(layout.evaluator_names.index(name))
        else:
            actor = layout.actor_names.index(name)
            slots = table.slots_of(actor)
            assert all(table.state(slot) is not SlotState.FILLING for slot in slots), f"{name} was filling a slot"
            self._waiting.appendleft(actor)

    def _start_policy_worker(self, index: int) -> None:
        layout, work = self._shared.layout, self._workload
        device = device_of(index // layout.policy_workers, work.device)
        setup = PolicySetup(work.config, self._shared, index, work.seed, work.generation, device)
        self._start(layout.policy_worker_names[index], run_policy_worker, setup)

    def _start_evaluator(self, evaluator: int) -> None:
        work, folder = self._workload, None if evaluator else self._workload.video_folder
        name = self._shared.layout.evaluator_names[evaluator]
        attempt = self._attempts[name]
        setup = EvaluatorSetup(work.config, self._shared, evaluator, work.seed, work.generation, folder, attempt)
        self._start(name, run_evaluator, setup)

    def _start(self, name: str, role: Callable[..., None], *given: object) -> None:
        if self.failure is not None:
            return
        work, status, failures = self._workload, self._shared.status, self._shared.failures
        nicer = _NICER if self._shared.layout.slots_until_trained else _NICER_BESIDE_LEARNER
        more = next((more for prefix, more in nicer.items() if name.startswith(prefix)), 0)
        row, stack = status.row(name), StackDump()
        row.clear()
        self.cut_off.discard(name)
        failures.write(name, "")
        niceness = work.config.sampling.default_niceness + more
        spec = ChildSpec(name, status, failures, niceness, stack, work.log_path, work.config.report.level)
        started_at = now()
        try:
            process = self._spawner.start(name, child_main, spec, role, *given)
        except ResourceError as error:
            # A server that is found dead was killed; one that dies of this start cannot fork; nor could another.
            found_dead = isinstance(error.__context__, ConnectionError)
            self.failure = (ProcessesLost if found_dead else WorkerDied)(str(error))
            return
        self._children[name] = ChildProcess(name, process, row, stack, started_at)

    @property
    def alive(self) -> list[str]:
        """Names of children that are alive as far as main knows."""
        return list(self._children)

    def running(self) -> list[ChildProcess]:
        """Children that are alive and RUNNING."""
        return [child for child in self._children.values() if child.state is State.RUNNING]

    def booting(self) -> list[ChildProcess]:
        """Children that are alive and not RUNNING yet."""
        return [child for child in self._children.values() if child.state < State.RUNNING]

    def wait(self, wake_fd: int, timeout: float) -> list[ProcessExit]:
        """Block until a child ends, ``wake_fd`` is readable, or ``timeout`` seconds are over; returns the deaths."""
        sentinels = {child.process.sentinel: child for child in self._children.values() if self._has_server}
        bound = timeout if self._has_server else min(timeout, OFTEN_S)
        ended = [sentinels[s] for s in connection.wait([*sentinels, wake_fd], bound) if s in sentinels]
        if lost := next(filter(None, (self._spawner.loss(child.process) for child in ended)), ""):
            self._has_server, self.failure = False, self.failure or ProcessesLost(lost)
        if not self._has_server:
            ended = [child for child in self._children.values() if not is_alive(child.pid)]
        return [self._reap(child.name) for child in ended]

    def _reap(self, name: str) -> ProcessExit:
        child = self._children.pop(name)
        child.process.join(_REAP_S)
        self._spawner.end_orphans()
        code, text = child.process.exitcode, self._shared.failures.read(name)
        if code == NOT_KNOWN and not self._has_server:
            ended = int(child.row.get("ended"))
            code = ended - 1 if ended else _LOST
        if code != 0:
            self.cut_off.add(name)
        return ProcessExit(name, int(ExitCode.FAULTS) if code is None else code, text)

    def kill(self) -> list[str]:
        """SIGKILL all children, and wait until they and what envs have started are gone; returns their names.

        No child starts later.
        """
        names = list(self._children)
        self._waiting.clear()
        for child in self._children.values():
            self._spawner.kill(child.process)
        deadline = Deadline(_REAP_S)
        for child in self._children.values():
            child.process.join(deadline.left)  # at once without the server
        while any(is_alive(child.pid) for child in self._children.values()) and not deadline.passed:
            time.sleep(OFTEN_S)
        self._spawner.end_orphans(deadline.left)
        self.cut_off.update(names)
        self._children.clear()
        return names
