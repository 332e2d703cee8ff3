"""Streams and events order all accesses to memory: without any one of the waits, an access out of order is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from sfactory.learner.dataset_queue import DatasetQueue
from sfactory.learner.staging import DeviceSlot, Staging
from sfactory.shared.trajectories import TrajectoryBuffer
from sfactory.system.cuda_graphs import WARM_UPS, GraphRecorder
from sfactory.system.gpu import use_device
from tests.support.acting import Published, Worker
from tests.support.gpu import made_up_batch
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR, small_layout
from tests.support.simulated_gpu import SimulatedGpu
from tests.support.stream_order import Event, Place, RaceError, Stream
from tests.support.updates import Case, learner_of


def load_and_read(device: torch.device) -> None:
    """Datasets go round: batchers fill areas, loaders copy them to the device, training reads slots."""
    layout = small_layout(rows=4, num_actors=1, slots_per_split=1)
    areas = [Staging(VECTOR, layout, pin=True) for _ in range(2)]
    slots = [DeviceSlot(VECTOR, layout, device, replay=False) for _ in range(2)]
    queue, filled = DatasetQueue(areas, slots), TrajectoryBuffer(VECTOR, layout).slot(0)
    for number in range(6):
        filled.reward[...] = number
        area = queue.area_to_fill(0.0)
        assert area is not None
        area.clear()
        area.take(filled, 0, area.rows)
        queue.submit(area)
        found = queue.next_load(0.0)
        assert found is not None
        queue.load(*found)
        dataset = queue.dataset(0.0)
        assert isinstance(dataset, DeviceSlot)
        total = sum(tensor.double().sum() for tensor in dataset.scalars.values())
        queue.release(dataset)
    assert float(total) == 5.0 * filled.reward.size


def learn_and_publish(device: torch.device) -> None:
    """A learner publishes after each update, and what it has published is what it has learned."""
    learner = LoneLearner(device=str(device), publish_interval=1)
    for _ in range(2):
        learner.learn()


def act_by_new_weights(device: torch.device) -> None:
    """Weights are published faster than a policy acts."""
    published = Published(device)
    for _ in range(2):
        published.publish()
        published.policy.refresh()
    published.check(3)


def answer_requests(device: torch.device) -> None:
    """A policy worker answers requests of two steps."""
    worker = Worker(Published(device))
    for t in range(2):
        worker.turn(t)
        worker.check(t)


def learn_by_graphs(device: torch.device) -> None:
    """Updates are recorded after some that warm up on another stream."""
    trainer = learner_of(Case("", learner={"publish_interval": 1}), device, GraphRecorder(device))
    for seed in range(WARM_UPS + 2):
        batch = made_up_batch(trainer.model.spec, 0, seed=seed)
        trainer.train(batch.map(lambda tensor: tensor.to(device)))


WORK: tuple[Callable[[torch.device], None], ...] = (
    load_and_read,
    learn_and_publish,
    act_by_new_weights,
    answer_requests,
    learn_by_graphs,
)


@pytest.mark.parametrize("work", WORK, ids=[work.__name__ for work in WORK])
def test_all_accesses_to_memory_are_in_order(
    work: Callable[[torch.device], None], gpu: SimulatedGpu, device: torch.device
) -> None:
    use_device(device)
    work(device)
    assert gpu.kernels


class Missing(NamedTuple):
    """A call of the function ``of`` of sfactory that is left out, and what then is out of order in ``work``."""

    kind: type
    method: str
    of: str
    work: Callable[[torch.device], None]
    found: str


LOADED = "copy to device at sfactory/learner/staging.py.* writes memory that may"
MISSING = (
    Missing(Stream, "wait_event", "load", load_and_read, LOADED),
    Missing(Event, "record", "after_reading", load_and_read, LOADED),
    Missing(Event, "record", "__init__", load_and_read, LOADED),
    Missing(Event, "synchronize", "load", load_and_read, "the host .* writes memory that may still be read"),
    Missing(Event, "synchronize", "_require_finite", learn_and_publish, "the host .* reads memory that may not"),
    Missing(Event, "synchronize", "on_host", learn_and_publish, "the host .* reads memory that may not"),
    Missing(Event, "synchronize", "refresh", act_by_new_weights, "the host .* writes memory that may still be read"),
    Missing(Event, "synchronize", "on_host", answer_requests, "the host .* memory that may"),
    Missing(Stream, "wait_stream", "warm_up", learn_by_graphs, "may not be written yet"),
)


@pytest.mark.parametrize(
    "missing", MISSING, ids=[f"{each.kind.__name__}.{each.method} of {each.of}" for each in MISSING]
)
def test_a_missing_wait_is_found(
    missing: Missing, gpu: SimulatedGpu, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, missing.kind, missing.method, missing.of)
    use_device(device)

    with pytest.raises(RaceError, match=missing.found):
        missing.work(device)


def leave_out(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, of: str) -> None:
    original = getattr(kind, method)

    def call(self: Any, *args: Any) -> None:
        if Place.present().function != of:
            original(self, *args)

    monkeypatch.setattr(kind, method, call)


def test_training_waits_on_the_device_for_the_copy_where_the_loader_does_not(
    gpu: SimulatedGpu, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = small_layout()
    use_device(device)
    area, slot = Staging(VECTOR, layout, pin=True), DeviceSlot(VECTOR, layout, device, replay=False)
    leave_out(monkeypatch, Event, "synchronize", "load")
    slot.load(area)
    slot.before_reading()
    assert slot.is_first.sum().item() == 0
    slot.after_reading()

    leave_out(monkeypatch, Stream, "wait_event", "before_reading")
    slot.load(area)
    slot.before_reading()
    with pytest.raises(RaceError, match="reads memory that may not be written yet"):
        slot.is_first.sum()
