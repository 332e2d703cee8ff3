"""Policies act on a simulated GPU as on the CPU, by published weights, and wait for the device only for results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
