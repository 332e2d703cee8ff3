"""How many kernels, waits and copies an update and a pass take: a change that adds some has to be meant."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.inference.cuda_graphs import FixedShapes
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
from tests.support.stream_order import ASLEEP
from tests.support.updates import RESULTS, Case, learner_of

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
    Most("Nature CNN", "images", {"encoder_conv_architecture": "convnet_atari", "obs_scale": 255.0}, 444, 75, 25, 2),
    Most("MLP", "vector", {"encoder_mlp_layers": (64, 64)}, 428, 74, 18, 2),
    Most("GRU", "vector", {"encoder_mlp_layers": (64, 64), "use_rnn": True, "rnn_size": 64}, 847, 74, 21, 3),
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
    act = FixedShapes(model.act, GraphRecorder(device)).act if graphs else model.act
    obs = {key: torch.zeros(4, *leaf.shape, dtype=getattr(torch, leaf.dtype)) for key, leaf in model.spec.obs}
    there = {key: tensor.to(device) for key, tensor in obs.items()}
    with torch.inference_mode():
        act(there, model.fresh_state(4))
        state = model.fresh_state(4)
        gpu.clear()
        act(there, state)
    assert not gpu.wide.total()  # statistics are in float64, but not what normalizes
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


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_a_recorded_update_copies_a_minibatch_once_into_its_inputs(
    shuffled: bool, gpu: SimulatedGpu, device: torch.device
) -> None:
    use_device(device)
    learner = {"num_batches_per_epoch": 2, "batch_size": 64, "shuffle_minibatches": True} if shuffled else {}
    case = Case("", algo={"with_vtrace": False}, learner={"batch_size": 128, **learner})
    trainer = learner_of(case, device, GraphRecorder(device))
    batch = made_up_batch(trainer.model.spec, 0).map(lambda tensor: tensor.to(device))
    for _ in range(WARM_UPS + 2):
        gpu.clear()
        trainer.train(batch)

    copied = [tensor.dtype for tensor in batch.tensors() if tensor.numel()] + 2 * [torch.float32]  # two targets
    updates = 2 if shuffled else 1
    assert gpu.kernels["graph"] == updates
    assert gpu.kernels["index_select"] == (updates * len(copied) if shuffled else 0)
    assert gpu.kernels["_foreach_copy_"] == (0 if shuffled else len(set(copied)))
    assert not gpu.kernels["index"]


@pytest.mark.parametrize("adapts", [False, True], ids=["constant rate", "rate by the KL of a pass"])
def test_a_dataset_of_a_run_waits_once_for_results_lags_and_weights(
    adapts: bool, gpu: SimulatedGpu, device: torch.device
) -> None:
    use_device(device)
    schedule: dict[str, Any] = {"lr_schedule": "kl_adaptive_epoch"} if adapts else {}
    learner = LoneLearner(device=str(device), publish_interval=1, **schedule)
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
    learner.learning.report()
    assert gpu.waits_by_function() == {RESULTS: 1}
    assert {what for what, _ in gpu.waits} == {ASLEEP}
    # Results, lags, weights, and their sum, which tells whether they are finite.
    assert gpu.copies == {("to host", True): 4}
