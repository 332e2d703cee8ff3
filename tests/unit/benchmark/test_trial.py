"""A measurement begins after a warm-up, counts whole datasets, and ends."""

from __future__ import annotations

import pytest

import sfactory.benchmark.trial as trial_module
from sfactory.benchmark.trial import Measured, Measurement, Timing
from sfactory.shared.status import State, StatusBoard

ACTORS, LEARNER = ("sf-actor-0", "sf-actor-1"), "sf-learner-0"
TIMING = Timing(warm_up=1.0, measured=3.0, patience=10.0, boot=60.0)
BEAT_S = 0.25


class Machine:
    """A run on a simulated clock. dataset_s: seconds per dataset of 1000 steps. Actors take 100 steps a beat."""

    def __init__(self, dataset_s: float, ready_at: float = 0.0, learners: int = 1) -> None:
        self._learners = [f"sf-learner-{policy}" for policy in range(learners)]
        self.status = StatusBoard([*self._learners, *ACTORS])
        self.at = 100.0
        self._dataset_s, self._ready_at, self._start = dataset_s, self.at + ready_at, self.at
        self.warm_ups: list[float] = []

    def now(self) -> float:
        return self.at

    def warm(self) -> None:
        self.warm_ups.append(self.at - self._start)

    def beat(self) -> None:
        self.at += BEAT_S
        for actor in ACTORS:
            row = self.status.row(actor)
            row.set("state", State.RUNNING if self.at >= self._ready_at else State.RESETTING)
            row.add("env_steps", 50)
        datasets = (self.at - self._start) // self._dataset_s
        for name in self._learners:
            learner = self.status.row(name)
            learner.set("env_steps", int(1000 * datasets))
            learner.set("run_env_steps", int(1000 * datasets) if name == LEARNER else 0)
            # As learners write them: another pass over a dataset takes time, and adds no steps.
            learner.set("train_seconds", self.at - self._start)
            learner.set("counted_at", datasets * self._dataset_s if name == LEARNER else 0.0)


def measure(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, of_learners: bool = True, timing: Timing = TIMING
) -> Measured | None:
    monkeypatch.setattr(trial_module, "now", machine.now)
    measurement = Measurement(machine.status, 2, of_learners, timing, machine.warm)
    for _ in range(1000):
        machine.beat()
        if measurement.look():
            return measurement.measured
    raise AssertionError("a measurement without end")


@pytest.mark.parametrize(
    ("dataset_s", "learners", "of_learners", "rate"),
    [
        *((seconds, 1, True, 1000.0 / seconds) for seconds in (0.01, 0.7, 2.0, 5.0)),
        (0.5, 2, True, 1000.0 / 0.5),  # both learn from every step, which the first of them counts for the run
        (1000.0, 1, False, 100 / BEAT_S),  # the steps of actors
    ],
)
def test_the_rate_is_that_of_whole_datasets_or_of_actors(
    dataset_s: float, learners: int, of_learners: bool, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = measure(Machine(dataset_s, learners=learners), monkeypatch, of_learners)

    assert measured is not None
    assert measured.rate == pytest.approx(rate)
    longest = max(dataset_s if of_learners else 0.0, BEAT_S)
    assert TIMING.measured <= measured.seconds <= TIMING.measured + longest


@pytest.mark.parametrize(
    ("dataset_s", "ready_at", "warm_up"), [(0.5, 7.0, 7.0), (9.0, 0.0, 9.0)], ids=["late actor", "late learner"]
)
def test_the_warm_up_begins_with_the_first_dataset_once_all_actors_work(
    dataset_s: float, ready_at: float, warm_up: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(dataset_s, ready_at)

    assert measure(machine, monkeypatch) is not None
    assert machine.warm_ups == [warm_up]


@pytest.mark.parametrize(
    ("dataset_s", "ready_at", "timing", "ended_at"),
    [
        (1000.0, 0.0, TIMING, 60.25),
        (30.0, 0.0, TIMING, 30.0 + 1.0 + 13.0 + BEAT_S),
        (1000.0, 70.0, Timing(1.0, 3.0, patience=10.0, first_steps=20.0), 70.0 + 20.0 + BEAT_S),
    ],
)
def test_a_measurement_without_enough_steps_is_given_up(
    dataset_s: float, ready_at: float, timing: Timing, ended_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(dataset_s, ready_at)

    assert measure(machine, monkeypatch, timing=timing) is None
    assert machine.at - 100.0 == ended_at


@pytest.mark.parametrize(("moves_at", "seconds"), [(12.0, 10.75), (1000.0, 13.25)])
def test_an_actor_that_is_stuck_is_waited_for_until_patience_ends(
    moves_at: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(1000.0)
    row, beat = machine.status.row(ACTORS[1]), machine.beat

    def beat_and_hang() -> None:
        beat()
        row.set("busy_since", 100.5 if machine.at - 100.0 < moves_at else machine.at)

    monkeypatch.setattr(machine, "beat", beat_and_hang)

    measured = measure(machine, monkeypatch, of_learners=False)

    # It begins at 1.25 s, after 1 s of warm-up.
    assert measured is not None
    assert measured.seconds == pytest.approx(seconds)
