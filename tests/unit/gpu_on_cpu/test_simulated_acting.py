"""Policies act on a simulated GPU as on the CPU, by published weights, and wait for the device only for results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sfactory.inference import acting_policy
from sfactory.shared.opponents import OpponentPool
from sfactory.system.cuda_graphs import GraphRecorder
from sfactory.system.gpu import use_device
from tests.support.acting import GRAPHS, NATURE, RNN, Published, T, Worker
from tests.support.simulated_gpu import SimulatedGpu
from tests.support.stream_order import ASLEEP

RESULTS = "model/actor_critic.py on_host"
LSTM, MINGRU = ({**RNN, "rnn_type": name} for name in ("lstm", "mingru"))
APART = {"actor_critic_share_weights": False}


@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("vector", {}),
        ("vector", {**RNN, **APART, "normalize_returns": True}),
        ("vector", LSTM),
        ("vector", MINGRU),
        ("vector", {"use_spectral_norm": True}),
        ("images", NATURE),
        ("images", {**NATURE, "amp": "bf16"}),
        ("both", {"obs_scale": 255.0}),
        ("masked", {}),
    ],
    ids=["MLP", "GRU, separate critic", "LSTM", "minGRU", "spectral norm", "images", "bf16", "several", "action masks"],
)
def test_passes_follow_published_weights(
    kind: str, flags: dict[str, Any], graphs: dict[str, Any], gpu: SimulatedGpu, device: torch.device
) -> None:
    use_device(device)
    published = Published(device, kind, **flags, **graphs)
    tolerance = 5e-2 if flags.get("amp") == "bf16" else 1e-5
    published.check(3, tolerance=tolerance)
    gpu.clear()
    for number in range(2):
        published.publish()
        published.policy.refresh()
        published.check(3, number, tolerance)

    assert {tensor.device for tensor in published.policy._model.state_dict().values()} == {device}
    assert gpu.waits_by_function() == {RESULTS: 2}
    assert gpu.kernels["graph"] == (2 if graphs else 0)


@pytest.mark.parametrize("flags", [{}, {**RNN, **GRAPHS}], ids=["eager", "GRU, graphs"])
def test_a_policy_worker_copies_asynchronously_and_waits_once_a_turn(
    flags: dict[str, Any], gpu: SimulatedGpu, device: torch.device
) -> None:
    use_device(device)
    worker = Worker(Published(device, "both", **flags))
    worker.turn(0)
    gpu.clear()
    for t in range(1, T):
        worker.turn(t)

    has_state = "use_rnn" in flags
    assert gpu.waits_by_function() == {RESULTS: T - 1}
    assert {what for what, _ in gpu.waits} == {ASLEEP}
    # Two observations; two actions, log-probabilities and values.
    assert gpu.copies == {("to device", True): (T - 1) * (2 + has_state), ("to host", True): (T - 1) * (4 + has_state)}
    for t in range(T):
        worker.check(t)


def test_past_versions_record_their_passes_on_the_stream_of_the_policy(
    gpu: SimulatedGpu, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[GraphRecorder] = []

    def counted(device: torch.device) -> GraphRecorder:
        recorders.append(GraphRecorder(device))
        return recorders[-1]

    monkeypatch.setattr(acting_policy, "GraphRecorder", counted)
    use_device(device)
    published = Published(device, **GRAPHS)
    nbytes, ids = published.flat.block.numel(), np.array([[0, 1, 2]] * T, np.int16)
    pool = published.shared.opponents = OpponentPool(1, nbytes, 2)
    worker = Worker(published)
    for slot in worker.worker._slots:
        slot.policy_id = ids
    published.model.requires_grad_(False)
    expected = np.zeros((2, 3), np.float32)
    for policy in (1, 2, 0):
        published.publish()
        for actor, slot in enumerate(worker.slots):
            obs = {key: torch.from_numpy(block[0]) for key, block in slot.obs.items()}
            expected[actor, policy] = published.model.forward(obs).value[policy]
        if policy:
            pool.add(published.flat.to_host(), published.version, policy)

    worker.turn(0)

    assert len(recorders) == 1
    assert gpu.kernels["graph"] == 3
    np.testing.assert_allclose([slot.value[0] for slot in worker.slots], expected, rtol=1e-4, atol=1e-5)
