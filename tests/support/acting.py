"""Policies that act with published weights on any device, and a policy worker with requests to answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.policy_worker import PolicySetup, PolicyWorker
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.objects import SharedObjects
from sfactory.spec import EnvSpec
from tests.support.gpu import spec_of
from tests.support.parts import small_run

T = 4
RNN = {"use_rnn": True, "rnn_size": 8}
GRAPHS: dict[str, Any] = {"cuda_graphs": True}
NATURE = {
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": (64,),
    "normalize_input": False,
    "obs_scale": 255.0,
}


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
