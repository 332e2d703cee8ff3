"""Datasets are in one place at a time; dropped steps are counted; slots are reused."""

from __future__ import annotations

import pytest
import torch

from sfactory.learner.dataset_queue import DatasetQueue
from sfactory.learner.staging import Columns, DeviceSlot, Staging
from tests.support.parts import CPU, VECTOR, small_layout

LAYOUT = small_layout(dataset_rows=4)


class PoisoningQueue(DatasetQueue):
    """Fills released datasets with NaN, or the largest number, so that a late read is noticed."""

    def release(self, dataset: Columns) -> None:
        for tensor in dataset.tensors():
            if tensor.dtype.is_floating_point:
                tensor.fill_(torch.nan)
            elif tensor.dtype is not torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).max)
        super().release(dataset)


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
    slot = dataset_queue.slot_to_load(0)
    area = None if slot is None else dataset_queue.area_to_load(0)
    if slot is None or area is None:
        return False
    dataset_queue.load(area, slot)
    return True


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
    assert dataset_queue.dropped_steps == 0


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
    dataset_queue = DatasetQueue(areas(3), drop_oldest=True)
    fill(dataset_queue, 1.0)
    learned = dataset_queue.dataset(0)
    fill(dataset_queue, 2.0, 3.0, 4.0, 5.0)

    assert mark_of(learned) == 1.0
    assert dataset_queue.dropped_steps == 2 * 10
    assert [mark_of(dataset_queue.dataset(0)) for _ in range(2)] == [4.0, 5.0]


def test_loaded_datasets_stay_and_the_oldest_full_area_is_dropped() -> None:
    dataset_queue = DatasetQueue(areas(2), slots(1), drop_oldest=True)
    fill(dataset_queue, 1.0)
    assert load(dataset_queue)
    for mark in (2.0, 3.0, 4.0):
        fill(dataset_queue, mark)
        assert not load(dataset_queue)  # no slot is idle, and no loader keeps an area meanwhile

    assert dataset_queue.dropped_steps == 10
    seen = []
    while (dataset := dataset_queue.dataset(0)) is not None:
        seen.append(mark_of(dataset))
        dataset_queue.release(dataset)
        load(dataset_queue)
    assert seen == [1.0, 3.0, 4.0]


def test_unused_datasets_count_as_dropped_at_the_end() -> None:
    dataset_queue = DatasetQueue(areas(3), slots(2))
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

    assert dataset_queue.dropped_steps == 10 + 10 + 4  # loaded, full and begun
    assert dataset_queue.dataset(0) is None


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: copies beside computing exist there alone")


@GPU
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


@GPU
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
