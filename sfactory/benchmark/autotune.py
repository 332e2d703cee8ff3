"""Tunes the flags that the user did not set to the machine, by trials of the whole loop, and prints the results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sfactory.benchmark.coordinate_search import MOST_TRIALS, Found, Search, Settings, Tried
from sfactory.benchmark.trial import Timing, Trial
from sfactory.clock import Deadline
from sfactory.config.env_families import find_family, flag_that_stays_one
from sfactory.config.flags import config_with, values_of
from sfactory.config.schema import Config, EvaluationConfig
from sfactory.config.validation import check
from sfactory.errors import ConfigError
from sfactory.layout import Layout
from sfactory.planning.plan import Plan, plan_sizes
from sfactory.process.signals import Interrupted, Interrupts
from sfactory.process.spawn import Spawner
from sfactory.ranks.place import ONE_RANK, Place
from sfactory.report.console import Console

# Maximum number of datasets in one rollout of all envs. With more, the policy lag makes steps less useful for training,
# which a speed measurement does not show. See docs/decisions/0019-autotune.md.
MOST_DATASETS_A_ROUND = 2.0
_WARM_UP_S = 1.0
_PATIENCE_S = 30.0
_BOOT_S = 120.0
_MOST_S = 900.0  # after this time no new settings are tried
_MOST_TIMES = 4.0  # but not before this multiple of the measured time of all trials


@dataclass(frozen=True)
class Tuned:
    """The tuned configuration and its plan. chosen: values of all free flags by name, also of unchanged ones."""

    config: Config
    plan: Plan
    chosen: Mapping[str, object]


def free_flags(config: Config, given: Collection[str], device: str) -> frozenset[str]:
    """Flags that may vary: those that affect speed, were not ``given``, and do not have to be 1 for the env's family.

    Names are fields of Settings.
    """
    free = {"inference", "num_workers", "num_envs_per_worker", "worker_num_splits"}
    if config.benchmark.stage != "sample":
        if device == "cpu":
            free.add("learner_num_threads")
        if config.tuning.autotune_batch:
            free.add("batch_size")
    return frozenset(free.difference(given, [flag_that_stays_one(find_family(config.run.env))]))


class Autotune:
    """Tunes one run or one benchmark."""

    def __init__(self, config: Config, given: Collection[str], plan: Plan, seed: int, console: Console) -> None:
        """``plan``: the plan of ``config``. ``given``: flags that must not change."""
        self._config, self._plan, self._seed, self._console = config, plan, seed, console
        self._free = free_flags(config, given, plan.device)
        values: dict[str, Any] = {**values_of(config), "inference": plan.layout.inference}
        self._start = Settings(**{field.name: values[field.name] for field in fields(Settings)})
        self._most_datasets = max(MOST_DATASETS_A_ROUND, datasets_a_round(plan.layout))
        self._tried = 0

    def run(self, spawner: Spawner, interrupts: Interrupts) -> Tuned:
        """Measure and choose settings. Raises the first error if no settings work, or Interrupted after a signal."""
        if not self._free:
            self._console.message("autotune: all settings that it can vary were given, so there is nothing to tune")
            return self._tuned(self._start)
        names = ", ".join(name for name in asdict(self._start) if name in self._free)
        self._console.message(f"autotune: at most {MOST_TRIALS} trials, each a few seconds, vary {names}")
        # Trials that wait in vain must not take hours.
        usual = MOST_TRIALS * (_WARM_UP_S + self._config.tuning.autotune_seconds)
        deadline = Deadline(max(_MOST_S, _MOST_TIMES * usual))
        search = Search(
            self._start,
            self._free,
            self._plan.cores.count,
            lambda settings: self._measure(settings, spawner, interrupts),
            self._learner_threads,
            self._report,
            lambda: deadline.passed,
        )
        found = search.run()
        self._conclude(found)
        return self._tuned(found.best)

    def _tuned(self, best: Settings) -> Tuned:
        chosen = self._shown(best)
        config = config_with(self._config, {**chosen, "autotune": False, "autotune_batch": False})
        # Settings contain the resolved value of --inference=auto, so the run uses the measured one.
        place = Place(self._plan.layout.rank, self._plan.layout.world)  # where a run is planned, and trials are not
        return Tuned(config, self._plan_of(config_with(config, asdict(best)), place), chosen)

    def _plan_of(self, config: Config, place: Place = ONE_RANK) -> Plan:
        """The plan of ``config``, with what the run's plan has from its env and this system."""
        plan = plan_sizes(config, self._plan.spec, place=place)
        cores = replace(plan.cores, pins=self._plan.cores.pins)
        return replace(plan, cores=cores, reward_shaping=self._plan.reward_shaping)

    def _learner_threads(self, settings: Settings) -> int:
        plan = self._plan_of(config_with(self._config, asdict(settings)))
        return plan.cores.learner_threads(plan.layout.local_actors, plan.layout.num_policies)

    def _measure(self, settings: Settings, spawner: Spawner, interrupts: Interrupts) -> float:
        # There is no evaluation during a measurement, which could decide what is best.
        without = replace(self._config, evaluation=EvaluationConfig())
        of_trial = {"benchmark": True, "autotune": False, "autotune_batch": False}
        best = {"save_best_metric": self._config.checkpoint.episode_metric}
        config = config_with(without, {**asdict(settings), **of_trial, **best})
        problems = check(config)
        if problems:
            raise ConfigError(problems)
        plan = self._plan_of(config)
        if config.benchmark.stage != "sample":
            require_short_lag(plan.layout, self._most_datasets)
        boot = max(_BOOT_S, config.sampling.reset_timeout_seconds + _PATIENCE_S)
        timing = Timing(_WARM_UP_S, config.tuning.autotune_seconds, _PATIENCE_S, boot)
        try:
            return Trial(config, plan, timing).run(spawner, interrupts, self._seed).rate
        finally:
            interrupts.raising = True  # a trial switches this off
            if interrupts.count:
                raise Interrupted(interrupts.signum)

    def _report(self, tried: Tried) -> None:
        self._tried += 1
        self._console.message(f"autotune {self._tried:2d}: {self._text(tried.settings)}: {_result(tried)}")

    def _shown(self, settings: Settings) -> dict[str, object]:
        return {name: value for name, value in asdict(settings).items() if name in self._free}

    def _text(self, settings: Settings) -> str:
        return " ".join(f"{name}={value}" for name, value in self._shown(settings).items())

    def _conclude(self, found: Found) -> None:
        rows = [["trial", *self._shown(found.best), "env steps/s"]]
        for number, tried in enumerate(found.trials, 1):
            rows.append([str(number), *map(str, self._shown(tried.settings).values()), _result(tried, "")])
        self._console.message(f"autotune: all trials\n{_table(rows)}")
        gain = f"{found.gain or 0.0:.2f} times the starting settings, measured one after the other"
        if found.gain is None:
            gain = "the starting settings do not work"
        elif found.best == found.trials[0].settings:
            gain = "the starting settings, which nothing beat"
        self._console.message(f"autotune: chosen: {self._text(found.best)}: {found.rate:,.0f} env steps/s, {gain}")


def datasets_a_round(layout: Layout) -> float:
    """Number of datasets in one rollout of all envs and agents."""
    return layout.num_splits * layout.rows / layout.dataset_rows


def require_short_lag(layout: Layout, most_datasets: float) -> None:
    """Raise ConfigError if one rollout of all envs has more than ``most_datasets`` datasets."""
    datasets = datasets_a_round(layout)
    many = f" x {layout.agents} agents" if layout.agents > 1 else ""
    if datasets > most_datasets:
        raise ConfigError(
            [
                f"{layout.num_splits * layout.envs} envs{many} x {layout.rollout} steps would be {datasets:g} "
                f"datasets, more than {most_datasets:g}, and the policy would lag too far behind (a larger "
                "--batch_size makes room)"
            ]
        )


def _result(tried: Tried, unit: str = " env steps/s") -> str:
    return f"passed over: {tried.why}" if tried.rate is None else f"{tried.rate:,.0f}{unit}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns, except the last column, which may be a sentence."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]) for row in rows
    )
