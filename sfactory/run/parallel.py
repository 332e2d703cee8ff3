"""Room: a training run as processes. In: a resolved configuration. Out: files, and an Outcome."""

from __future__ import annotations

import contextlib

from sfactory.config.schema import Config
from sfactory.run.advisor import Advisor
from sfactory.run.budget import Budget
from sfactory.run.console import Console
from sfactory.run.crew import Crew
from sfactory.run.hangs import Hangs
from sfactory.run.inquiry import Inquiry
from sfactory.run.nursery import Nursery
from sfactory.run.observer import RunFacts
from sfactory.run.observers import Observers
from sfactory.run.outcome import Outcome
from sfactory.run.plan import Plan
from sfactory.run.replacement import Replacement
from sfactory.run.reporting import Reporting
from sfactory.run.resumed import Resumed
from sfactory.run.rundir import RunDir
from sfactory.run.signals import Interrupts
from sfactory.run.stalls import StallWatch
from sfactory.run.summary import Result
from sfactory.run.supervision import Supervision
from sfactory.run.wiring import Wiring


class ParallelRun:
    """Starts everything, reports while it runs, and leaves nothing behind."""

    def __init__(
        self,
        config: Config,
        seed: int,
        plan: Plan,
        rundir: RunDir,
        resumed: Resumed | None,
        console: Console,
        observers: Observers,
        replaced: Budget,
    ) -> None:
        """``replaced``: workers that are, in all generations."""
        self._config, self._seed, self._plan, self._rundir, self._console = config, seed, plan, rundir, console
        self._resumed = resumed or Resumed()
        self._observers, self._replaced = observers, replaced
        self._wiring = Wiring(plan.spec, plan.layout, plan.weight_bytes)
        layout = plan.layout
        self._inquiry = Inquiry(self._wiring)
        watched = layout.actor_names + layout.policy_worker_names + layout.evaluator_names
        self._stalls = StallWatch(self._wiring.status, watched, who_waits=self._inquiry.text)

    def run(self, nursery: Nursery, interrupts: Interrupts, process_started_at: float, first: bool = True) -> Outcome:
        """Train until a limit, a signal or a fault. ``first``: of the generations of a session."""
        config, plan, wiring = self._config, self._plan, self._wiring
        observers, resumed = self._observers, self._resumed
        facts = RunFacts(config, self._seed, self._rundir.path, plan.spec, resumed.env_steps)
        wanted = observers.begin(facts) if first else not observers.failed
        reporting = Reporting(
            config,
            wiring,
            self._rundir,
            resumed,
            self._console,
            process_started_at,
            observers,
            Advisor.of(config, plan),
        )
        crew = Crew(nursery, wiring)
        sampling = config.sampling
        supervision = Supervision(
            crew,
            wiring.control,
            wiring.status,
            interrupts,
            sampling.reset_timeout_seconds,
            replacement=Replacement(crew, wiring, self._replaced),
            hangs=Hangs(
                crew, sampling.step_timeout_seconds, sampling.reset_timeout_seconds, reporting.reports.reading_since
            ),
        )
        # From here on signals are counted, not raised: a half-started child must not escape the crew.
        interrupts.raising = False

        def beat() -> bool:
            reporting.beat()
            self._stalls.look()
            self._inquiry.look(interrupts)
            return observers.failed

        with contextlib.closing(reporting):
            try:
                if wanted:
                    directory = str(self._rundir.checkpoint_dir(0))
                    crew.start(config, self._seed, resumed.env_steps, plan.device, plan.cores, [directory])
                    reporting.reports.start()
                    if first:
                        observers.on_start()
                    supervision.run(beat)
            finally:
                crew.kill()
                for actor in range(plan.layout.num_actors):
                    wiring.settle_steps(actor)
                reporting.reports.stop()
            return reporting.finish(_status(supervision, interrupts), supervision.failure)


def _status(supervision: Supervision, interrupts: Interrupts) -> Result:
    if supervision.failure is not None:
        return "failed"
    return "interrupted" if interrupts.count and not supervision.done else "done"
