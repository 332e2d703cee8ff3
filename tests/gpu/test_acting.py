"""Acting on a GPU: passes do not wait for the device, graphs give what eager passes give, copies come in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.cuda_graphs import padded_rows
from sfactory.inference.policy_worker import PolicySetup, PolicyWorker
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.objects import SharedObjects
from sfactory.spec import EnvSpec
from tests.support.gpu import spec_of, waits
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR, small_run

T = 4
A_WHILE = 20_000_000  # clock cycles of a GPU: some 10 ms
RNN = {"use_rnn": True, "rnn_size": 8}
GRAPHS: dict[str, Any] = {"cuda_graphs": True}
NATURE = {
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": (64,),
    "normalize_input": False,
    "obs_scale": 255.0,
}
MIB = 2**20
MOST_MIB = 256  # that graphs of all sizes of an MLP may take


def lag(device: torch.device) -> None:
    """The device falls behind the host: what does not wait for it reads or writes too early."""
    if device.type == "cuda":
        torch.cuda._sleep(A_WHILE)


class Published:
    """A model whose weights are published, and a policy on ``device`` that acts with them."""

    def __init__(self, device: torch.device, kind: str = "vector", **flags: Any) -> None:
        self.config: Config = config_of({**small_run(workers=2, envs=3, rollout=T, batch_size=T), **flags})
        self.spec: EnvSpec = spec_of(kind, self.config.model)
        computes_in = torch.bfloat16 if self.config.model.amp == "bf16" else torch.float32
        self.model, self.version = ActorCritic(self.spec, self.config.model, computes_in), -1
        self.flat = FlatState(self.model)
        sampling, learner = self.config.sampling, self.config.learner
        self.layout = Layout.plan(sampling, learner, "central", self.model.state_size)
        self.shared = SharedObjects(self.spec, self.layout, self.flat.block.numel())
        self.device = device
        self.publish()
        self.policy = ActingPolicy(self.spec, self.config.model, self.shared.weights[0], device)
        self.policy.refresh()

    def publish(self) -> None:
        """Publish other weights than before."""
        self.version += 1
        generator = torch.Generator().manual_seed(self.version)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(0.03 * torch.randn(weight.shape, generator=generator))
        self.shared.weights[0].publish(self.flat.to_host(), self.version)

    def batch(self, rows: int, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
        """Observations and states, on the CPU."""
        rng = np.random.default_rng(seed)
        obs = {key: torch.from_numpy(drawn(rng, (rows, *leaf.shape), leaf.dtype)) for key, leaf in self.spec.obs}
        return obs, torch.from_numpy(rng.normal(size=(rows, self.model.state_size)).astype(np.float32))

    def act(self, rows: int, seed: int = 0) -> Acted:
        """Act on the device."""
        obs, state = self.batch(rows, seed)
        there = {key: tensor.to(self.device) for key, tensor in obs.items()}
        return self.policy.act(there, state.to(self.device)).on_host()

    def check(self, rows: int, seed: int = 0, tolerance: float = 1e-4) -> None:
        """The policy acts as the published model does on the CPU."""
        obs, state = self.batch(rows, seed)
        acted = self.act(rows, seed)
        with torch.inference_mode():
            expected = self.model.forward(obs, state)
            distribution = self.model.distribution(expected.dist_params)
            log_prob = distribution.log_prob({key: tensor.clone() for key, tensor in acted.actions.items()})
        pairs = ((acted.value, expected.value), (acted.state, expected.state), (acted.log_prob, log_prob))
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    high = 255 if dtype == "uint8" else 1
    return (high * rng.random(shape)).astype(dtype)


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


class Worker:
    """A policy worker for two actors, with slots whose observations differ from step to step."""

    def __init__(self, published: Published) -> None:
        self.published, self.shared = published, published.shared
        setup = PolicySetup(published.config, self.shared, 0, 1, 0, str(published.device))
        self.worker = PolicyWorker(setup, published.policy, self.shared.status.row("sf-policy-0-0"))
        self.slots = [self.shared.trajectories.slot(self.shared.table.slots_of(actor)[0]) for actor in (0, 1)]
        rng = np.random.default_rng(7)
        for slot in self.slots:
            for block in slot.obs.values():
                block[...] = drawn(rng, block.shape, str(block.dtype))
            slot.is_first[...] = True  # states are zeros

    def turn(self, t: int) -> None:
        """Answer both actors' requests of step ``t``."""
        for actor, slot in enumerate(self.slots):
            self.shared.to_policies[0].put(ActRequest(actor, 0, slot.index, t, t % 2, 0))
        self.worker.turn(1.0)
        assert [list(channel.get(0)) for channel in self.shared.to_actors] == [[ActReply(0, t)]] * 2

    def check(self, t: int) -> None:
        """What stands in the slots is what the published model says of their observations."""
        for slot in self.slots:
            obs = {key: torch.from_numpy(block[t]) for key, block in slot.obs.items()}
            with torch.inference_mode():
                output = self.published.model.forward(obs)
                actions = {key: torch.from_numpy(block[t]) for key, block in slot.actions.items()}
                log_prob = self.published.model.distribution(output.dist_params).log_prob(actions)
            np.testing.assert_allclose(slot.value[t], output.value.numpy(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(slot.log_prob[t], log_prob.numpy(), rtol=1e-4, atol=1e-4)
            assert (slot.policy_version[t] == self.published.version).all()


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
