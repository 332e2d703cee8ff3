"""Every process and thread that computes on a GPU chooses it first, and everything it does is done there."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch

from sfactory.inference import policy_worker
from sfactory.inference.policy_worker import PolicySetup, run_policy_worker
from sfactory.learner.learner_process import run_learner
from sfactory.messages import ActReply, ActRequest, TrajectoryReady
from sfactory.shared.control import Stop
from sfactory.system.cuda_graphs import GraphRecorder
from sfactory.system.gpu import use_device
from tests.support.acting import GRAPHS, RNN, Published
from tests.support.lone_learner import LoneLearner
from tests.support.parts import CPU, model_of
from tests.support.simulated_gpu import SimulatedGpu
from tests.support.stream_order import WrongGpuError

STEPS = 20  # of a dataset
PLACES = (
    "sfactory.inference.policy_worker.use_device",
    "sfactory.learner.learner_process.use_device",
    "sfactory.process.threads.use_device",
)


def answer_a_request(device: torch.device, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> None:
    """A policy worker from start to stop, which is ordered when it has received the only request."""
    published = Published(CPU, **flags)
    shared, control = published.shared, published.shared.control
    slot = shared.trajectories.slot(shared.table.slots_of(0)[0])
    slot.is_first[...] = True
    monkeypatch.setattr(policy_worker, "_yield_core", lambda: control.order_stop(Stop.NOW))
    shared.to_policies[0].put(ActRequest(0, 0, slot.index, 0, 0, 0))

    run_policy_worker(PolicySetup(published.config, shared, 0, 1, 0, str(device)), shared.status.row("sf-policy-0-0"))

    assert list(shared.to_actors[0].get(0)) == [ActReply(0, 0)]
    with torch.inference_mode():
        wanted = published.model.forward({key: torch.from_numpy(obs[0]) for key, obs in slot.obs.items()}).value
    torch.testing.assert_close(torch.from_numpy(slot.value[0]), wanted, rtol=1e-5, atol=1e-6)


def learn_from_two_datasets(device: torch.device, **flags: Any) -> int:
    """A learner from start to its limit, with all its threads; how often it has published."""
    lone = LoneLearner(train_for_env_steps=2 * STEPS, **flags)
    shared = lone.shared
    for index in range(2):
        shared.table.begin(index)
        shared.trajectories.slot(index).valid.fill(True)
        shared.table.publish(index, 0)
        shared.to_learners[0].put(TrajectoryReady(shared.table.owner(index), index))
    before = lone.setup.weights.publications
    shared.status.row("sf-actor-0").set("first_step_at", 1e-9)

    run_learner(dataclasses.replace(lone.setup, device=str(device)), lone.row)

    assert lone.row.get("env_steps") == 2 * STEPS
    return lone.setup.weights.publications - before


@pytest.mark.parametrize("flags", [{}, {**GRAPHS, **RNN}], ids=["eager", "GRU, graphs"])
def test_a_policy_worker_acts_on_its_gpu(
    flags: dict[str, Any], gpu: SimulatedGpu, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_a_request(device, monkeypatch, **flags)

    assert gpu.choices == {threading.current_thread().name: device.index}
    assert set(gpu.captures) == ({device} if flags else set())


def test_all_threads_of_a_learner_work_on_its_gpu(gpu: SimulatedGpu, device: torch.device) -> None:
    publications = learn_from_two_datasets(device)

    assert publications == 3  # the first weights, and after each update
    names = (threading.current_thread().name, "train", "load-0", "batch-0")
    assert gpu.choices == dict.fromkeys(names, device.index)
    assert gpu.copies["to device", True] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch would compute on the GPU of this machine")
@pytest.mark.parametrize("place", PLACES)
def test_who_does_not_choose_its_gpu_is_found(
    place: str, gpu: SimulatedGpu, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, lambda device: None)

    with pytest.raises(WrongGpuError, match=r"has not called torch\.cuda\.set_device"):
        answer_a_request(device, monkeypatch) if "policy_worker" in place else learn_from_two_datasets(device)


def test_graphs_of_another_gpu_than_the_chosen_one_are_refused(gpu: SimulatedGpu, device: torch.device) -> None:
    use_device("cuda:0")

    with pytest.raises(WrongGpuError, match="uses GPU 1, and the thread has chosen GPU 0"):
        GraphRecorder(device)
    with pytest.raises(WrongGpuError, match="uses GPU 1, and the thread has chosen GPU 0"):
        model_of().to(device)
