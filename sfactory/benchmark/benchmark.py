"""Measures throughput, first of pure simulation, then of the run itself, and where processes spend their time."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sfactory.benchmark.pure_simulation import pure_simulation
from sfactory.benchmark.trial import Measured, Timing, Trial
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.planning.plan import Plan
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.bottleneck import Advisor, Load
from sfactory.report.console import Console

_MIN_WARM_UP_S = 2.0
_MIN_PATIENCE_S = 30.0
_BEATS_S = 5.0  # time to get the stack of a hung process, after the time limit
_MODES = {"full": "train", "sample": "sampler_only", "learn": "learn", "env": "env"}


@dataclass(frozen=True)
class BenchmarkResult:
    """The last line on stdout; field names are its keys. Shares of the measured time are means per process kind."""

    env: str
    mode: str
    inference: str
    env_steps_per_second: float
    pure_simulation_steps_per_second: float
    percent_of_pure_simulation: float
    seconds: float
    busy: dict[str, float]
    waiting: dict[str, float]
    bound_by: str | None

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


class Benchmark:
    """One measurement of one configuration."""

    def __init__(self, config: Config, plan: Plan, console: Console) -> None:
        self._config, self._plan, self._console = config, plan, console
        self._stage = config.benchmark.stage
        self._seconds = config.benchmark.benchmark_seconds

    def run(self, spawner: Spawner, interrupts: Interrupts, seed: int) -> BenchmarkResult:
        """Measure. Raises the fault that ended the run early, or Interrupted after a signal."""
        sampling = self._config.sampling
        simulated = self._config.benchmark.benchmark_pure_simulation
        if self._stage == "env" or not simulated:
            seconds = self._seconds if self._stage == "env" else min(10.0, self._seconds)
            self._console.message(f"pure simulation: {sampling.num_workers} processes, {seconds:g} s")
            factory = EnvFactory.of(self._config)
            simulated = pure_simulation(spawner, factory, sampling, self._plan.cores, seconds)
        if self._stage == "env":  # processes only step their envs and never wait
            idle_cores = max(0.0, float(self._plan.cores.count - sampling.num_workers))
            load = Load({"actor": 1.0}, {"actor": 0.0}, {}, "actor", idle_cores)
            return self._result(simulated, Measured(simulated, self._seconds, load))
        # A hung process is reported before the patience ends.
        hangs_after = sampling.reset_timeout_seconds + _BEATS_S
        patience = max(_MIN_PATIENCE_S, self._seconds, hangs_after)
        timing = Timing(max(_MIN_WARM_UP_S, 0.1 * self._seconds), self._seconds, patience)
        started = f"warmed up in a moment, then {self._seconds:g} s of measurement"
        trial = Trial(self._config, self._plan, timing, lambda: self._console.message(started))
        return self._result(simulated, trial.run(spawner, interrupts, seed))

    def _result(self, simulated: float, measured: Measured) -> BenchmarkResult:
        load = measured.load
        advice = Advisor(self._config, self._plan).advice(load)
        if advice is not None:
            self._console.message(advice)
        return BenchmarkResult(
            env=self._config.run.env,
            mode=_MODES[self._stage],
            inference=self._plan.layout.inference,
            env_steps_per_second=round(measured.rate, 1),
            pure_simulation_steps_per_second=round(simulated, 1),
            percent_of_pure_simulation=round(100.0 * measured.rate / simulated, 2),
            seconds=round(measured.seconds, 3),
            busy=_rounded(load.busy),
            waiting=_rounded(load.waiting),
            bound_by=load.bound_by,
        )


def _rounded(shares: dict[str, float]) -> dict[str, float]:
    return {kind: round(share, 4) for kind, share in shares.items()}
