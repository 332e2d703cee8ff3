"""A search finds fast settings with few trials, however the machine drifts, and leaves alone what was given."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, fields, replace

import pytest

from sfactory.benchmark.autotune import MOST_DATASETS_A_ROUND, datasets_a_round, free_flags, require_short_lag, verdict
from sfactory.benchmark.coordinate_search import GAIN, MOST_TRIALS, Found, Search, Settings, Tried
from sfactory.config.flags import config_of
from sfactory.errors import ConfigError, ResourceError, WorkerDied
from tests.support.parts import small_layout

ALL = frozenset(field.name for field in fields(Settings))
NOT_BATCH = ALL - {"batch_size"}
START = Settings(
    inference="central",
    num_workers=2,
    num_envs_per_worker=32,
    worker_num_splits=2,
    learner_num_threads=0,
    batch_size=1024,
)
MOST_ENVS = 256

Measure = Callable[[Settings], float]


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
    return Search(start, free, cores, measure).run()


def noisy(measure: Measure, seed: int, deviation: float = 0.015) -> Measure:
    rng = random.Random(seed)
    return lambda settings: measure(settings) * rng.gauss(1.0, deviation)


def grid() -> list[Settings]:
    return [
        replace(START, inference=inference, num_workers=workers, num_envs_per_worker=envs, worker_num_splits=splits)
        for inference in ("central", "local")
        for workers in (1, 2, 4, 8)
        for envs in (8, 16, 32, 64, 128, 256)
        for splits in (1, 2, 4)
        if workers * envs <= MOST_ENVS
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_best_settings_are_found_although_the_measurements_are_noisy(seed: int) -> None:
    found = searched(noisy(machine, seed))

    assert machine(found.best) >= 0.9 * max(map(machine, grid()))
    assert found.best.inference == "local"
    assert found.best.num_workers == 4
    assert len(found.trials) <= MOST_TRIALS + sum(trial.rate is None for trial in found.trials)


def test_when_time_is_up_nothing_new_is_tried_and_the_best_so_far_is_compared_with_the_start() -> None:
    tried: list[Settings] = []

    def measure(settings: Settings) -> float:
        tried.append(settings)
        return machine(settings)

    found = Search(START, NOT_BATCH, 4, measure, out_of_time=lambda: len(tried) >= 4).run()

    assert len(tried) == 4 + 2
    assert tried[-2:] == [START, found.best]
    assert machine(found.best) > machine(START)


def test_without_noise_nothing_on_the_way_is_faster_than_what_is_chosen() -> None:
    found = searched(machine)

    assert found.rate == max(trial.rate for trial in found.trials if trial.rate is not None)
    assert found.gain == pytest.approx(machine(found.best) / machine(START))


@pytest.mark.parametrize("kept", sorted(NOT_BATCH))
def test_what_was_given_is_never_varied(kept: str) -> None:
    found = searched(machine, free=NOT_BATCH - {kept})

    # Where the number of envs is given, more workers have more of them.
    assert {asdict(trial.settings)[kept] for trial in found.trials} == {asdict(START)[kept]}
    assert machine(found.best) >= machine(START)


def test_batches_are_tried_only_where_that_is_asked_for() -> None:
    def with_large_batches(settings: Settings) -> float:
        return machine(settings) * settings.batch_size / (settings.batch_size + 4096)

    without, asked = searched(with_large_batches), searched(with_large_batches, free=ALL)

    assert {trial.settings.batch_size for trial in without.trials} == {1024}
    assert asked.best.batch_size == 8192  # three doublings, and no more


def test_a_machine_on_which_nothing_matters_is_left_soon_and_keeps_the_start() -> None:
    found = searched(lambda settings: 1000.0)

    assert found.best == START
    assert found.gain == 1.0
    assert len(found.trials) <= MOST_TRIALS
    # Neither inference nor any ladder is followed beyond its first rung.
    assert {trial.settings.num_envs_per_worker for trial in found.trials if trial.settings.num_workers == 2} <= {
        16,
        32,
        64,
    }


def test_doubling_ends_with_the_first_that_gains_too_little() -> None:
    rates = {32: 100.0, 64: 150.0, 128: 180.0, 256: 180.0 * (1 + GAIN / 2)}

    found = searched(lambda settings: rates[settings.num_envs_per_worker], free=frozenset({"num_envs_per_worker"}))

    assert found.best.num_envs_per_worker == 128
    assert max(trial.settings.num_envs_per_worker for trial in found.trials) == 256


@pytest.mark.parametrize(
    ("change", "workers", "best"),
    [(0.0, 2, 32), (0.02, 2, 32), (-0.02, 2, 32)],
    ids=["still", "ever faster", "ever slower"],
)
def test_a_machine_that_drifts_does_not_choose_by_chance(change: float, workers: int, best: int) -> None:
    moment = 0

    def drifting(settings: Settings) -> float:
        nonlocal moment
        moment += 1
        return 1000.0 * (1.0 + change) ** moment

    found = searched(drifting)

    assert (found.best.num_workers, found.best.num_envs_per_worker) == (workers, best)


def test_one_lucky_look_does_not_move_inference() -> None:
    looks: list[Settings] = []

    def lucky(settings: Settings) -> float:
        """Central inference is faster, and the first look at the other is a burst."""
        rate = machine(replace(settings, inference="central"))
        if settings.inference == "central":
            return rate
        looks.append(settings)
        return (1.5 if len(looks) == 1 else 0.8) * rate

    found = searched(lucky)

    assert looks
    assert found.best.inference == "central"


def test_a_better_one_is_found_although_the_machine_has_become_slower() -> None:
    measured: list[Settings] = []

    def slowing(settings: Settings) -> float:
        measured.append(settings)
        rate = 1000.0 if settings.inference == "central" else 1100.0
        return rate if len(measured) == 1 else 0.9 * rate

    found = searched(slowing, free=frozenset({"inference"}))

    assert found.best.inference == "local"
    assert found.gain == pytest.approx(1.1)


def test_the_start_stays_if_it_turns_out_to_be_no_slower() -> None:
    measured: list[Settings] = []

    def changing(settings: Settings) -> float:
        """Slow at first, whatever is set."""
        measured.append(settings)
        return 500.0 if len(measured) == 1 else 1000.0

    found = searched(changing)

    assert found.best == START
    assert found.gain == 1.0


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


def test_refusals_cost_no_trials() -> None:
    refused = 0

    def refusing(settings: Settings) -> float:
        nonlocal refused
        if settings != START:
            refused += 1
            raise ConfigError(["not this"])
        return 1000.0

    found = searched(refusing)

    assert refused >= 5
    assert found.best == START
    assert len(found.trials) == refused + 1


def test_a_start_that_does_not_work_is_replaced_by_what_does() -> None:
    def without_start(settings: Settings) -> float:
        if settings == START:
            raise WorkerDied("sf-actor-1 was killed by SIGKILL")
        return machine(settings)

    found = searched(without_start)

    assert machine(found.best) > machine(START)
    assert found.gain is None


def test_the_first_error_is_raised_soon_if_nothing_works() -> None:
    errors: list[WorkerDied] = []

    def failing(settings: Settings) -> float:
        errors.append(WorkerDied(f"failed {len(errors)}"))
        raise errors[-1]

    with pytest.raises(WorkerDied, match="failed 0"):
        searched(failing)

    assert len(errors) == 3


def test_an_interrupt_is_no_failed_trial() -> None:
    class Interrupt(BaseException):
        pass

    def interrupted(settings: Settings) -> float:
        raise Interrupt

    with pytest.raises(Interrupt):
        searched(interrupted)


@pytest.mark.parametrize("seed", range(20))
def test_there_is_a_bound_on_trials_whatever_comes_out(seed: int) -> None:
    rng = random.Random(seed)

    found = searched(lambda settings: rng.uniform(1.0, 1.0 + 2.0 ** rng.randint(-5, 5)), free=ALL, cores=64)

    assert len(found.trials) <= MOST_TRIALS


@pytest.mark.parametrize(
    ("free", "envs"), [({"num_workers"}, {1: 32, 4: 32}), ({"num_workers", "num_envs_per_worker"}, {1: 64, 4: 16})]
)
def test_other_numbers_of_workers_share_the_envs_unless_their_number_was_given(
    free: set[str], envs: dict[int, int]
) -> None:
    found = searched(lambda settings: 1000.0, free=frozenset(free))

    tried = {trial.settings.num_workers: trial.settings.num_envs_per_worker for trial in found.trials}
    assert {count: tried[count] for count in envs} == envs


def test_every_trial_is_told_as_it_comes() -> None:
    told: list[Tried] = []

    found = Search(START, NOT_BATCH, 4, machine, told.append).run()

    assert told == found.trials


@pytest.mark.parametrize(
    ("given", "flags", "device", "free"),
    [
        ((), {}, "cpu", NOT_BATCH),
        ((), {}, "cuda:0", NOT_BATCH - {"learner_num_threads"}),
        ((), {"autotune_batch": True}, "cpu", ALL),
        (("batch_size", "env", "gamma"), {"autotune_batch": True}, "cpu", NOT_BATCH),
        (
            (),
            {"benchmark": True, "sampler_only": True, "autotune_batch": True},
            "cpu",
            NOT_BATCH - {"learner_num_threads"},
        ),
        (("inference", "num_workers"), {}, "cpu", NOT_BATCH - {"inference", "num_workers"}),
        (tuple(ALL), {}, "cpu", frozenset()),
    ],
)
def test_what_makes_a_difference_and_was_not_given_is_free(
    given: tuple[str, ...], flags: dict[str, object], device: str, free: frozenset[str]
) -> None:
    assert free_flags(config_of({"autotune": True, **flags}), given, device) == free


def test_a_round_is_measured_in_datasets() -> None:
    assert datasets_a_round(small_layout()) == 1.5  # 2 splits of 3 envs are 6 rows, a dataset takes 4
    assert MOST_DATASETS_A_ROUND > 1  # a round that is one dataset is what synchronous training has


def test_settings_with_which_the_policy_would_lag_too_far_behind_are_refused() -> None:
    layout = small_layout()

    require_short_lag(layout, most_datasets=1.5)
    with pytest.raises(ConfigError, match=r"6 envs x 4 steps would be 1\.5 datasets, more than 1.4"):
        require_short_lag(layout, most_datasets=1.4)


@pytest.mark.parametrize(
    ("best", "gain", "said"),
    [
        (START, 1.0, "the starting settings, which nothing beat"),
        (replace(START, num_workers=4), 1.254, "1.25 times the starting settings, measured one after the other"),
        (replace(START, num_workers=4), None, "the starting settings do not work"),
    ],
)
def test_the_verdict_says_what_was_gained(best: Settings, gain: float | None, said: str) -> None:
    trials = [Tried(START, None if gain is None else 100.0), Tried(replace(START, num_workers=4), 125.4)]

    assert verdict(Found(best, 125.4, gain, trials)) == said
