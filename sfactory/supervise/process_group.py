"""Room: the children of a run. In: wiring. Out: running processes, and the facts of each death.

Actors are started in stages: at most so many make and reset their envs at the same time. One that ends before its
envs have had their first reset can be replaced by another process that is given the same shared objects, its ring
too. NOTE [Death and queues] forbids a second reader, but this one is the first: the dead process never came to read,
and it had put nothing anywhere, so it can have died within nobody's lock. One that has worked is replaced by a process
with a ring of its own: see NOTE [Lives].
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from sfactory.actor.actor_process import run_actor
from sfactory.clock import Deadline, now
from sfactory.config.schema import Config
from sfactory.errors import ExitCode, LearnerDied, SFactoryError, WorkerDied
from sfactory.inference.policy_worker import run_policy_worker
from sfactory.layout import ACTORS, EVALUATORS, POLICY_WORKERS, is_actor, is_learner, is_policy_worker
from sfactory.learner.learner_process import run_learner
from sfactory.planning.plan import device_of
from sfactory.play.evaluator import run_evaluator
from sfactory.process.spawn import ChildSpec, Spawner
from sfactory.process.stack_dump import StackFile
from sfactory.shared.slots import SlotState
from sfactory.shared.status import State, StatusRow
from sfactory.supervise.shared_objects import SharedObjects
from sfactory.system.cores import Cores

_REAP_S = 5.0
_NICER = {POLICY_WORKERS: 2, ACTORS: 10, EVALUATORS: 10}  # added to --default_niceness; the learner is served first


@dataclass(frozen=True)
class ProcessExit:
    """How a child ended. text: the traceback it left, or ''."""

    name: str
    exit_code: int
    text: str

    def as_error(self) -> SFactoryError:
        """The error that this death is for the run; its exit code is the learner's own where it left one."""
        kind = LearnerDied if is_learner(self.name) else WorkerDied
        error = kind(f"{self.text.rstrip()}\n{self.cause}" if self.text else self.cause)
        if isinstance(error, LearnerDied):
            error.was_killed = not self.text
        if is_learner(self.name) and self.exit_code in (ExitCode.DIVERGED, ExitCode.CANNOT_SAVE, ExitCode.REFUSED):
            error.exit_code = ExitCode(self.exit_code)
        return error

    @property
    def cause(self) -> str:
        """One line: who ended, and how."""
        if self.exit_code < 0:
            known = -self.exit_code in {int(signum) for signum in signal.Signals}
            name = signal.Signals(-self.exit_code).name if known else f"signal {-self.exit_code}"
            hint = "; perhaps the machine ran out of memory" if name == "SIGKILL" else ""
            return f"{self.name} was killed by {name}{hint}"
        if self.text:
            return f"{self.name} failed: {self.text.rstrip().splitlines()[-1]}"
        return f"{self.name} ended with exit code {self.exit_code} though nobody had asked it to"


@dataclass(frozen=True)
class ChildProcess:
    """A child that is alive as far as main knows."""

    name: str
    process: ForkServerProcess
    row: StatusRow
    stack: StackFile
    started_at: float

    @property
    def state(self) -> State:
        """What it is about."""
        return State(int(self.row.get("state")))

    def where(self) -> str:
        """Where it hangs, as it has answered, for people to read."""
        stack = self.stack.read().rstrip()
        return f"{self.name} hung here:\n{stack}" if stack else f"{self.name} hung, and did not answer where"


