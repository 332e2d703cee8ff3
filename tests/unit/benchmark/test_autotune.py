"""A search finds fast settings with few trials, even if the machine drifts, and keeps the flags that were given."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import asdict, fields, replace

import pytest

from sfactory.actor.reward_shaping import RewardShaping
from sfactory.benchmark.autotune import Autotune, Tuned, datasets_a_round, free_flags, require_short_lag
from sfactory.benchmark.coordinate_search import GAIN, MOST_TRIALS, Found, Search, Settings, Tried
from sfactory.benchmark.trial import Measured, Trial
from sfactory.config.flags import config_of
from sfactory.errors import ConfigError, ResourceError, WorkerDied
from sfactory.planning.plan import Plan, plan_sizes
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.bottleneck import Load
from sfactory.report.console import Console
from tests.support.parts import VECTOR, small_layout

ALL = frozenset(field.name for field in fields(Settings))
NOT_BATCH = ALL - {"batch_size"}
START = Settings("central", 2, 32, worker_num_splits=2, learner_num_threads=0, batch_size=1024)
MOST_ENVS = 256
TUNED: dict[str, object] = {"env": "any", "autotune": True, "device": "cpu", "encoder_mlp_layers": (8,)}
SAMPLING = {"benchmark": True, "sampler_only": True}

Measure = Callable[[Settings], float]


def free_cores(settings: Settings) -> int:
    return max(1, 4 - settings.num_workers)


def machine(settings: Settings, cores: int = 4) -> float:
    """Env steps per second of an imagined machine: fastest with local inference and a worker per core."""
    if settings.num_workers * settings.num_envs_per_worker > MOST_ENVS:
        raise ConfigError([f"{settings.num_workers * settings.num_envs_per_worker} envs are too many"])
    width = settings.num_envs_per_worker / (1 if settings.inference == "local" else settings.worker_num_splits)
    rate = 20_000.0 * min(settings.num_workers, cores) * width / (width + 16)
    rate *= 2.0 if settings.inference == "local" else 1.0
    rate *= {1: 0.7, 2: 1.0, 4: 1.2}[settings.worker_num_splits] if settings.inference == "central" else 1.0
    rate *= 0.7 if settings.num_workers > cores else 1.0
    return rate * (1.0 if settings.learner_num_threads in (0, 2) else 0.8)


def searched(measure: Measure, start: Settings = START, free: frozenset[str] = NOT_BATCH, cores: int = 4) -> Found:
    return Search(start, free, cores, measure, free_cores).run()


@pytest.mark.parametrize("seed", range(20))
def test_the_best_settings_are_found_although_the_measurements_are_noisy(seed: int) -> None:
    rng = random.Random(seed)

    found = searched(lambda settings: machine(settings) * rng.gauss(1.0, 0.015))

    assert machine(found.best) >= 0.9 * machine(
        replace(START, inference="local", num_workers=4, num_envs_per_worker=64)
    )
    assert (found.best.inference, found.best.num_workers) == ("local", 4)
    assert len(found.trials) <= MOST_TRIALS + sum(trial.rate is None for trial in found.trials)


def test_the_start_is_compared_with_the_best_so_far_when_time_is_up() -> None:
    reported: list[Tried] = []

    found = Search(START, NOT_BATCH, 4, machine, free_cores, reported.append, lambda: len(reported) >= 4).run()

    assert reported == found.trials
    assert len(reported) == 4 + 2
    assert [tried.settings for tried in reported[-2:]] == [START, found.best]
    assert found.rate == max(tried.rate for tried in reported if tried.rate is not None)
    assert found.gain == pytest.approx(machine(found.best) / machine(START))
    assert machine(found.best) > machine(START)


def test_fewer_threads_are_tried_where_the_learner_has_all_cores() -> None:
    def busy(settings: Settings) -> float:
        return 1.0 / (settings.learner_num_threads or 4)

    search = Search(START, {"learner_num_threads"}, 4, busy, lambda settings: 4)

    assert search.run().best.learner_num_threads == 1


@pytest.mark.parametrize("kept", sorted(NOT_BATCH))
def test_given_flags_are_never_varied(kept: str) -> None:
    found = searched(machine, free=NOT_BATCH - {kept})

    # Where the number of envs is given, more workers have more of them.
    assert {asdict(trial.settings)[kept] for trial in found.trials} == {asdict(START)[kept]}
    assert machine(found.best) >= machine(START)


def test_batches_are_tried_only_if_they_are_free() -> None:
    def with_large_batches(settings: Settings) -> float:
        return machine(settings) * settings.batch_size / (settings.batch_size + 4096)

    without, asked = searched(with_large_batches), searched(with_large_batches, free=ALL)

    assert {trial.settings.batch_size for trial in without.trials} == {1024}
    assert asked.best.batch_size == 8192  # three doublings, and no more


def test_doubling_ends_with_the_first_that_gains_too_little() -> None:
    rates = {32: 100.0, 64: 150.0, 128: 180.0, 256: 180.0 * (1 + GAIN / 2)}

    found = searched(lambda settings: rates[settings.num_envs_per_worker], free=frozenset({"num_envs_per_worker"}))

    assert found.best.num_envs_per_worker == 128
    assert max(trial.settings.num_envs_per_worker for trial in found.trials) == 256


@pytest.mark.parametrize("change", [0.0, 0.02, -0.02], ids=["still", "ever faster", "ever slower"])
def test_a_machine_that_drifts_does_not_choose_by_chance(change: float) -> None:
    moments = itertools.count(1)

    found = searched(lambda settings: 1000.0 * (1.0 + change) ** next(moments))

    assert (found.best.num_workers, found.best.num_envs_per_worker) == (2, 32)


def test_one_lucky_trial_does_not_move_inference() -> None:
    trials: list[Settings] = []

    def lucky(settings: Settings) -> float:
        rate = machine(replace(settings, inference="central"))
        if settings.inference == "central":
            return rate
        trials.append(settings)
        return (1.5 if len(trials) == 1 else 0.8) * rate

    found = searched(lucky)

    assert trials
    assert found.best.inference == "central"


@pytest.mark.parametrize(
    ("first", "central", "local", "best", "gain"),
    [(1000.0, 900.0, 990.0, "local", 1.1), (500.0, 1000.0, 1000.0, "central", 1.0)],
    ids=["became slower", "became faster"],
)
def test_a_machine_that_changes_after_the_first_trial_does_not_decide(
    first: float, central: float, local: float, best: str, gain: float
) -> None:
    count = itertools.count()

    def changing(settings: Settings) -> float:
        return first if next(count) == 0 else {"central": central, "local": local}[settings.inference]

    found = searched(changing, free=frozenset({"inference"}))

    assert found.best.inference == best
    assert found.gain == pytest.approx(gain)


def test_what_is_refused_or_dies_is_passed_over_with_its_reason() -> None:
    def picky(settings: Settings) -> float:
        if settings.inference == "local":
            raise WorkerDied("Traceback (most recent call last):\n  ...\nsf-actor-0 was killed by SIGSEGV")
        if settings.num_workers > 2:
            raise ResourceError("too little memory")
        if settings.learner_num_threads == 4:
            raise OSError(12, "Cannot allocate memory")
        return machine(settings)

    found = searched(picky)

    reasons = {trial.why for trial in found.trials if trial.rate is None}
    assert {"sf-actor-0 was killed by SIGSEGV", "too little memory", "[Errno 12] Cannot allocate memory"} <= reasons
    assert found.best == replace(START, num_envs_per_worker=128)


def failing(error: type[Exception], fails: Callable[[Settings], bool], failed: list[Settings]) -> Measure:
    """The machine with an ``error`` in the trials of some settings."""

    def measure(settings: Settings) -> float:
        if fails(settings):
            failed.append(settings)
            raise error(f"failed {len(failed)}")
        return machine(settings)

    return measure


def test_refusals_cost_no_trials() -> None:
    refused: list[Settings] = []

    found = searched(failing(ResourceError, lambda settings: settings != START, refused))

    assert found.best == START
    assert len(refused) == len(found.trials) - 1 >= 5


def test_a_start_that_does_not_work_is_replaced_by_what_does() -> None:
    found = searched(failing(WorkerDied, lambda settings: settings == START, []))

    assert machine(found.best) > machine(START)
    assert found.gain is None


def test_the_first_error_is_raised_soon_if_nothing_works() -> None:
    failed: list[Settings] = []

    with pytest.raises(WorkerDied, match="failed 1"):
        searched(failing(WorkerDied, lambda settings: True, failed))

    assert len(failed) == 3


@pytest.mark.parametrize(
    ("free", "envs"), [({"num_workers"}, {1: 32, 4: 32}), ({"num_workers", "num_envs_per_worker"}, {1: 64, 4: 16})]
)
def test_other_numbers_of_workers_share_the_envs_unless_their_number_was_given(
    free: set[str], envs: dict[int, int]
) -> None:
    found = searched(lambda settings: 1000.0, free=frozenset(free))

    tried = {trial.settings.num_workers: trial.settings.num_envs_per_worker for trial in found.trials}
    assert {count: tried[count] for count in envs} == envs


@pytest.mark.parametrize(
    ("given", "flags", "device", "free"),
    [
        ((), {}, "cuda:0", NOT_BATCH - {"learner_num_threads"}),
        ((), {"autotune_batch": True}, "cpu", ALL),
        (("batch_size", "env", "gamma"), {"autotune_batch": True}, "cpu", NOT_BATCH),
        ((), SAMPLING | {"autotune_batch": True}, "cpu", NOT_BATCH - {"learner_num_threads"}),
        (("inference", "num_workers"), {}, "cpu", NOT_BATCH - {"inference", "num_workers"}),
        # A process can hold only one game of this family.
        ((), {"env": "retro:Airstriker-Genesis-v0"}, "cpu", NOT_BATCH - {"num_envs_per_worker"}),
    ],
)
def test_flags_that_affect_speed_and_were_not_given_are_free(
    given: tuple[str, ...], flags: dict[str, object], device: str, free: frozenset[str]
) -> None:
    assert free_flags(config_of({"autotune": True, **flags}), given, device) == free


def test_settings_with_a_policy_lag_that_is_too_long_are_refused() -> None:
    layout = small_layout()  # 2 splits of 3 envs are 6 rows, a dataset takes 4

    assert datasets_a_round(layout) == 1.5
    require_short_lag(layout, most_datasets=1.5)
    with pytest.raises(ConfigError, match=r"6 envs x 4 steps would be 1\.5 datasets, more than 1.4"):
        require_short_lag(layout, most_datasets=1.4)


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """The trials that are run; none starts anything."""
    trials: list[Trial] = []

    def measured(trial: Trial, *_: object) -> Measured:
        trials.append(trial)
        return Measured(100.0, 1.0, Load({}, {}, {}, "actor", 0.0))

    monkeypatch.setattr(Trial, "run", measured)
    return trials


def tuned_to(plan: Plan, flags: dict[str, object]) -> Tuned:
    """``plan``, of ``flags``, after autotune, which varies nothing but inference."""
    autotune = Autotune(config_of(flags), ALL - {"inference"}, plan, 0, Console(None, None, quiet=True))
    return autotune.run(Spawner(), Interrupts())


def test_plans_of_trials_and_of_the_tuned_run_keep_what_the_env_and_the_system_say(trials: list[Trial]) -> None:
    shaping: RewardShaping = {"pays": {"right": 0.5}}
    plan = plan_sizes(config_of(TUNED), VECTOR)
    plan = replace(plan, reward_shaping=shaping, cores=replace(plan.cores, pins=False))

    tuned = tuned_to(plan, TUNED)

    plans = [tuned.plan, *(trial.plan for trial in trials)]
    assert len(plans) > 2
    assert all(each.reward_shaping == shaping for each in plans)
    assert not any(each.cores.pins for each in plans)


def test_a_run_whose_evaluations_decide_what_is_best_can_be_tuned(trials: list[Trial]) -> None:
    flags = {**TUNED, "eval_interval_sec": 60.0, "save_best_metric": "eval_return"}

    tuned = tuned_to(plan_sizes(config_of(flags), VECTOR), flags)

    assert trials
    assert not any(trial.config.evaluation.eval_interval_sec for trial in trials)
    assert tuned.config.checkpoint.best_by_evaluation
    assert tuned.config.evaluation.eval_interval_sec == 60.0
