"""Acting on a GPU: passes do not wait for the device, graphs give what eager passes give, copies come in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.cuda_graphs import padded_rows
from sfactory.model.actor_critic import Acted
from tests.support.acting import GRAPHS, NATURE, RNN, Published, T, Worker
from tests.support.gpu import waits
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR

A_WHILE = 20_000_000  # clock cycles of a GPU: some 10 ms
MIB = 2**20
MOST_MIB = 256  # that graphs of all sizes of an MLP may take


def lag(device: torch.device) -> None:
    """The device falls behind the host: what does not wait for it reads or writes too early."""
    if device.type == "cuda":
        torch.cuda._sleep(A_WHILE)


@pytest.mark.parametrize("flags", [{}, GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    ("kind", "more", "tolerance"),
    [
        ("vector", RNN, 1e-4),
        ("images", NATURE, 1e-4),
        ("images", {**NATURE, "amp": "bf16"}, 5e-2),
        ("both", {"obs_scale": 255.0}, 1e-4),
    ],
    ids=["GRU", "images", "images in bf16", "several inputs and actions"],
)
def test_passes_of_any_size_follow_published_weights(
    kind: str, more: dict[str, Any], tolerance: float, flags: dict[str, Any], device: torch.device
) -> None:
    published = Published(device, kind, **more, **flags)
    torch.manual_seed(1)
    sizes = (1, 5, 24) if kind == "images" else (1, 2, 3, 5, 6, 8, 24, 33, 64)
    for _ in range(2):
        for rows in sizes:  # later sizes share memory with earlier ones
            published.check(rows, rows, tolerance)
        for rows in reversed(sizes):
            published.check(rows, rows + 1, tolerance)
        published.publish()
        published.policy.refresh()
    assert published.policy.version == 2


def test_replayed_passes_draw_new_actions(device: torch.device) -> None:
    published = Published(device, **GRAPHS)

    first, second = ({key: value.clone() for key, value in published.act(256).actions.items()} for _ in range(2))

    assert all(not torch.equal(first[key], second[key]) for key in first)


def test_graphs_of_all_sizes_take_little_memory(device: torch.device) -> None:
    published = Published(device, **GRAPHS, encoder_mlp_layers=(512, 512))
    published.act(1)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
    for rows in sorted({padded_rows(rows) for rows in range(1, 1025)}):
        published.act(rows)
    if device.type == "cuda":
        assert (torch.cuda.memory_reserved() - before) / MIB < MOST_MIB


@pytest.mark.parametrize("flags", [{}, GRAPHS, RNN, {**RNN, **GRAPHS}], ids=["eager", "graphs", "GRU", "GRU, graphs"])
def test_a_policy_worker_waits_for_the_device_only_for_its_results(
    flags: dict[str, Any], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(Published(device, "both", **flags))
    worker.turn(0)  # graphs are captured
    on_host = Acted.on_host

    def with_a_wait(acted: Acted) -> Acted:
        with waits(device, "default"):
            return on_host(acted)

    monkeypatch.setattr(Acted, "on_host", with_a_wait)
    with waits(device, "error"):
        for t in range(1, T):
            worker.turn(t)

    for t in range(T):
        worker.check(t)


@pytest.mark.parametrize("flags", [{}, GRAPHS], ids=["eager", "graphs"])
def test_requests_are_answered_right_while_the_device_lags(flags: dict[str, Any], device: torch.device) -> None:
    published = Published(device, "images", **NATURE, **flags)
    worker = Worker(published)
    act = published.policy.act

    def late(obs: dict[str, Tensor], state: Tensor) -> Acted:
        lag(device)
        acted = act(obs, state)
        lag(device)
        return acted

    published.policy.act = late  # type: ignore[assignment, method-assign]
    for _ in range(3):
        for t in range(T):
            worker.turn(t)
            worker.check(t)
        published.publish()


def test_weights_that_were_read_are_used_although_newer_ones_are_read_at_once(device: torch.device) -> None:
    published = Published(device)
    for _ in range(5):
        lag(device)
        published.publish()
        published.policy.refresh()
        published.check(3)


def test_what_a_learner_publishes_is_read_on_every_device(device: torch.device) -> None:
    learner = LoneLearner(device=str(device), publish_interval=1)
    policies = [
        ActingPolicy(VECTOR, learner.config.model, learner.setup.weights, on) for on in (device, torch.device("cpu"))
    ]
    obs = torch.randn(5, 3)
    versions = []
    for _ in range(3):
        lag(device)
        learner.learn()
        values = []
        for policy in policies:
            policy.refresh()
            there = {"obs": obs.to(policy.device)}
            values.append(policy.act(there, policy.fresh_state(5)).on_host().value)
        there = {"obs": obs.to(device)}
        with torch.inference_mode():
            values.append(learner.learning.trainer.model.forward(there).value.cpu())
        versions.append(policies[0].version)
        torch.testing.assert_close(values[0], values[2], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(values[1], values[2], rtol=1e-4, atol=1e-4)

    assert versions == [1, 2, 3]