class ProcessGroup:
    """Starts all children of a run, and notices their deaths."""

    def __init__(self, spawner: Spawner, shared: SharedObjects, log_path: Path | None = None) -> None:
        """``log_path``: the file that takes what children log, beside stderr."""
        self._spawner, self._shared, self._log_path = spawner, shared, log_path
        self._children: dict[str, ChildProcess] = {}
        self._booting: dict[str, ChildProcess] = {}
        self._waiting: deque[int] = deque()  # actors that are to be started when there is room
        self._attempts = [0] * shared.layout.num_actors
        self._most_starting = 0
        self._cut_off: set[str] = set()
        self._start_actor: Callable[[int], None] = _not_yet
        self._start_policy_worker: Callable[[int], None] = _not_yet

    def start(
        self,
        config: Config,
        seed: int,
        generation: int,
        device: str,
        cores: Cores,
        checkpoint_dirs: list[str | None],
        config_of: Callable[[int], Config] | None = None,
    ) -> None:
        """Start all but the actors, and as many of these as may start at once; ``start_actors`` starts the rest.

        ``config_of``: what the learner of a policy is given, if they differ.
        """
        shared, layout = self._shared, self._shared.layout
        niceness = config.sampling.default_niceness
        threads = config.learner.learner_num_threads or cores.learner_threads(layout.num_actors)
        for policy, name in enumerate(layout.learner_names):
            own = config if config_of is None else config_of(policy)
            setup = shared.learner(policy, own, seed, device_of(policy, device), threads, checkpoint_dirs[policy])
            self._start(name, niceness, run_learner, setup)

        def start_policy_worker(index: int) -> None:
            policy, worker = divmod(index, layout.policy_workers)
            own_device = device_of(policy, device)
            policy_setup = shared.policy_worker(policy, worker, config, seed, generation, own_device)
            self._start(layout.policy_worker_names[index], niceness, run_policy_worker, policy_setup)

        self._start_policy_worker = start_policy_worker
        for index in range(len(layout.policy_worker_names)):
            start_policy_worker(index)

        def start_actor(actor: int) -> None:
            pin = config.sampling.set_workers_cpu_affinity
            own = cores.cores_of_actor(actor, layout.num_actors) if pin else None
            given = shared.actor(actor, config, seed, generation, self._attempts[actor])
            self._start(layout.actor_names[actor], niceness, run_actor, given, config.model, own)

        self._start_actor = start_actor
        self._most_starting = cores.actors_starting(config.sampling.max_workers_starting)
        self._waiting.extend(range(layout.num_actors))
        self.start_actors()
        for evaluator, name in enumerate(layout.evaluator_names):
            self._start(name, niceness, run_evaluator, shared.evaluator(evaluator, config, seed, generation))

    def start_actors(self) -> None:
        """Start actors that have not been yet, as many as may be making and resetting envs at the same time."""
        starting = sum(is_actor(child.name) for child in self.booting())
        while self._waiting and starting < self._most_starting:
            self._start_actor(self._waiting.popleft())
            starting += 1

    def replace(self, name: str) -> None:
        """Have a new process, with seeds of its own, do the work of an actor or a policy worker that has died.

        Of an actor: as soon as there is room, see ``start_actors``.
        """
        layout, table = self._shared.layout, self._shared.table
        assert name not in self._children, f"{name} is alive"
        self._shared.status.row(name).clear()  # while it waits for room, nobody is to take the dead one for alive
        if is_policy_worker(name):
            self._start_policy_worker(layout.policy_worker_names.index(name))
            return
        actor = layout.actor_names.index(name)
        slots = table.slots_of(actor)
        assert all(table.state(slot) is not SlotState.FILLING for slot in slots), f"{name} was filling a slot"
        self._attempts[actor] += 1
        self._waiting.appendleft(actor)

    def _start(self, name: str, niceness: int, role: Callable[..., None], *given: object) -> None:
        nicer = next((more for prefix, more in _NICER.items() if name.startswith(prefix)), 0)
        row, stack = self._shared.status.row(name), StackFile()
        row.clear()
        self._cut_off.discard(name)
        self._shared.failures.write(name, "")
        birth = ChildSpec(name, self._shared.status, self._shared.failures, niceness + nicer, stack, self._log_path)
        started_at = now()
        process = self._spawner.start(birth, role, *given)
        self._children[name] = self._booting[name] = ChildProcess(name, process, row, stack, started_at)

    @property
    def alive(self) -> list[str]:
        """Names of children whose end has not been noticed yet."""
        return list(self._children)

    def was_cut_off(self, name: str) -> bool:
        """Whether the last process of that name did not end in good order, but was killed, crashed or raised."""
        return name in self._cut_off

    def running(self) -> list[ChildProcess]:
        """Children that are alive and RUNNING."""
        return [child for child in self._children.values() if child.state is State.RUNNING]

    def booting(self) -> list[ChildProcess]:
        """Children that are alive and were not RUNNING when last looked at, which is now."""
        for name in [name for name, child in self._booting.items() if child.state >= State.RUNNING]:
            del self._booting[name]
        return list(self._booting.values())

    def wait(self, wake_fd: int, timeout: float) -> list[ProcessExit]:
        """Block until a child ends, ``wake_fd`` is readable, or ``timeout`` is over; the deaths noticed."""
        sentinels = {child.process.sentinel: name for name, child in self._children.items()}
        ended = [sentinels[s] for s in connection.wait([*sentinels, wake_fd], timeout) if s in sentinels]
        return [self._bury(name) for name in ended]

    def _bury(self, name: str) -> ProcessExit:
        process = self._children.pop(name).process
        self._booting.pop(name, None)
        process.join(_REAP_S)
        code = process.exitcode
        if code != 0:
            self._cut_off.add(name)
        return ProcessExit(name, int(ExitCode.FAULTS) if code is None else code, self._shared.failures.read(name))

    def kill(self) -> list[str]:
        """SIGKILL whoever is left, and wait until they are gone; returns their names. Nobody is started any more."""
        names = list(self._children)
        self._waiting.clear()
        self._start_actor = self._start_policy_worker = _not_yet  # which hold this crew, and with it all that is shared
        for child in self._children.values():
            child.process.kill()
        deadline = Deadline(_REAP_S)
        for child in self._children.values():
            child.process.join(deadline.left)
        self._cut_off.update(names)
        self._children.clear()
        self._booting.clear()
        return names


def _not_yet(index: int) -> None:
    raise AssertionError(f"worker {index} cannot be started before the crew is, or after its end")
