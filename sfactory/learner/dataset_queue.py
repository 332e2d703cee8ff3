"""Circulates staging areas and device slots between the threads that fill, load and learn from datasets.

                 batchers          loaders            training
    idle areas ----------> full areas ------> ready slots ------> idle slots (to the loaders)
         ^__________________________|

On a CPU there are no loaders: a full area is a ready dataset, and idle again after training.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from sfactory.learner.staging import Columns, DeviceSlot, Staging

T = TypeVar("T")


class DatasetQueue:
    """Staging areas and device slots, each in one place at a time. Every method may be called from any thread.

    slots: empty on a CPU. drop_oldest: a batcher without an idle area takes back the oldest full one.
    count_dropped: receives the valid steps of each dataset that is dropped, by a batcher or by ``drop_rest``.
    """

    def __init__(
        self,
        areas: Sequence[Staging],
        slots: Sequence[DeviceSlot] = (),
        drop_oldest: bool = False,
        count_dropped: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self._drop_oldest, self._count_dropped = drop_oldest, count_dropped
        self._idle_areas, self._full = _queue_of(areas), _queue_of(list[Staging]())
        self._begun = _queue_of(list[Staging]())
        self._idle_slots, self._loaded = _queue_of(slots), _queue_of(list[DeviceSlot]())
        self.has_loaders = bool(slots)
        self._dropping = threading.Lock()

    @property
    def ready(self) -> int:
        """Datasets that wait for training."""
        return self._loaded.qsize() if self.has_loaders else self._full.qsize()

    def area_to_fill(self, timeout: float) -> Staging | None:
        """For a batcher: an area, waiting up to ``timeout`` seconds; None on a timeout."""
        area = _get(self._idle_areas, 0.0 if self._drop_oldest else timeout)
        if area is None and self._drop_oldest:
            area = _get(self._full, 0.0)
            if area is None:
                return _get(self._idle_areas, timeout)
            self._drop(area)
        return area

    def submit(self, area: Staging) -> None:
        """From a batcher: the area is full."""
        self._full.put(area)

    def give_up(self, area: Staging) -> None:
        """From a batcher that ends before the area is full."""
        self._begun.put(area)

    def next_load(self, timeout: float) -> tuple[Staging, DeviceSlot] | None:
        """For a loader: the oldest full area and an idle slot, waiting up to ``timeout`` seconds for each."""
        slot = _get(self._idle_slots, timeout)
        if slot is None:
            return None
        area = _get(self._full, timeout)
        if area is None:
            self._idle_slots.put(slot)
            return None
        return area, slot

    def load(self, area: Staging, slot: DeviceSlot) -> None:
        """For a loader: copy ``area`` into ``slot``; then the area is idle and the slot ready."""
        slot.load(area)
        self._idle_areas.put(area)
        self._loaded.put(slot)

    def dataset(self, timeout: float) -> Columns | None:
        """For training: the next dataset, waiting up to ``timeout`` seconds."""
        if not self.has_loaders:
            return _get(self._full, timeout)
        slot = _get(self._loaded, timeout)
        if slot is not None:
            slot.before_reading()
        return slot

    def release(self, dataset: Columns) -> None:
        """From training, after its last read of the dataset."""
        if isinstance(dataset, DeviceSlot):
            dataset.after_reading()
            self._idle_slots.put(dataset)
        else:
            assert isinstance(dataset, Staging)
            self._idle_areas.put(dataset)

    def drop_rest(self) -> None:
        """After all threads have ended: count the datasets that were begun, full or loaded as dropped."""
        while (dataset := _get(self._begun, 0.0) or _get(self._full, 0.0) or _get(self._loaded, 0.0)) is not None:
            self._drop(dataset)

    def _drop(self, dataset: Staging | DeviceSlot) -> None:
        with self._dropping:
            self._count_dropped(dataset.valid_steps)


def _queue_of(items: Sequence[T]) -> queue.SimpleQueue[T]:
    filled: queue.SimpleQueue[T] = queue.SimpleQueue()
    for item in items:
        filled.put(item)
    return filled


def _get(items: queue.SimpleQueue[T], timeout: float) -> T | None:
    try:
        return items.get(timeout > 0, timeout if timeout > 0 else None)
    except queue.Empty:
        return None
