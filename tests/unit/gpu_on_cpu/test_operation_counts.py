"""How many kernels, waits and copies an update and a pass take: a change that adds some has to be meant."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.inference.cuda_graphs import FixedShapes, captured_on
from sfactory.learner.staging import DeviceSlot, Staging
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.system.cuda_graphs import WARM_UPS, GraphRecorder
from sfactory.system.gpu import use_device
from tests.support.gpu import made_up_batch, spec_of
from tests.support.lone_learner import LoneLearner
from tests.support.parts import VECTOR
from tests.support.simulated_gpu import SimulatedGpu

STEPS = 32


class Most(NamedTuple):
    """Kernels of an update over rollouts of STEPS steps, and of a pass: one by one, and launches with graphs."""

    name: str
    kind: str
    model: dict[str, Any]
    update: int
    update_with_graphs: int
    acting: int
    acting_with_graphs: int


# Lower a number when there are fewer. Pass by pass, the normalizers' statistics are part of an update.
MOST = (
    Most("Nature CNN", "images", {"encoder_conv_architecture": "convnet_atari", "obs_scale": 255.0}, 436, 82, 23, 2),
    Most("MLP", "vector", {"encoder_mlp_layers": (64, 64)}, 428, 82, 18, 2),
    Most("GRU", "vector", {"encoder_mlp_layers": (64, 64), "use_rnn": True, "rnn_size": 64}, 847, 83, 21, 3),
)


def kernels_of_an_update(most: Most, gpu: SimulatedGpu, device: torch.device, *, graphs: bool) -> int:
    torch.manual_seed(1)
    config = ModelConfig(**most.model)
    model = ActorCritic(spec_of(most.kind, config), config).to(device)
    FlatState(model)
    recorder = GraphRecorder(device) if graphs else None
    learner = LearnerConfig(batch_size=STEPS)
    settings: dict[str, Any] = {"seed": 1, "policy": 0, "total_env_steps": 10**9, "recorder": recorder}
    trainer = Trainer(model, AlgoConfig(), OptimConfig(), learner, **settings)
    batch = made_up_batch(model.spec, model.state_size, steps=STEPS, rows=1).map(lambda tensor: tensor.to(device))
    for _ in range(WARM_UPS + 1 if graphs else 1):
        trainer.train(batch)
    gpu.clear()
    trainer.train(batch)
    return sum(gpu.kernels.values())


def kernels_of_a_pass(most: Most, gpu: SimulatedGpu, device: torch.device, *, graphs: bool) -> int:
    config = ModelConfig(**most.model)
    model = ActorCritic(spec_of(most.kind, config), config).to(device).eval()
    act = FixedShapes(model.act, captured_on(device)).act if graphs else model.act
    obs = {key: torch.zeros(4, *leaf.shape, dtype=getattr(torch, leaf.dtype)) for key, leaf in model.spec.obs}
    there = {key: tensor.to(device) for key, tensor in obs.items()}
    with torch.inference_mode():
        act(there, model.fresh_state(4))
        state = model.fresh_state(4)
        gpu.clear()
        act(there, state)
    return sum(gpu.kernels.values())


@pytest.mark.parametrize("most", MOST, ids=[most.name for most in MOST])
def test_updates_and_passes_take_no_more_kernels(most: Most, gpu: SimulatedGpu, device: torch.device) -> None:
    use_device(device)
    updates = [kernels_of_an_update(most, gpu, device, graphs=graphs) for graphs in (False, True)]
    passes = [kernels_of_a_pass(most, gpu, device, graphs=graphs) for graphs in (False, True)]

    found = most._replace(
        update=updates[0], update_with_graphs=updates[1], acting=passes[0], acting_with_graphs=passes[1]
    )

    assert all(mine <= limit for mine, limit in zip(found[3:], most[3:], strict=True)), found


def test_a_dataset_of_a_run_waits_only_for_results_lags_and_publication(
    gpu: SimulatedGpu, device: torch.device
) -> None:
    use_device(device)
    learner = LoneLearner(device=str(device), publish_interval=1)
    area = Staging(VECTOR, learner.layout, pin=True)
    area.scalars["valid"].fill_(True)
    slot = DeviceSlot(VECTOR, learner.layout, device, replay=False)
    for _ in range(2):  # the first update of all observes before it
        gpu.clear()
        slot.load(area)
        loading = gpu.copies.copy()
        gpu.clear()
        slot.before_reading()
        learner.learning.learn(slot)
        slot.after_reading()

    assert loading == {("to device", True): sum(tensor.numel() > 0 for tensor in area.tensors())}
    assert gpu.waits_by_function() == {
        "learner/learner.py _lag_sums": 1,
        "learner/train_stats.py on_host": 1,
        "model/flat_state.py is_finite": 1,
        "model/flat_state.py to_host": 1,
    }
    # Lags, and whether weights are finite, are read as numbers.
    assert gpu.copies == {("to host", False): 2, ("to host", True): 1}
