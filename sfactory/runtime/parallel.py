"""Room: a training run as processes. In: a resolved configuration. Out: files, and an Outcome."""

from __future__ import annotations

import contextlib

from sfactory.config.population_rules import learning_policies
from sfactory.config.schema import Config
from sfactory.runtime.advisor import Advisor
from sfactory.runtime.breeding import Breeding
from sfactory.runtime.budget import Budget
from sfactory.runtime.console import Console
from sfactory.runtime.crew import Crew
from sfactory.runtime.hangs import Hangs
from sfactory.runtime.inquiry import Inquiry
from sfactory.runtime.left_behind import LeftBehind
from sfactory.runtime.nursery import Nursery
from sfactory.runtime.observer import RunFacts
from sfactory.runtime.observers import Observers
from sfactory.runtime.outcome import Outcome
from sfactory.runtime.plan import Plan
from sfactory.runtime.replacement import Replacement
from sfactory.runtime.reporting import Reporting
from sfactory.runtime.resumed import Resumed
from sfactory.runtime.rundir import RunDir
from sfactory.runtime.signals import Interrupts
from sfactory.runtime.stalls import StallWatch
from sfactory.runtime.summary import Result
from sfactory.runtime.supervision import Supervision
from sfactory.runtime.wiring import Wiring


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
        self._wiring = Wiring(plan.spec, plan.layout, plan.weight_bytes, plan.is_shaped(config))
        layout = plan.layout
        self._inquiry = Inquiry(self._wiring)
        watched = layout.actor_names + layout.policy_worker_names + layout.evaluator_names
        self._stalls = StallWatch(self._wiring.status, watched, who_waits=self._inquiry.text)

    def run(self, nursery: Nursery, interrupts: Interrupts, process_started_at: float, first: bool = True) -> Outcome:
        """Train until a limit, a signal or a fault. ``first``: of the generations of a session."""
        config, plan, wiring = self._config, self._plan, self._wiring
        observers, resumed = self._observers, self._resumed
        facts = RunFacts(config, self._seed, self._rundir.path, plan.spec, resumed.env_steps)
        wanted = observers.begin(facts) if first else not observers.over
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
        crew = Crew(nursery, wiring, self._rundir.log_path if config.report.log_to_file else None)
        supervision = self._supervision(crew, interrupts, reporting)
        breeding = Breeding.of(
            config, self._seed, resumed, reporting.reports, wiring, self._rundir, plan.reward_shaping
        )
        left_behind = LeftBehind(learning_policies(config), reporting.reports.env_steps_of, wiring.has_learned_enough)
        # From here on signals are counted, not raised: a half-started child must not escape the crew.
        interrupts.raising = False

        def beat() -> bool:
            reporting.beat()
            self._stalls.look()
            self._inquiry.look(interrupts)
            left_behind.look()
            if breeding is not None:
                breeding.look()
            return observers.over or (breeding is not None and breeding.failure is not None)

        with contextlib.closing(reporting):
            try:
                if wanted:
                    policies = range(plan.layout.num_policies)
                    directories: list[str | None] = [str(self._rundir.checkpoint_dir(policy)) for policy in policies]
                    config_of = None if breeding is None else breeding.config_of
                    crew.start(config, self._seed, resumed.env_steps, plan.device, plan.cores, directories, config_of)
                    reporting.reports.start()
                    if first:
                        observers.on_start()
                    supervision.run(beat)
            finally:
                crew.kill()
                if breeding is not None:
                    breeding.settle()
                for actor, name in enumerate(plan.layout.actor_names):
                    if crew.was_cut_off(name):  # of others the board and the slots agree without a hand
                        wiring.settle_steps(actor)
                reporting.reports.stop()
            failure = supervision.failure or (None if breeding is None else breeding.failure)
            return reporting.finish("failed" if failure else _status(supervision, interrupts), failure)

    def _supervision(self, crew: Crew, interrupts: Interrupts, reporting: Reporting) -> Supervision:
        wiring, sampling = self._wiring, self._config.sampling
        step_s, reset_s = sampling.step_timeout_seconds, sampling.reset_timeout_seconds
        return Supervision(
            crew,
            wiring.control,
            wiring.status,
            interrupts,
            reset_s,
            replacement=Replacement(crew, wiring, self._replaced),
            hangs=Hangs(crew, step_s, reset_s, reporting.reports.reading_since),
        )


def _status(supervision: Supervision, interrupts: Interrupts) -> Result:
    return "interrupted" if interrupts.count and not supervision.done else "done"
