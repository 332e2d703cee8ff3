"""Datasets go round the belt, each in one place at a time; what is dropped is counted; slots are used again."""

from __future__ import annotations

import pytest
import torch

from sfactory.learner.dataset_queue import Belt
from sfactory.learner.staging import Columns, DeviceSlot, Staging
from tests.support.parts import VECTOR, small_layout

LAYOUT = small_layout(dataset_rows=4)
CPU = torch.device("cpu")


def areas(count: int) -> list[Staging]:
    return [Staging(VECTOR, LAYOUT, pin=False) for _ in range(count)]


def slots(count: int, device: torch.device = CPU) -> list[DeviceSlot]:
    return [DeviceSlot(VECTOR, LAYOUT, device, replay=False) for _ in range(count)]


def fill(belt: Belt, mark: float) -> Staging:
    """Do what a batcher does: take an area, fill it with ``mark``, submit it."""
    area = belt.area_to_fill(0)
    assert area is not None
    area.scalars["reward"].fill_(mark)
    area.valid_steps = 10
    belt.submit(area)
    return area


def load(belt: Belt) -> bool:
    """Do what a loader does, if there is something to do."""
    slot = belt.slot_to_load(0)
    area = None if slot is None else belt.area_to_load(0)
    if slot is None or area is None:
        return False
    belt.load(area, slot)
    return True


def mark_of(dataset: Columns | None) -> float:
    assert dataset is not None
    return float(dataset.scalars["reward"][0, 0])


def test_on_a_cpu_areas_are_learned_from_in_place_in_order_and_come_back_once_released() -> None:
    belt = Belt(areas(2))
    first, second = fill(belt, 1.0), fill(belt, 2.0)

    assert belt.ready == 2
    assert belt.area_to_fill(0) is None
    assert belt.dataset(0) is first
    assert belt.area_to_fill(0) is None
    belt.release(first)
    assert belt.area_to_fill(0) is first
    assert belt.dataset(0) is second
    assert belt.dataset(0) is None
    assert belt.dropped_steps == 0


def test_with_loaders_an_area_is_free_once_it_is_loaded_and_a_slot_once_it_is_released() -> None:
    belt = Belt(areas(1), slots(2))
    for mark in (1.0, 2.0):
        fill(belt, mark)
        assert load(belt)
    fill(belt, 3.0)

    assert not load(belt)  # no slot is idle
    first = belt.dataset(0)
    assert mark_of(first) == 1.0
    assert not load(belt)
    assert first is not None
    belt.release(first)
    assert load(belt)
    assert [mark_of(belt.dataset(0)) for _ in range(2)] == [2.0, 3.0]


def test_the_oldest_dataset_that_waits_is_dropped_and_counted_instead_of_holding_batchers_back() -> None:
    belt = Belt(areas(3), drop_oldest=True)
    for mark in (1.0, 2.0, 3.0, 4.0, 5.0):
        fill(belt, mark)

    assert belt.dropped_steps == 2 * 10
    assert [mark_of(belt.dataset(0)) for _ in range(3)] == [3.0, 4.0, 5.0]


def test_what_is_loaded_stays_and_the_oldest_that_waits_for_a_slot_is_dropped() -> None:
    belt = Belt(areas(2), slots(1), drop_oldest=True)
    fill(belt, 1.0)
    assert load(belt)
    for mark in (2.0, 3.0, 4.0):
        fill(belt, mark)
        assert not load(belt)  # no slot is idle, and no loader keeps an area meanwhile

    assert belt.dropped_steps == 10
    seen = []
    while (dataset := belt.dataset(0)) is not None:
        seen.append(mark_of(dataset))
        belt.release(dataset)
        load(belt)
    assert seen == [1.0, 3.0, 4.0]


def test_where_a_belt_ends_all_that_nobody_learns_from_any_more_is_counted() -> None:
    belt = Belt(areas(3), slots(2))
    for mark in (1.0, 2.0):
        fill(belt, mark)
        assert load(belt)
    learned = belt.dataset(0)
    fill(belt, 3.0)
    begun = belt.area_to_fill(0)
    assert begun is not None
    begun.valid_steps = 4
    belt.give_up(begun)

    belt.drop_rest()

    assert mark_of(learned) == 1.0
    assert belt.dropped_steps == 10 + 10 + 4  # loaded, full and begun
    assert belt.dataset(0) is None


def test_a_dataset_that_is_learned_from_is_never_dropped() -> None:
    belt = Belt(areas(2), drop_oldest=True)
    fill(belt, 1.0)
    learned = belt.dataset(0)
    for mark in (2.0, 3.0, 4.0):
        fill(belt, mark)

    assert mark_of(learned) == 1.0
    assert belt.dropped_steps == 2 * 10
    assert mark_of(belt.dataset(0)) == 4.0


def test_what_is_read_after_its_release_is_found_to_be_poisoned() -> None:
    belt = Belt(areas(1), slots(1), poison=True)
    fill(belt, 1.0)
    assert load(belt)
    dataset = belt.dataset(0)
    assert dataset is not None
    assert not any(tensor.isnan().any() for tensor in dataset.tensors() if tensor.is_floating_point())

    belt.release(dataset)

    assert all(tensor.isnan().all() for tensor in dataset.tensors() if tensor.is_floating_point())
    fill(belt, 2.0)
    assert load(belt)
    assert mark_of(belt.dataset(0)) == 2.0


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: copies beside computing exist there alone")


@GPU
def test_on_a_gpu_a_dataset_is_loaded_while_another_is_learned_from() -> None:
    belt = Belt([Staging(VECTOR, LAYOUT, pin=True) for _ in range(2)], slots(2, torch.device("cuda")))
    fill(belt, 1.0)
    assert load(belt)
    first = belt.dataset(0)
    assert first is not None
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    read = torch.cuda.Event()
    first.scalars["reward"].mean()
    read.record()

    fill(belt, 2.0)
    assert load(belt)  # comes back once the copy is over

    assert not read.query()
    read.synchronize()
    belt.release(first)
    assert mark_of(belt.dataset(0)) == 2.0


@GPU
def test_on_a_gpu_a_slot_is_read_only_after_its_copy_and_written_only_after_its_last_reading() -> None:
    device = torch.device("cuda")
    pinned = [Staging(VECTOR, LAYOUT, pin=True) for _ in range(2)]
    belt = Belt(pinned, slots(2, device), poison=True)
    sums = []
    for mark in range(50):
        fill(belt, float(mark))
        assert load(belt)
        dataset = belt.dataset(0)
        assert dataset is not None
        torch.cuda._sleep(1_000_000)  # the device lags behind the host, so an early write would be seen
        sums.append(dataset.scalars["reward"].mean())
        belt.release(dataset)

    assert [float(value) for value in sums] == [float(mark) for mark in range(50)]
