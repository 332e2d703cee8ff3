"""The loops of a learner: loaders copy every row once, slots are freed after the end, another batch size rebuilds."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.learner.learner_process import LearnerWorker, run_learner
from sfactory.learner.minibatches import Dataset
from sfactory.learner.staging import Columns, DeviceSlot, Staging
from sfactory.messages import LearnerTimes, TrajectoryReady
from sfactory.shared.control import LearnerCommand, Stop
from sfactory.shared.slots import SlotState
from sfactory.shared.trajectories import ALL_ROWS, RowsOf, Slot
from tests.support.lone_learner import LoneLearner, run_to_the_end
from tests.support.parts import VECTOR
from tests.support.processes import eventually

STEPS = 20  # of a dataset: 4 rows of 5
LIMIT = 60 * STEPS


class LoadingWorker(LearnerWorker):
    """A worker whose device has memory of its own, although it is a CPU."""

    def _device_slots(self) -> list[DeviceSlot]:
        layout, count = self._setup.layout, self._setup.learner.num_gpu_slots
        return [DeviceSlot(VECTOR, layout, torch.device("cpu"), replay=False) for _ in range(count)]


class Feed:
    """A learner, and a thread that fills slots as actors do: each row carries a reward of its own, in all its steps."""

    def __init__(self, **flags: Any) -> None:
        self.learner = LoneLearner(
            num_workers=2, num_envs_per_worker=2, train_for_env_steps=LIMIT, max_policy_lag=10**6, **flags
        )
        self.sent = 0
        self.opened: list[list[int]] = []
        self._open = self.learner.learning.open
        self.learner.learning.open = self._recorded  # type: ignore[method-assign]
        self._ended = threading.Event()

    def _recorded(self, columns: Columns) -> Dataset:
        assert isinstance(columns, DeviceSlot)
        assert bool((columns.scalars["reward"] == columns.scalars["reward"][0]).all())
        self.opened.append(columns.scalars["reward"][0].int().tolist())
        return self._open(columns)

    def _fill(self) -> None:
        shared, layout = self.learner.shared, self.learner.layout
        while not self._ended.wait(0.0005):
            for index in range(layout.num_slots):
                if shared.table.state(index) is not SlotState.FREE:
                    continue
                shared.table.begin(index)
                slot = shared.trajectories.slot(index)
                slot.reward[...] = self.sent + np.arange(layout.rows)
                slot.valid.fill(True)
                self.sent += layout.rows
                shared.table.publish(index, 0)
                shared.to_learners[0].put(TrajectoryReady(shared.table.owner(index), index))
            for channel in shared.to_actors:
                channel.get(0)

    def run(self) -> None:
        """Until the learner has had enough."""
        actors = threading.Thread(target=self._fill, daemon=True)
        self.learner.learning.progress.start_clock(1e-9)
        actors.start()
        try:
            run_to_the_end(LoadingWorker(self.learner.setup, self.learner.learning, self.learner.row))
        finally:
            self._ended.set()
            actors.join(60.0)


@pytest.mark.parametrize(
    ("ring", "slots", "made", "advised"), [(1, 1, 1, None), (2, 3, 3, None), (2, 2, 2, 3), (3, 2, 3, 4)]
)
def test_ring_without_a_slot_to_load_into_is_warned_of(
    ring: int, slots: int, made: int, advised: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    flags: dict[str, Any] = {
        "minibatch_ring_size": ring,
        "num_gpu_slots": slots,
        "num_batches_to_accumulate": 5,
        "num_epochs": 2,
    }
    learner = LoneLearner(**flags)
    worker = LearnerWorker(dataclasses.replace(learner.setup, device="meta"), learner.learning, learner.row)

    with caplog.at_level(logging.WARNING):
        found = worker._device_slots()

    assert len(found) == made
    assert (f"--num_gpu_slots={advised}" in caplog.text) == (advised is not None)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"num_loader_threads": 3, "num_gpu_slots": 3},
        {"num_gpu_slots": 1},
        {"num_batchers": 2, "num_loader_threads": 2, "num_batches_to_accumulate": 4},
    ],
    ids=str,
)
def test_every_row_comes_to_the_device_at_most_once_and_none_is_skipped(flags: dict[str, Any]) -> None:
    feed = Feed(**flags)

    feed.run()

    rows = [row for dataset in feed.opened for row in dataset]
    assert feed.learner.learning.progress.env_steps == LIMIT
    assert len(rows) == LIMIT // 5
    assert len(set(rows)) == len(rows)
    # What is on its way at the end: in the areas, the device's slots, and a slot cut in two.
    layout = feed.learner.layout
    in_flight = 4 * (layout.datasets + feed.learner.config.learner.num_gpu_slots) + layout.rows
    assert max(rows) < len(rows) + in_flight


def test_load_times_are_reported() -> None:
    feed = Feed()

    feed.run()
    feed.learner.learning.report()

    # Each report begins new means: which of them has the loads depends on when the last one was made.
    assert any(times.load_ms > 0 for times in feed.learner.messages(LearnerTimes))


def test_a_loader_that_fails_ends_the_learner_with_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(slot: DeviceSlot, staging: Columns) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(DeviceSlot, "load", fail)

    with pytest.raises(RuntimeError, match="the device is lost"):
        Feed().run()


@pytest.mark.parametrize("num_batchers", [1, 2])
def test_slots_are_freed_without_a_batcher(num_batchers: int) -> None:
    lone = LoneLearner(num_batchers=num_batchers, num_batches_to_accumulate=4, num_workers=2)
    worker = LearnerWorker(lone.setup, lone.learning, lone.row)
    table = lone.shared.table
    table.begin(1)
    table.publish(1, 0)
    lone.shared.to_learners[0].put(TrajectoryReady(table.owner(1), 1))

    worker.discard(1.0)

    assert table.waiting_for(1) == []


def test_dataset_of_another_batch_size_is_dropped_and_counted() -> None:
    lone = LoneLearner(train_in_background_thread=False, num_workers=2, num_envs_per_worker=2)
    worker = LearnerWorker(lone.setup, lone.learning, lone.row)

    def fill(index: int) -> None:
        """A slot of 2 rows of 5 steps."""
        lone.shared.table.begin(index)
        lone.shared.trajectories.slot(index).valid.fill(True)
        lone.shared.table.publish(index, 0)
        lone.shared.to_learners[0].put(TrajectoryReady(lone.shared.table.owner(index), index))

    fill(0)
    assert not worker.assemble(1.0)
    lone.learning.commands.execute(LearnerCommand(hyperparameters={"batch_size": 40}))
    for index in (1, 0, 2, 3):
        fill(index)
        assert worker.assemble(1.0) == (index == 3)
        assert lone.row.get("dropped_steps") == 10
    worker.learn()
    assert (lone.row.get("dropped_steps"), lone.learning.progress.env_steps) == (10, 40)


def test_longest_update_is_reported() -> None:
    lone = LoneLearner()

    lone.learn()

    assert 0 < lone.row.get("update_s") < 60


class SlowStaging(Staging):
    """Copying one slot takes 5 seconds of a clock that stands still otherwise."""

    time = 100.0

    def take(self, slot: Slot, start: int, most: int | None = None, columns: RowsOf = ALL_ROWS) -> int:
        SlowStaging.time += 5.0
        return super().take(slot, start, most, columns)


def test_copying_slots_is_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfactory.shared.status.now", lambda: SlowStaging.time)
    lone = LoneLearner(train_in_background_thread=False, num_workers=2, num_envs_per_worker=2)
    worker = LearnerWorker(lone.setup, lone.learning, lone.row)
    worker._own_area = SlowStaging(VECTOR, lone.layout, pin=False)
    for slot in range(2):
        lone.shared.table.begin(slot)
        lone.shared.table.publish(slot, 0)
        lone.shared.to_learners[0].put(TrajectoryReady(lone.shared.table.owner(slot), slot))

    assert worker.assemble(0)

    assert lone.row.times(SlowStaging.time) == (10.0, 0.0)


def test_batch_size_changes_while_the_loops_run() -> None:
    lone = LoneLearner(num_policies=2, num_workers=2, num_envs_per_worker=2, num_epochs=2, early_stop_loss_change=0.0)
    commands, table, row = lone.shared.orders, lone.shared.table, lone.row
    assert commands is not None
    loops = threading.Thread(target=run_learner, args=(lone.setup, row), daemon=True)
    loops.start()

    def fed(done: Callable[[], bool]) -> bool:
        """Fill free slots of the policy, each with 10 steps; whether ``done()``."""
        for index in table.slots_of(0):
            if table.state(index) is SlotState.FREE:
                table.begin(index)
                lone.shared.trajectories.slot(index).valid.fill(True)
                table.publish(index, 0)
                lone.shared.to_learners[0].put(TrajectoryReady(0, index))
        return done()

    try:
        assert eventually(lambda: fed(lambda: row.get("updates") >= 4), 60.0)
        commands.give(0, LearnerCommand(hyperparameters={"batch_size": 40, "num_epochs": 1}))
        assert eventually(lambda: fed(lambda: commands.answer(0) == ""), 60.0)
        updates, steps = row.get("updates"), row.get("env_steps")
        assert eventually(lambda: fed(lambda: row.get("updates") >= updates + 3), 60.0)
    finally:
        lone.shared.control.order_stop(Stop.SAVE)
        loops.join(60.0)
    assert not loops.is_alive()
    assert row.get("env_steps") - steps == 40 * (row.get("updates") - updates)
