"""The loops of a learner: loaders copy every row once, slots are freed after the end, another batch size rebuilds."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfactory.clock import now
from sfactory.errors import Starved
from sfactory.learner.diagnostics import Starvation
from sfactory.learner.learner_process import LearnerWorker, run_learner
from sfactory.learner.minibatches import Dataset
from sfactory.learner.staging import Columns, DeviceSlot, Staging
from sfactory.messages import LearnerTimes
from sfactory.process import threads as threads_module
from sfactory.process.threads import Threads
from sfactory.shared.control import LearnerCommand, Stop
from sfactory.shared.slots import SlotState
from sfactory.shared.status import State
from tests.support.lone_learner import LoneLearner, run_to_the_end, send
from tests.support.parts import CPU, VECTOR
from tests.support.processes import eventually

STEPS = 20  # of a dataset: 4 rows of 5
LIMIT = 60 * STEPS
SLOTS_OF_2_ROWS: dict[str, Any] = {"num_workers": 2, "num_envs_per_worker": 2}


def worker_of(lone: LoneLearner) -> LearnerWorker:
    return LearnerWorker(lone.setup, lone.learning, lone.row)


class LoadingWorker(LearnerWorker):
    """A worker with a device that has memory of its own, although it is a CPU."""

    def _device_slots(self, count: int) -> list[DeviceSlot]:
        return [DeviceSlot(VECTOR, self.setup.layout, CPU, replay=False) for _ in range(count)]


class Feed:
    """A learner, and a thread that fills slots as actors do: each row carries a reward of its own, in all its steps."""

    def __init__(self, **flags: Any) -> None:
        self.lone = LoneLearner(**SLOTS_OF_2_ROWS, train_for_env_steps=LIMIT, max_policy_lag=10**6, **flags)
        self.opened: list[int] = []
        self._open = self.lone.learning.open
        self.lone.learning.open = self._recorded  # type: ignore[method-assign]
        self._ended = threading.Event()

    def _recorded(self, columns: Columns) -> Dataset:
        assert isinstance(columns, DeviceSlot)
        rewards = columns.scalars["reward"]
        assert bool((rewards == rewards[0]).all())
        self.opened += rewards[0].int().tolist()
        return self._open(columns)

    def _fill(self) -> None:
        sent, rows, table = 0, self.lone.layout.rows, self.lone.shared.table
        while not self._ended.wait(0.0005):
            for index in range(self.lone.layout.num_slots):
                if table.state(index) is SlotState.FREE:
                    send(self.lone, index, sent)
                    sent += rows
            for channel in self.lone.shared.to_actors:
                channel.get(0)

    def run(self) -> None:
        """Until the learner has had enough."""
        actors = threading.Thread(target=self._fill, daemon=True)
        self.lone.learning.progress.start_clock(1e-9)
        actors.start()
        try:
            run_to_the_end(LoadingWorker(self.lone.setup, self.lone.learning, self.lone.row))
        finally:
            self._ended.set()
            actors.join(60.0)


@pytest.mark.parametrize(
    ("ring", "slots", "made", "advised"), [(1, 1, 1, None), (2, 3, 3, None), (2, 2, 2, 3), (3, 2, 3, 4)]
)
def test_ring_without_a_slot_to_load_into_is_warned_of(
    ring: int, slots: int, made: int, advised: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    lone = LoneLearner(minibatch_ring_size=ring, num_gpu_slots=slots, num_batches_to_accumulate=5, num_epochs=2)
    worker = LearnerWorker(dataclasses.replace(lone.setup, device="meta"), lone.learning, lone.row)

    with caplog.at_level(logging.WARNING):
        found = worker._device_slots(worker._slots_of_a_run())

    assert len(found) == made
    assert (f"--num_gpu_slots={advised}" in caplog.text) == (advised is not None)


@pytest.mark.parametrize(
    "flags",
    [
        {"num_loader_threads": 3, "num_gpu_slots": 3},
        {"num_gpu_slots": 1},
        {"num_batchers": 2, "num_loader_threads": 2, "num_batches_to_accumulate": 4},
    ],
    ids=str,
)
def test_every_row_comes_to_the_device_at_most_once_and_none_is_skipped(flags: dict[str, Any]) -> None:
    feed = Feed(**flags)

    feed.run()
    feed.lone.learning.report()

    assert feed.lone.learning.progress.env_steps == LIMIT
    assert len(feed.opened) == len(set(feed.opened)) == LIMIT // 5
    # On the way at the end are rows in the areas, the device's slots, and a slot cut in two.
    layout = feed.lone.layout
    in_flight = 4 * (layout.datasets + feed.lone.config.learner.num_gpu_slots) + layout.rows
    assert max(feed.opened) < len(feed.opened) + in_flight
    # Each report begins new means: which of them has the loads depends on when the last one was made.
    assert any(times.load_ms > 0 for times in feed.lone.messages(LearnerTimes))


def test_a_benchmark_of_learning_loads_its_dataset_once_to_where_a_run_learns_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lone = LoneLearner(benchmark=True, benchmark_stage="learn")
    send(lone, 0)
    learned: list[Columns] = []

    def learn(columns: Columns) -> None:
        learned.append(columns)
        assert columns.scalars["reward"][0].tolist() == [0.0, 1.0, 2.0, 3.0]
        assert (columns.scalars["policy_version"] == lone.learning.trainer.train_step).all()
        lone.learning.trainer.train_step += 1
        if len(learned) == 3:
            lone.shared.control.order_stop(Stop.NOW)

    monkeypatch.setattr(lone.learning, "learn", learn)
    run_to_the_end(LoadingWorker(lone.setup, lone.learning, lone.row))

    assert isinstance(learned[0], DeviceSlot)
    assert learned == [learned[0]] * 3


def test_a_loader_that_fails_ends_the_learner_with_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(slot: DeviceSlot, staging: Columns) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(DeviceSlot, "load", fail)

    with pytest.raises(RuntimeError, match="the device is lost"):
        Feed().run()


@pytest.mark.parametrize("num_batchers", [1, 2])
def test_slots_are_freed_without_a_batcher(num_batchers: int) -> None:
    lone = LoneLearner(num_batchers=num_batchers, num_batches_to_accumulate=4, num_workers=2)
    worker = worker_of(lone)
    send(lone, 1)

    worker.discard(1.0)

    assert lone.shared.table.waiting_for(1) == []


def test_dataset_of_another_batch_size_is_dropped_and_counted() -> None:
    lone = LoneLearner(train_in_background_thread=False, **SLOTS_OF_2_ROWS)
    worker = worker_of(lone)
    send(lone, 0)
    assert not worker.assemble(1.0)

    lone.learning.commands.execute(LearnerCommand(hyperparameters={"batch_size": 40}))

    for index in (1, 0, 2, 3):
        send(lone, index)
        assert worker.assemble(1.0) == (index == 3)
        assert lone.row.get("dropped_steps") == 10
    worker.learn()
    assert (lone.row.get("dropped_steps"), lone.learning.progress.env_steps) == (10, 40)


def test_copying_slots_is_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    time, copy_slot = 100.0, Staging.take

    def slow(staging: Staging, *arguments: Any, **options: Any) -> int:
        nonlocal time
        time += 5.0
        return copy_slot(staging, *arguments, **options)

    monkeypatch.setattr("sfactory.shared.status.now", lambda: time)
    monkeypatch.setattr(Staging, "take", slow)
    lone = LoneLearner(train_in_background_thread=False, **SLOTS_OF_2_ROWS)
    worker = worker_of(lone)
    for slot in range(2):
        send(lone, slot)

    assert worker.assemble(0)

    assert lone.row.times(time) == (10.0, 0.0)


def test_batch_size_changes_while_the_loops_run() -> None:
    lone = LoneLearner(num_policies=2, **SLOTS_OF_2_ROWS, num_epochs=2, early_stop_loss_change=0.0)
    commands, table, row = lone.shared.learner_commands, lone.shared.table, lone.row
    assert commands is not None
    loops = threading.Thread(target=run_learner, args=(lone.setup, row), daemon=True)
    loops.start()

    def feed() -> None:
        """Fill free slots of the policy, each with 10 steps."""
        for index in table.slots_of(0):
            if table.state(index) is SlotState.FREE:
                send(lone, index)

    try:
        assert eventually(lambda: feed() or row.get("updates") >= 4, 60.0)  # type: ignore[func-returns-value]
        commands.give(0, LearnerCommand(hyperparameters={"batch_size": 40, "num_epochs": 1}))
        assert eventually(lambda: feed() or commands.answer(0) == "", 60.0)  # type: ignore[func-returns-value]
        updates = row.get("updates")
        assert eventually(lambda: feed() or row.get("updates") >= updates + 3, 60.0)  # type: ignore[func-returns-value]
    finally:
        lone.shared.control.order_stop(Stop.SAVE)
        loops.join(60.0)
    assert not loops.is_alive()
    before = row.get("updates") - row.get("datasets")  # these were passed over twice, the later ones once
    assert row.get("env_steps") == 20 * before + 40 * (row.get("datasets") - before)


def test_what_was_learned_is_saved_before_a_learner_ends_because_no_actor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = LoneLearner(tmp_path, **SLOTS_OF_2_ROWS, num_epochs=1, learner_starvation_timeout_sec=0.4)
    look = Starvation.look
    # On a busy machine the first dataset may take longer than that.
    monkeypatch.setattr(Starvation, "look", lambda starvation: lone.row.get("updates") and look(starvation))
    for index in range(2):
        lone.shared.status.row(f"sf-actor-{index}").set("state", State.RUNNING)
        send(lone, index)

    with pytest.raises(Starved, match="no actor has taken a step meanwhile"):
        run_learner(lone.setup, lone.row)

    saved = lone.saved()
    assert saved is not None
    assert (saved["train_step"], saved["env_steps"]) == (1, STEPS)


BOUND_S = 30.0


@pytest.fixture
def ring() -> Iterator[threading.Event]:
    """Stuck threads wait for it; set after the test."""
    event = threading.Event()
    yield event
    event.set()


def fail() -> None:
    raise ValueError("an illegal transition")


def test_what_a_loop_raises_is_raised_where_it_is_waited_for_with_its_traceback() -> None:
    threads = Threads()
    threads.start("loop", fail)

    with pytest.raises(ValueError, match="an illegal transition") as caught:
        threads.wait(lambda: False)

    assert "fail" in [entry.name for entry in caught.traceback]


def test_a_failure_is_raised_although_another_loop_is_stuck(ring: threading.Event) -> None:
    def fail_later() -> None:
        ring.wait(BOUND_S)
        raise KeyError("as a consequence")

    threads, begun = Threads(), now()
    threads.start("second", fail_later)
    threads.start("first", fail)

    with pytest.raises(ValueError, match="an illegal transition"):
        threads.wait(lambda: False)

    assert threads.failed
    assert now() - begun < BOUND_S
    ring.set()
    with pytest.raises(ValueError, match="illegal"):  # of two failures the first
        threads.leave()


@pytest.mark.parametrize("fails", [False, True])
def test_a_stuck_loop_is_left_behind_once_the_run_is_over_and_a_late_failure_is_raised(
    fails: bool, ring: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_late() -> None:
        ring.wait(BOUND_S)
        raise ValueError("late")

    monkeypatch.setattr(threads_module, "_LEAVE_S", 0.1)
    monkeypatch.setattr(threads_module, "BLOCK_S", BOUND_S if fails else 0.1)  # for the late failure to come
    threads, begun = Threads(), now()
    threads.start("stuck", fail_late)

    threads.wait(lambda: True)
    if fails:
        ring.set()
        with pytest.raises(ValueError, match="late"):
            threads.leave()
    else:
        threads.leave()
        assert "left a thread behind that waits for a ring" in caplog.text
    assert now() - begun < BOUND_S
