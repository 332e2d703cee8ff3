"""Busy and waiting shares and ring depths are computed from counters of the processes; the bottleneck is named."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.report import bottleneck as load_module
from sfactory.report.bottleneck import LoadMeter, depth_statistics
from sfactory.shared import status as status_module
from sfactory.shared.status import MAX_DEPTH, StatusBoard, Stopwatch

CENTRAL = ["sf-learner-0", "sf-policy-0-0", "sf-actor-0", "sf-actor-1"]
LOCAL = ["sf-learner-0", "sf-actor-0", "sf-actor-1"]


class Processes:
    """The stopwatches of all processes, a meter, and a clock."""

    def __init__(self, names: list[str], cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 100.0
        for module in (load_module, status_module):
            monkeypatch.setattr(module, "now", lambda: self.time)
        self.board = StatusBoard(names)
        self.watches = {name: Stopwatch(self.board.row(name)) for name in names}
        self.meter = LoadMeter(self.board, cores)

    def work(self, seconds: float, **busy: float) -> None:
        """Let ``seconds`` pass: each process is busy for the share of its kind, and then waits."""
        start = self.time
        for name, watch in self.watches.items():
            share = next(share for kind, share in busy.items() if name.startswith(f"sf-{kind}"))
            self.time = start
            watch.after_wait()
            self.time = start + share * seconds
            watch.before_wait()
        self.time = start + seconds


def test_depth_statistics_equal_those_of_numpy() -> None:
    rng = np.random.default_rng(3)
    depths = rng.geometric(0.1, 999)

    found = depth_statistics(np.bincount(depths))

    percentiles = np.percentile(depths, [10, 50, 90], method="inverted_cdf")
    expected = [999, depths.mean(), depths.std(), depths.min(), *percentiles, depths.max()]
    assert list(found) == ["count", "mean", "std", "min", "p10", "p50", "p90", "max"]
    assert list(found.values()) == pytest.approx(expected)
    assert {*depth_statistics(np.zeros(8, np.int64)).values()} == {None}


def test_shares_are_means_over_the_processes_of_a_kind_in_the_last_window(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(CENTRAL, 8, monkeypatch)
    processes.work(10.0, actor=0.1, policy=0.1, learner=0.1)
    processes.meter.take()

    processes.work(4.0, **{"actor-0": 0.5, "actor-1": 0.75, "policy": 0.25, "learner": 0.75})
    load = processes.meter.take()

    assert load.busy == pytest.approx({"actor": 0.625, "policy": 0.25, "learner": 0.75})
    assert load.waiting == pytest.approx({"actor": 0.375, "policy": 0.75, "learner": 0.25})
    assert load.idle_cores == pytest.approx(8 - 2 * 0.625 - 0.25 - 0.75)


def test_unfinished_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(LOCAL, 8, monkeypatch)
    learner, actor = processes.watches["sf-learner-0"], processes.watches["sf-actor-0"]
    actor.before_wait()
    processes.time += 1.0
    learner.lap()

    for _ in range(3):  # the learner trains and one actor waits during three complete windows
        processes.time += 2.0
        load = processes.meter.take()
        assert load.busy == {"learner": 1.0, "actor": 0.5}
        assert load.waiting == {"learner": 0.0, "actor": 0.5}
        assert load.bound_by == "learner"

    processes.time += 3.0
    learner.before_wait()
    processes.time += 1.0
    assert processes.meter.take().busy["learner"] == pytest.approx(0.75)


def test_a_process_that_stops_working_during_the_reading_loses_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten seconds of work end after the reader has seen that the process is busy, and before it reads for how long.
    processes = Processes(LOCAL, 8, monkeypatch)
    row, watch = processes.board.row("sf-learner-0"), processes.watches["sf-learner-0"]
    processes.time += 10.0
    get = row.get

    def finish_work(name: str) -> float:
        if name == "busy_s":
            watch.before_wait()
        return get(name)

    monkeypatch.setattr(row, "get", finish_work)

    assert row.times(processes.time) == (10.0, 0.0)


def test_depths_of_rings_and_datasets_cover_the_last_window_only(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(CENTRAL, 8, monkeypatch)
    learner, policy, *actors = (processes.board.row(name) for name in CENTRAL)
    policy.count_depth(7)
    learner.count_ready(5)
    processes.meter.take()

    for messages in (1, 3, 3, 0, 1000):
        policy.count_depth(messages)
    for messages, actor in enumerate(actors, 1):
        actor.count_depth(messages)
    for datasets in (0, 2, 0, 2):  # here 0 counts
        learner.count_ready(datasets)
    scalars = processes.meter.take().scalars()

    assert [scalars[f"ring/requests_{name}"] for name in ("count", "p50", "min", "max")] == [4, 3, 1, MAX_DEPTH]
    assert (scalars["ring/replies_count"], scalars["ring/replies_mean"]) == (2, 1.5)
    assert [scalars[f"ring/datasets_{name}"] for name in ("count", "mean", "min", "max")] == [4, 1.0, 0, 2]
    assert scalars["ring/trajectories_count"] is None
    # The next window is empty and has the same columns.
    empty = processes.meter.take().scalars()
    assert empty["ring/requests_count"] is None
    assert empty.keys() == scalars.keys()


@pytest.mark.parametrize(
    ("cores", "actor", "policy", "learner", "bound_by"),
    [
        (8, 0.98, 0.5, 0.3, "actor"),
        (8, 0.3, 0.95, 0.3, "policy"),
        (8, 0.3, 0.5, 0.99, "learner"),
        (8, 0.5, 0.5, 0.5, "nobody"),
        (2, 0.6, 0.5, 0.5, "cores"),
        (2, 0.99, 0.3, 0.3, "actor"),
        (8, 0.0, 0.0, 0.0, None),
    ],
)
def test_bottleneck_is_named(
    monkeypatch: pytest.MonkeyPatch, cores: int, actor: float, policy: float, learner: float, bound_by: str | None
) -> None:
    processes = Processes(CENTRAL, cores, monkeypatch)
    processes.work(2.0, actor=actor, policy=policy, learner=learner)

    assert processes.meter.take().bound_by == bound_by
