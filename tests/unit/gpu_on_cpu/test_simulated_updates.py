"""Learning on a simulated GPU gives the CPU's weights, and waits for the device only where that is admitted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.inference.policy_worker import PolicySetup
from sfactory.learner.trainer import Trainer
from sfactory.model.precision import Conv2d
from sfactory.system.cuda_graphs import WARM_UPS, GraphRecorder
from sfactory.system.gpu import use_device
from tests.support.acting import NATURE, Published
from tests.support.gpu import made_up_batch
from tests.support.lone_learner import LoneLearner
from tests.support.parts import CPU
from tests.support.ranks import LateSums
from tests.support.simulated_gpu import SimulatedGpu
from tests.support.updates import CASES, RESULTS, RNN, Case, learner_of, weights_of


def learn(case: Case, device: torch.device, datasets: int, gpu: SimulatedGpu, *, graphs: bool = False) -> Trainer:
    """From different datasets, which have come to the device before; what ``gpu`` counts begins then."""
    trainer = learner_of(case, device, GraphRecorder(device) if graphs else None)
    spec, size = trainer.model.spec, trainer.model.state_size
    batches = [made_up_batch(spec, size, case.agents, case.steps, case.rows, seed) for seed in range(datasets)]
    batches = [batch.map(lambda tensor: tensor.to(device)) for batch in batches]
    gpu.clear()
    for batch in batches:
        trainer.train(batch)
    return trainer


def assert_equal(found: Tensor, wanted: Tensor, case: Case) -> None:
    # Convolutions over images in another layout of memory add up in another order.
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 if case.has_images else 1e-6)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_weights_are_those_of_the_cpu_and_nothing_waits_between_minibatches(
    case: Case, gpu: SimulatedGpu, device: torch.device
) -> None:
    wanted = learn(case, CPU, 2, gpu)
    use_device(device)

    found = learn(case, device, 2, gpu)

    epochs = case.learner.get("num_epochs", 1)
    per_dataset = {RESULTS: epochs, **case.waits}
    assert gpu.waits_by_function() == {place: 2 * number for place, number in per_dataset.items()}
    assert_equal(weights_of(found), weights_of(wanted), case)
    assert {tensor.device for tensor in found.model.state_dict().values()} == {device}


GRAPHS = (
    Case("MLP"),
    Case("GRU", model=RNN),
    Case("fp16", dtype=torch.float16, model={"encoder_mlp_layers": (16, 16)}),
)


@pytest.mark.parametrize("case", GRAPHS, ids=[case.name for case in GRAPHS])
def test_graphs_learn_what_the_cpu_learns_and_capture_no_wait(
    case: Case, gpu: SimulatedGpu, device: torch.device
) -> None:
    wanted = learn(case, CPU, WARM_UPS + 3, gpu)
    use_device(device)

    found = learn(case, device, WARM_UPS + 3, gpu, graphs=True)

    assert gpu.kernels["graph"] == 3
    assert gpu.waits_by_function() == {RESULTS: WARM_UPS + 3}
    assert_equal(weights_of(found), weights_of(wanted), case)


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        ({}, ""),
        ({"optimizer": "rmsprop"}, "--optimizer=rmsprop computes with rates on the host"),
        ({"use_rnn": True, "use_cpc": True}, "--use_cpc and --rnd draw random numbers"),
        ({"encoder": "tests.support.networks:Mlp"}, "--encoder is not built in"),
    ],
    ids=str,
)
def test_updates_that_cannot_be_recorded_are_computed_kernel_by_kernel_and_that_is_said(
    flags: dict[str, Any], cause: str, gpu: SimulatedGpu, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    use_device(device)

    learner = LoneLearner(device=str(device), cuda_graphs=True, **flags)

    assert (learner.learning.trainer._recorded is None) == bool(cause)
    texts = [record.getMessage() for record in caplog.records if "kernel by kernel, since" in record.getMessage()]
    assert len(texts) == bool(cause)
    assert all(cause in text for text in texts)


@pytest.mark.parametrize("deterministic", [False, True])
def test_convolutions_read_channels_last_and_are_timed_unless_determinism_is_asked_for(
    deterministic: bool, gpu: SimulatedGpu, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(device)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
    forward, rearranged = Conv2d.forward, []

    def watched(layer: Conv2d, x: Tensor, factor: float = 1.0) -> Tensor:
        rearranged.append(not x.is_contiguous(memory_format=torch.channels_last))
        return forward(layer, x, factor)

    monkeypatch.setattr(Conv2d, "forward", watched)
    LoneLearner(device=str(device), serial_mode=True, cuda_graphs=True)
    published = Published(device, "images", **NATURE)
    for graphs, serial in ((False, False), (True, True), (True, False)):  # without graphs: passes of any number of rows
        config = config_of({**NATURE, "env": "any", "cuda_graphs": graphs, "serial_mode": serial})
        assert not torch.backends.cudnn.benchmark
        PolicySetup(config, published.shared, 0, 0, 0, str(device)).make_policy()
    assert torch.backends.cudnn.benchmark is not deterministic
    torch.backends.cudnn.benchmark = False
    LoneLearner(device=str(device))
    assert torch.backends.cudnn.benchmark is not deterministic
    published.act(3)
    learn(Case("", "images"), device, 1, gpu)

    assert len(rearranged) == 6
    assert not any(rearranged)


def test_several_ranks_wait_for_results_alone_once_they_have_counted(gpu: SimulatedGpu, device: torch.device) -> None:
    use_device(device)
    case = Case("", model={"normalize_input": True, "normalize_returns": True})
    trainer = learner_of(case, device, ranks=LateSums())
    batch = made_up_batch(trainer.model.spec, 0).map(lambda tensor: tensor.to(device))
    for _ in range(2):  # in the second one the host sees that rows were counted in the first
        trainer.train(batch)
    gpu.clear()

    for _ in range(2):
        trainer.train(batch)

    assert gpu.waits_by_function() == {RESULTS: 2}
