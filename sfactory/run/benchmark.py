"""Room: measuring throughput. In: a plan. Out: one result with rates, and where processes spend their time.

Pure simulation first, with nothing else running; then the run itself: warm-up, measurement, stop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from sfactory.clock import now
from sfactory.config.schema import Config
from sfactory.env.api import EnvFactory
from sfactory.errors import SFactoryError
from sfactory.layout import ACTORS, LEARNERS
from sfactory.run.console import Console
from sfactory.run.crew import Crew
from sfactory.run.load import Load, LoadMeter
from sfactory.run.nursery import Nursery
from sfactory.run.plan import Plan
from sfactory.run.reports import Reports
from sfactory.run.signals import Interrupted, Interrupts
from sfactory.run.simulate import pure_simulation
from sfactory.run.supervision import Supervision
from sfactory.run.wiring import Wiring
from sfactory.shared.status import State, StatusBoard

_MIN_WARMUP_S = 2.0
_MODES: Mapping[str, Literal["train", "sampler_only", "learn"]] = MappingProxyType(
    {"full": "train", "sample": "sampler_only", "learn": "learn"}
)


@dataclass(frozen=True)
class BenchmarkResult:
    """The last line on stdout; field names are its keys. Shares are of the measured time, mean per process kind."""

    env: str
    mode: Literal["train", "sampler_only", "learn", "env"]
    inference: str
    env_steps_per_second: float
    pure_simulation_steps_per_second: float
    percent_of_pure_simulation: float
    seconds: float
    busy: dict[str, float]
    waiting: dict[str, float]
    bound_by: str | None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)


class _Mark(NamedTuple):
    """The counter at one moment."""

    at: float
    steps: float


class Benchmark:
    """One measurement of one configuration."""

    def __init__(self, config: Config, plan: Plan, console: Console) -> None:
        self._config, self._plan, self._console = config, plan, console
        self._stage = config.benchmark.stage
        self._seconds = config.benchmark.benchmark_seconds
        self._counted = ACTORS if self._stage == "sample" else LEARNERS
        self._warm_until: float | None = None
        self._begin: _Mark | None = None
        self._end: _Mark | None = None
        self._meter: LoadMeter | None = None
        self._load: Load | None = None

    def run(self, nursery: Nursery, interrupts: Interrupts, seed: int) -> BenchmarkResult:
        """Measure; raises the fault that ended the run early, if one did, and Interrupted after a signal."""
        simulated = self._simulate(nursery)
        if self._stage == "env":
            return self._env_result(simulated)
        config, plan = self._config, self._plan
        wiring = Wiring(plan.spec, plan.layout, plan.weight_bytes)
        reports = Reports(config, wiring.to_main, wiring.status)
        crew = Crew(nursery, wiring)
        limit_s = config.sampling.reset_timeout_seconds
        supervision = Supervision(crew, wiring.control, wiring.status, interrupts, limit_s)
        interrupts.raising = False
        try:
            crew.start(config, seed, 0, plan.device, plan.cores, [None])
            reports.start()
            supervision.run(lambda: self._beat(wiring.status))
        finally:
            crew.kill()
            reports.stop()
        if supervision.failure is not None:
            raise supervision.failure
        if interrupts.count:
            raise Interrupted(interrupts.signum)
        return self._result(simulated)

    def _simulate(self, nursery: Nursery) -> float:
        sampling, plan = self._config.sampling, self._plan
        workers, seconds = sampling.num_workers, self._seconds
        if self._stage != "env":
            seconds = min(10.0, seconds)
        pin = sampling.set_workers_cpu_affinity
        cores = [plan.cores.core_of_actor(worker, workers) if pin else None for worker in range(workers)]
        self._console.message(f"pure simulation: {workers} processes, {seconds:g} s")
        factory = EnvFactory.of(self._config.run, sampling)
        envs, gpus = sampling.num_envs_per_worker, sampling.actor_worker_gpus
        return pure_simulation(nursery, factory, workers, envs, cores, seconds, gpus)

    def _beat(self, status: StatusBoard) -> bool:
        """Called a few times a second; True once everything is measured."""
        if self._end is not None:
            return True  # what comes later is the end of the run
        if self._warm_until is None:
            ready = min(status.values("state", ACTORS)) >= State.RUNNING  # they are started in stages
            if ready and status.total("env_steps", self._counted):
                self._warm_until = now() + max(_MIN_WARMUP_S, 0.1 * self._seconds)
                self._console.message(f"warmed up in a moment, then {self._seconds:g} s of measurement")
        elif self._begin is None:
            if now() >= self._warm_until:
                self._meter = LoadMeter(status, self._plan.cores.count)
                self._begin = _Mark(now(), status.total("env_steps", self._counted))
        elif now() >= self._begin.at + self._seconds:
            self._end = _Mark(now(), status.total("env_steps", self._counted))
            assert self._meter is not None
            self._load = self._meter.take()
            return True
        return False

    def _result(self, simulated: float) -> BenchmarkResult:
        begin, end, load = self._begin, self._end, self._load
        if begin is None or end is None or load is None:
            raise SFactoryError("the benchmark was stopped before it had measured anything")
        seconds = end.at - begin.at
        rate = (end.steps - begin.steps) / seconds
        if load.advice is not None:
            self._console.message(load.advice)
        return BenchmarkResult(
            env=self._config.run.env,
            mode=_MODES[self._stage],
            inference=self._plan.layout.inference,
            env_steps_per_second=round(rate, 1),
            pure_simulation_steps_per_second=round(simulated, 1),
            percent_of_pure_simulation=round(100.0 * rate / simulated, 2),
            seconds=round(seconds, 3),
            busy=_rounded(load.busy),
            waiting=_rounded(load.waiting),
            bound_by=load.bound_by,
        )

    def _env_result(self, simulated: float) -> BenchmarkResult:
        rate = round(simulated, 1)
        return BenchmarkResult(
            env=self._config.run.env,
            mode="env",
            inference=self._plan.layout.inference,
            env_steps_per_second=rate,
            pure_simulation_steps_per_second=rate,
            percent_of_pure_simulation=100.0,
            seconds=self._seconds,
            busy={},
            waiting={},
            bound_by="actor",
        )


def _rounded(shares: dict[str, float]) -> dict[str, float]:
    return {kind: round(share, 4) for kind, share in shares.items()}
