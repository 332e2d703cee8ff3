"""Measures the speed of one configuration: starts processes as for training, warms up, measures, saves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sfactory.clock import now
from sfactory.config.schema import Config
from sfactory.errors import SFactoryError
from sfactory.layout import ACTORS, LEARNERS
from sfactory.planning.plan import Plan
from sfactory.process.signals import Interrupted, Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.bottleneck import Load, LoadMeter
from sfactory.report.collector import ReportCollector
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State, StatusBoard
from sfactory.supervise.hang_detection import BenchmarkHangs
from sfactory.supervise.process_group import ProcessGroup, Workload
from sfactory.supervise.supervisor import Supervisor


class Timing(NamedTuple):
    """Durations in seconds."""

    warm_up: float  # from the first counted steps to the start of the measurement
    measured: float  # minimum length of the measurement
    patience: float  # maximum extra length, until a dataset begun in it is trained on and every actor has advanced
    boot: float = float("inf")  # limit on the time before the warm-up
    first_steps: float = 600.0  # limit on the part of it in which all actors already run


class Measured(NamedTuple):
    """rate: env steps per second, trained on or (for sampling alone) taken. seconds: measured time."""

    rate: float
    seconds: float
    load: Load


class _Mark(NamedTuple):
    """A step counter and the time of its last change; for learners, after the first epoch on the last dataset."""

    at: float
    steps: float


class Measurement:
    """Watches the counters of a new run. Call ``look`` a few times per second. measured: the result, once it ends."""

    def __init__(
        self,
        status: StatusBoard,
        cores: int,
        of_learners: bool,
        timing: Timing,
        on_warm_up: Callable[[], None] = lambda: None,
    ) -> None:
        """``of_learners``: count steps trained on instead of steps that actors take."""
        self._status, self._cores, self._of_learners, self._timing = status, cores, of_learners, timing
        self._on_warm_up = on_warm_up
        self._started_at = now()
        self.measured: Measured | None = None
        self._ready_at: float | None = None
        self._warm_until: float | None = None
        self._begun_at, self._begin = 0.0, _Mark(0.0, 0.0)
        self._meter: LoadMeter | None = None

    def look(self) -> bool:
        """True once the measurement is finished or has failed."""
        if self.measured is not None:
            return True  # the run is ending
        if self._warm_until is None:
            return self._await_steps()
        if self._meter is not None:
            return self._measure(self._meter, self._mark())
        if now() >= self._warm_until:
            self._meter, self._begun_at = LoadMeter(self._status, self._cores), now()
            self._begin = self._mark()
        return False

    def _await_steps(self) -> bool:
        if now() - self._started_at > self._timing.boot:
            return True
        if min(self._status.values("state", ACTORS)) < State.RUNNING:
            return False  # actors start in stages
        if self._ready_at is None:
            self._ready_at = now()
        if self._mark().steps:
            self._warm_until = now() + self._timing.warm_up
            self._on_warm_up()
            return False
        return now() - self._ready_at > self._timing.first_steps

    def _measure(self, meter: LoadMeter, end: _Mark) -> bool:
        """End the measurement if it is long enough or too long."""
        timing, seconds = self._timing, end.at - self._begin.at
        late = now() - self._begun_at > timing.measured + timing.patience
        # An actor that is slow or hangs has been busy with one task since the measurement began.
        stuck = any(0 < since <= self._begun_at for since in self._status.values("busy_since", ACTORS))
        if (seconds >= timing.measured and not stuck) or (late and seconds > 0):
            self.measured = Measured((end.steps - self._begin.steps) / seconds, seconds, meter.take())
        return late or self.measured is not None

    def _mark(self) -> _Mark:
        # Steps are counted per dataset, which may take seconds, and before the later epochs on it, so the time of the
        # last increase is used. (With --minibatch_ring_size, datasets grow unevenly.)
        if self._of_learners:
            seconds = max(self._status.values("counted_at", LEARNERS))  # several learners train in parallel
            return _Mark(seconds, self._status.total("run_env_steps", LEARNERS))
        return _Mark(now(), self._status.total("env_steps", ACTORS))


class Trial(NamedTuple):
    """One measurement of one configuration; its benchmark flags select the stage to measure."""

    config: Config
    plan: Plan
    timing: Timing
    on_warm_up: Callable[[], None] = lambda: None

    def run(self, spawner: Spawner, interrupts: Interrupts, seed: int) -> Measured:
        """Measure. Raises the fault that ended the run early, or Interrupted after a signal."""
        interrupts.raising = False  # from here on signals are counted
        started_at = now()
        measured, failure = self._measure(spawner, interrupts, seed)
        if failure is not None:
            raise failure
        if interrupts.count:
            raise Interrupted(interrupts.signum)
        if measured is None:
            counted = "taken" if self.config.benchmark.stage == "sample" else "learned from"
            raise SFactoryError(
                f"nothing could be measured: too few steps were {counted} within {now() - started_at:.0f} s; "
                "--reset_timeout_seconds bounds the start of environments, smaller datasets (--batch_size, "
                "--num_batches_per_epoch) are trained on sooner, and with slow environments a longer "
                "--benchmark_seconds covers more steps"
            )
        return measured

    def _measure(
        self, spawner: Spawner, interrupts: Interrupts, seed: int
    ) -> tuple[Measured | None, SFactoryError | None]:
        """Return the measurement or the failure. A failure raised here would keep this trial's memory alive."""
        config, plan = self.config, self.plan
        shared = SharedObjects(plan.spec, plan.layout, plan.weight_bytes)
        reports = ReportCollector(config, shared.actors_to_main, shared.learners_to_main, shared.status)
        workload = Workload(config, seed, 0, plan.device, plan.cores, [None] * plan.layout.num_policies)
        process_group = ProcessGroup(spawner, shared, workload)
        limit_s = config.sampling.reset_timeout_seconds
        supervision = Supervisor(process_group, shared.control, shared.status, interrupts, limit_s, saves=False)
        of_learners = config.benchmark.stage != "sample"
        measurement = Measurement(shared.status, plan.cores.count, of_learners, self.timing, self.on_warm_up)
        hangs = BenchmarkHangs(process_group, config.run.env, limit_s)
        hung: SFactoryError | None = None

        def look() -> bool:
            nonlocal hung
            if measurement.look() or hung is not None:
                return True
            hung = hangs.look()
            return hung is not None

        try:
            process_group.start()
            reports.start()
            supervision.run(look)
        finally:
            process_group.kill()
            reports.stop()
        return measurement.measured, supervision.failure or hung
