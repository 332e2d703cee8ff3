"""Where the time goes is told from what processes count, and who sets the pace is named."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.run import load as load_module
from sfactory.run.load import Depth, LoadMeter
from sfactory.shared.status import MAX_DEPTH, StatusBoard

CENTRAL = ["sf-learner-0", "sf-policy-0-0", "sf-actor-0", "sf-actor-1"]
LOCAL = ["sf-learner-0", "sf-actor-0", "sf-actor-1"]


class Desk:
    """A board, a meter, and the clock they go by."""

    def __init__(self, names: list[str], cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 100.0
        monkeypatch.setattr(load_module, "now", lambda: self.time)
        self.board = StatusBoard(names)
        self.meter = LoadMeter(self.board, cores)

    def work(self, seconds: float, **busy: float) -> None:
        """Let ``seconds`` pass, of which each process is busy for the share of its kind."""
        self.time += seconds
        for name in self.board.names:
            share = next(share for kind, share in busy.items() if name.startswith(f"sf-{kind}-"))
            self.board.row(name).add("busy_s", share * seconds)
            self.board.row(name).add("waiting_s", (1 - share) * seconds)


def test_depths_are_summed_up_as_numpy_sums_them_up() -> None:
    rng = np.random.default_rng(3)
    depths = rng.geometric(0.1, 999)

    depth = Depth.of(np.bincount(depths))

    assert depth is not None
    assert (depth.count, depth.min, depth.max) == (999, depths.min(), depths.max())
    assert depth.mean == pytest.approx(depths.mean())
    assert depth.std == pytest.approx(depths.std())
    due = np.percentile(depths, [10, 50, 90], method="inverted_cdf")
    assert (depth.p10, depth.p50, depth.p90) == tuple(due)


def test_of_no_messages_there_are_no_statistics() -> None:
    assert Depth.of(np.zeros(8, np.int64)) is None


def test_shares_are_those_of_the_window_and_means_over_the_processes_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(CENTRAL, 8, monkeypatch)
    desk.work(10.0, actor=0.1, policy=0.1, learner=0.1)
    desk.meter.take()

    desk.work(4.0, actor=0.5, policy=0.25, learner=0.75)
    desk.board.row("sf-actor-1").add("busy_s", 1.0)
    load = desk.meter.take()

    assert load.busy == pytest.approx({"actor": 0.625, "policy": 0.25, "learner": 0.75})
    assert load.waiting == pytest.approx({"actor": 0.5, "policy": 0.75, "learner": 0.25})


def test_rings_are_told_by_what_comes_through_them_in_the_window_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(CENTRAL, 8, monkeypatch)
    policy, actors = desk.board.row("sf-policy-0-0"), [desk.board.row(f"sf-actor-{actor}") for actor in range(2)]
    policy.count_depth(7)
    desk.meter.take()

    for messages in (1, 3, 3, 0, 1000):
        policy.count_depth(messages)
    actors[0].count_depth(1)
    actors[1].count_depth(2)
    scalars = desk.meter.take().scalars()

    assert (scalars["ring/requests_count"], scalars["ring/requests_p50"]) == (4, 3)
    assert (scalars["ring/requests_min"], scalars["ring/requests_max"]) == (1, MAX_DEPTH)
    assert (scalars["ring/replies_count"], scalars["ring/replies_mean"]) == (2, 1.5)
    assert scalars["ring/trajectories_count"] is None
    # The next window starts from nothing, and has the same columns.
    empty = desk.meter.take().scalars()
    assert empty["ring/requests_count"] is None
    assert empty.keys() == scalars.keys()


def test_with_local_inference_there_are_no_requests_and_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    scalars = Desk(LOCAL, 8, monkeypatch).meter.take().scalars()

    assert {name.partition("_")[0] for name in scalars} == {"load/actor", "load/learner", "ring/trajectories"}


@pytest.mark.parametrize(
    ("cores", "shares", "bound_by", "flag"),
    [
        (8, {"actor": 0.98, "policy": 0.5, "learner": 0.3}, "actor", "--num_workers"),
        (8, {"actor": 0.3, "policy": 0.95, "learner": 0.3}, "policy", "--inference=local"),
        (8, {"actor": 0.3, "policy": 0.5, "learner": 0.99}, "learner", "--batch_size"),
        (8, {"actor": 0.5, "policy": 0.5, "learner": 0.5}, "nobody", "--num_envs_per_worker"),
        (2, {"actor": 0.6, "policy": 0.5, "learner": 0.5}, "cores", "cores"),
        (2, {"actor": 0.99, "policy": 0.3, "learner": 0.3}, "actor", "--num_workers"),
    ],
)
def test_who_sets_the_pace_is_named_with_a_flag_that_helps(
    monkeypatch: pytest.MonkeyPatch, cores: int, shares: dict[str, float], bound_by: str, flag: str
) -> None:
    desk = Desk(CENTRAL, cores, monkeypatch)
    desk.work(2.0, **shares)

    load = desk.meter.take()

    assert load.bound_by == bound_by
    assert load.advice is not None
    assert flag in load.advice


def test_before_anything_was_done_nobody_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Desk(CENTRAL, 8, monkeypatch).meter.take()

    assert (load.bound_by, load.advice) == (None, None)
