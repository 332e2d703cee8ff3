"""Datasets are in one place at a time; training passes over them in turn, and ends at its limits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from sfactory.learner.dataset_queue import DatasetQueue
from sfactory.learner.diagnostics import Starvation
from sfactory.learner.minibatches import Dataset
from sfactory.learner.staging import Columns, DeviceSlot, Staging
from sfactory.learner.training_loop import MinibatchRing, TrainingLoop
from sfactory.shared.control import Stop
from sfactory.shared.status import Stopwatch
from tests.support.lone_learner import LoneLearner
from tests.support.parts import CPU, VECTOR, small_layout

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize(
    ("size", "passes", "warmup", "expected"),
    [
        (1, 3, 0, "A A A* B B B* C"),
        (2, 2, 0, "A B A* B* C D C* D*"),
        (3, 2, 0, "A B C A* B* C* D"),
        (1, 3, 1, "A* B B* C C C* D D D*"),
        (2, 3, 1, "A* B C B* C D C* D"),
        (2, 1, 0, "A* B* C*"),
        (2, 2, 2, "A B A* B* C D C* D*"),
    ],
)
def test_golden_traces(size: int, passes: int, warmup: int, expected: str) -> None:
    ring: MinibatchRing[str] = MinibatchRing(size, passes, warmup)
    source, words = iter(LETTERS), []
    for _ in expected.split():
        item = ring.turn(lambda: next(source))
        assert item is not None
        words.append(item + ("*" if ring.passed() else ""))  # * marks the last pass over it

    assert " ".join(words) == expected


def test_empty_place_keeps_the_turn_unless_it_is_skipped() -> None:
    ring: MinibatchRing[str] = MinibatchRing(2, 2, 0)
    assert ring.turn(lambda: "A") == "A"
    ring.passed()

    assert ring.turn(lambda: None) is None
    assert ring.turn(lambda: None) is None
    ring.skip()
    assert ring.turn(lambda: None) == "A"
    assert ring.passed()
    assert ring.live == []
    ring.skip()
    assert ring.turn(lambda: "B") == "B"
    assert ring.passed(more=False)  # cut short
    assert ring.turn(lambda: "C") == "C"
    assert not ring.passed()
    assert ring.turn(lambda: "D") == "D"


class PoisoningQueue(DatasetQueue):
    """Fills released datasets with NaN, or the largest number, so that a late read is noticed."""

    def release(self, dataset: Columns) -> None:
        for tensor in dataset.tensors():
            if tensor.dtype.is_floating_point:
                tensor.fill_(torch.nan)
            elif tensor.dtype is not torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).max)
        super().release(dataset)


STEPS = 20  # of a dataset: 4 rows of 5
BOUND_S = 60.0


class Bench:
    """A real learner with a queue of device slots, poisoned on release; datasets are made up, marked A, B, ...

    trace: the datasets that were learned from, in order.
    """

    def __init__(self, **flags: Any) -> None:
        self.lone = LoneLearner(early_stop_loss_change=0.0, **flags)
        learning, row, layout = self.lone.learning, self.lone.row, self.lone.layout
        learning.progress.start_clock(1e-9)
        count = max(2, self.lone.config.learner.minibatch_ring_size)
        slots = [DeviceSlot(VECTOR, layout, CPU, replay=False) for _ in range(count)]
        self.dataset_queue = PoisoningQueue([Staging(VECTOR, layout, pin=False)], slots)
        starvation = Starvation(0.0, self.lone.shared.status, self.lone.shared.table)
        self.loop = TrainingLoop(learning, self.dataset_queue, row, Stopwatch(row), starvation)
        self.trace = ""
        self._ended = threading.Event()
        self._one_pass = learning.one_pass
        learning.one_pass = self._recorded  # type: ignore[method-assign]

    def _recorded(self, dataset: Dataset) -> bool:
        rewards = dataset.batch.rewards
        assert bool((rewards == rewards[0, 0]).all())
        self.trace += LETTERS[int(rewards[0, 0])]
        return self._one_pass(dataset)

    def _feed(self, datasets: int) -> None:
        """Assemble and load so many datasets."""
        for number in range(datasets):
            area = self.dataset_queue.area_to_fill(BOUND_S)
            assert area is not None
            area.obs["obs"].normal_()
            for name, value in (("reward", number), ("valid", True), ("log_prob", -1.0)):
                area.scalars[name].fill_(value)
            self.dataset_queue.submit(area)
            while (found := self.dataset_queue.next_load(0.1)) is None:
                assert not self._ended.is_set()
            self.dataset_queue.load(*found)

    def run(self, datasets: int, turns: int) -> str:
        """Learn ``turns`` passes with so many datasets fed; returns the trace."""
        threading.Thread(target=self._feed, args=(datasets,), daemon=True).start()
        self.loop.run(lambda: len(self.trace) >= turns or self.lone.shared.control.stopping)
        self._ended.set()
        return self.trace


@pytest.mark.parametrize(
    ("flags", "datasets", "trace"),
    [
        ({"num_epochs": 3}, 2, "AAABBB"),
        ({"num_epochs": 2, "minibatch_ring_size": 2}, 4, "ABABCDCD"),
        ({"num_epochs": 2, "minibatch_ring_size": 3}, 3, "ABCABC"),
        ({"num_epochs": 3, "minibatch_ring_size": 2, "ring_warmup": 1}, 4, "ABCBCDCD"),
        # It continues without a new dataset.
        ({"num_epochs": 4, "minibatch_ring_size": 2, "ring_nonblocking": True}, 1, "AAAA"),
    ],
)
def test_passes_follow_the_ring_and_steps_count_once(flags: dict[str, Any], datasets: int, trace: str) -> None:
    bench = Bench(**flags)

    assert bench.run(datasets, len(trace)) == trace
    assert bench.lone.learning.progress.env_steps == len(set(trace)) * STEPS
    assert bench.lone.learning.trainer.train_step == len(trace)


@pytest.mark.parametrize(
    ("interval", "minibatches", "published"),
    # Of two updates each, the pass in which it comes due is the second of two: every 4 updates instead of every 3.
    [(1, 1, 12), (5, 1, 2), (12, 1, 1), (13, 1, 0), (2, 2, 12), (3, 2, 6)],
)
def test_weights_are_published_every_so_many_updates_after_whole_passes(
    interval: int, minibatches: int, published: int
) -> None:
    bench = Bench(publish_interval=interval, num_batches_per_epoch=minibatches, batch_size=STEPS // minibatches)
    weights = bench.lone.shared.weights[0]
    before = weights.publications

    bench.run(12, 12)

    assert weights.publications - before == published
    assert bench.lone.row.get("publications") == before + published


def test_step_limit_completes_open_datasets_and_opens_no_other() -> None:
    bench = Bench(num_epochs=3, minibatch_ring_size=2, train_for_env_steps=2 * STEPS)

    # C is ready, too, but the limit is reached with the first passes over A and B.
    assert bench.run(3, 99) == "ABABAB"
    assert bench.lone.learning.progress.env_steps == 2 * STEPS
    assert bench.lone.learning.over


def test_stop_interrupts_passes_and_is_not_the_end_of_training() -> None:
    bench = Bench(num_epochs=10**6)
    one_pass = bench.lone.learning.one_pass

    def stopped(dataset: Dataset) -> bool:
        if len(bench.trace) == 2:
            bench.lone.shared.control.order_stop(Stop.SAVE)
        return one_pass(dataset)

    bench.lone.learning.one_pass = stopped  # type: ignore[method-assign]

    assert bench.run(1, 10**9) == "AAA"
    assert bench.lone.learning.trainer.train_step == 2  # the third pass made no update
    bench.lone.learning.finish(save=False)
    assert not bench.lone.learning.over  # a stop is no limit: the run was not done


LAYOUT = small_layout(dataset_rows=4)


def areas(count: int, pin: bool = False) -> list[Staging]:
    return [Staging(VECTOR, LAYOUT, pin) for _ in range(count)]


def slots(count: int, device: torch.device = CPU) -> list[DeviceSlot]:
    return [DeviceSlot(VECTOR, LAYOUT, device, replay=False) for _ in range(count)]


def fill(dataset_queue: DatasetQueue, *marks: float) -> None:
    """Do what a batcher does: take an area, fill it with a mark, submit it."""
    for mark in marks:
        area = dataset_queue.area_to_fill(0)
        assert area is not None
        area.scalars["reward"].fill_(mark)
        area.valid_steps = 10
        dataset_queue.submit(area)


def load(dataset_queue: DatasetQueue) -> bool:
    """Do what a loader does, if there is something to do."""
    found = dataset_queue.next_load(0)
    if found is not None:
        dataset_queue.load(*found)
    return found is not None


def mark_of(dataset: Columns | None) -> float:
    assert dataset is not None
    return float(dataset.scalars["reward"][0, 0])


def test_on_a_cpu_areas_are_learned_from_in_place_in_order_and_come_back_once_released() -> None:
    first, second = both = areas(2)
    dataset_queue = DatasetQueue(both)
    fill(dataset_queue, 1.0, 2.0)

    assert dataset_queue.ready == 2
    assert dataset_queue.area_to_fill(0) is None
    assert dataset_queue.dataset(0) is first
    assert dataset_queue.area_to_fill(0) is None
    dataset_queue.release(first)
    assert dataset_queue.area_to_fill(0) is first
    assert dataset_queue.dataset(0) is second
    assert dataset_queue.dataset(0) is None


def test_with_loaders_an_area_is_free_once_it_is_loaded_and_a_slot_once_it_is_released() -> None:
    dataset_queue = DatasetQueue(areas(1), slots(2))
    for mark in (1.0, 2.0):
        fill(dataset_queue, mark)
        assert load(dataset_queue)
    fill(dataset_queue, 3.0)

    assert not load(dataset_queue)  # no slot is idle
    first = dataset_queue.dataset(0)
    assert mark_of(first) == 1.0
    assert not load(dataset_queue)
    assert first is not None
    dataset_queue.release(first)
    assert load(dataset_queue)
    assert [mark_of(dataset_queue.dataset(0)) for _ in range(2)] == [2.0, 3.0]


def test_the_oldest_waiting_dataset_is_dropped_but_never_one_that_is_learned_from() -> None:
    dropped: list[int] = []
    dataset_queue = DatasetQueue(areas(3), drop_oldest=True, count_dropped=dropped.append)
    fill(dataset_queue, 1.0)
    learned = dataset_queue.dataset(0)
    fill(dataset_queue, 2.0, 3.0, 4.0, 5.0)

    assert mark_of(learned) == 1.0
    assert dropped == [10, 10]
    assert [mark_of(dataset_queue.dataset(0)) for _ in range(2)] == [4.0, 5.0]


def test_loaded_datasets_stay_and_the_oldest_full_area_is_dropped() -> None:
    dropped: list[int] = []
    dataset_queue = DatasetQueue(areas(2), slots(1), drop_oldest=True, count_dropped=dropped.append)
    fill(dataset_queue, 1.0)
    assert load(dataset_queue)
    for mark in (2.0, 3.0, 4.0):
        fill(dataset_queue, mark)
        assert not load(dataset_queue)  # no slot is idle, and no loader keeps an area meanwhile

    assert dropped == [10]
    seen = []
    while (dataset := dataset_queue.dataset(0)) is not None:
        seen.append(mark_of(dataset))
        dataset_queue.release(dataset)
        load(dataset_queue)
    assert seen == [1.0, 3.0, 4.0]


def test_unused_datasets_count_as_dropped_at_the_end() -> None:
    dropped: list[int] = []
    dataset_queue = DatasetQueue(areas(3), slots(2), count_dropped=dropped.append)
    for mark in (1.0, 2.0):
        fill(dataset_queue, mark)
        assert load(dataset_queue)
    dataset_queue.dataset(0)
    fill(dataset_queue, 3.0)
    begun = dataset_queue.area_to_fill(0)
    assert begun is not None
    begun.valid_steps = 4
    dataset_queue.give_up(begun)

    dataset_queue.drop_rest()

    assert sorted(dropped) == [4, 10, 10]  # loaded, full and begun
    assert dataset_queue.dataset(0) is None


@pytest.mark.gpu
def test_on_a_gpu_a_dataset_is_loaded_while_another_is_learned_from() -> None:
    dataset_queue = DatasetQueue(areas(2, pin=True), slots(2, torch.device("cuda")))
    fill(dataset_queue, 1.0)
    assert load(dataset_queue)
    first = dataset_queue.dataset(0)
    assert first is not None
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    read = torch.cuda.Event()
    first.scalars["reward"].mean()
    read.record()

    fill(dataset_queue, 2.0)
    assert load(dataset_queue)  # comes back once the copy is over

    assert not read.query()
    read.synchronize()
    dataset_queue.release(first)
    assert mark_of(dataset_queue.dataset(0)) == 2.0


@pytest.mark.gpu
def test_on_a_gpu_a_slot_is_read_only_after_its_copy_and_written_only_after_its_last_reading() -> None:
    dataset_queue = PoisoningQueue(areas(2, pin=True), slots(2, torch.device("cuda")))
    sums = []
    for mark in range(50):
        fill(dataset_queue, float(mark))
        assert load(dataset_queue)
        dataset = dataset_queue.dataset(0)
        assert dataset is not None
        torch.cuda._sleep(1_000_000)  # the device lags behind the host, so an early write would be seen
        sums.append(dataset.scalars["reward"].mean())
        dataset_queue.release(dataset)

    assert [float(value) for value in sums] == [float(mark) for mark in range(50)]
