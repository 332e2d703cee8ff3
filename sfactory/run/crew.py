"""Room: the children of a run. In: wiring. Out: running processes, and the facts of each death."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess

from sfactory.actor.life import run_actor
from sfactory.clock import Deadline
from sfactory.config.schema import Config
from sfactory.cores import Cores
from sfactory.errors import ExitCode, LearnerDied, SFactoryError, WorkerDied
from sfactory.learner.worker import run_learner
from sfactory.policy.worker import run_policy_worker
from sfactory.run.child import Birth
from sfactory.run.nursery import Nursery
from sfactory.run.wiring import Wiring

_REAP_S = 5.0
_NICER = {"sf-policy": 2, "sf-actor": 10}  # added to --default_niceness; the learner is served first


@dataclass(frozen=True)
class Death:
    """How a child ended. text: the traceback it left, or ''."""

    name: str
    exit_code: int
    text: str

    @property
    def is_learner(self) -> bool:
        """True for a learner."""
        return self.name.startswith("sf-learner")

    def as_error(self) -> SFactoryError:
        """The error that this death is for the run; its exit code is the learner's own where it left one."""
        kind = LearnerDied if self.is_learner else WorkerDied
        error = kind(f"{self.text.rstrip()}\n{self.cause}" if self.text else self.cause)
        if self.is_learner and self.exit_code in (ExitCode.DIVERGED, ExitCode.CANNOT_SAVE, ExitCode.REFUSED):
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


class Crew:
    """Starts all children of a run, and notices their deaths."""

    def __init__(self, nursery: Nursery, wiring: Wiring) -> None:
        self._nursery, self._wiring = nursery, wiring
        self._processes: dict[str, ForkServerProcess] = {}

    def start(
        self, config: Config, seed: int, generation: int, device: str, cores: Cores, checkpoint_dirs: list[str | None]
    ) -> None:
        """Start learners, policy workers and actors."""
        wiring, layout = self._wiring, self._wiring.layout
        niceness = config.sampling.default_niceness
        threads = config.learner.learner_num_threads or cores.learner_threads(layout.num_actors)
        for policy, name in enumerate(layout.learner_names):
            setup = wiring.learner(policy, config, seed, device, threads, checkpoint_dirs[policy])
            self._start(name, niceness, run_learner, setup)
        for index, name in enumerate(layout.policy_worker_names):
            policy, worker = divmod(index, layout.policy_workers)
            policy_setup = wiring.policy_worker(policy, worker, config, seed, generation, device)
            self._start(name, niceness, run_policy_worker, policy_setup)
        for actor, name in enumerate(layout.actor_names):
            pin = config.sampling.set_workers_cpu_affinity
            core = cores.core_of_actor(actor, layout.num_actors) if pin else None
            actor_setup = wiring.actor(actor, config, seed, generation)
            self._start(name, niceness, run_actor, actor_setup, config.model, core)

    def _start(self, name: str, niceness: int, role: object, *given: object) -> None:
        nicer = next((more for prefix, more in _NICER.items() if name.startswith(prefix)), 0)
        birth = Birth(name, self._wiring.status, self._wiring.failures, niceness + nicer)
        assert callable(role)
        self._processes[name] = self._nursery.start(birth, role, *given)

    @property
    def alive(self) -> list[str]:
        """Names of children whose end has not been noticed yet."""
        return list(self._processes)

    def wait(self, wake_fd: int, timeout: float) -> list[Death]:
        """Block until a child ends, ``wake_fd`` is readable, or ``timeout`` is over; the deaths noticed."""
        sentinels = {process.sentinel: name for name, process in self._processes.items()}
        ended = [sentinels[s] for s in connection.wait([*sentinels, wake_fd], timeout) if s in sentinels]
        return [self._bury(name) for name in ended]

    def _bury(self, name: str) -> Death:
        process = self._processes.pop(name)
        process.join(_REAP_S)
        code = process.exitcode
        return Death(name, int(ExitCode.FAULTS) if code is None else code, self._wiring.failures.read(name))

    def kill(self) -> list[str]:
        """SIGKILL whoever is left, and wait until they are gone; returns their names."""
        names = list(self._processes)
        for process in self._processes.values():
            process.kill()
        deadline = Deadline(_REAP_S)
        for process in self._processes.values():
            process.join(deadline.left)
        self._processes.clear()
        return names
