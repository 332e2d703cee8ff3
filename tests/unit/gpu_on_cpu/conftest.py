"""What tests on the simulated GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sfactory.model.torch_state import OwnTorchState
from tests.support.simulated_cuda import simulated
from tests.support.simulated_gpu import SimulatedGpu

GPU = torch.device("cuda:1")  # not the one that torch takes where nothing is said


@pytest.fixture
def device() -> torch.device:
    """What a test computes on, once it has chosen it."""
    return GPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    """The machine's GPUs. The CPU computes with the kernels that stand in for the GPU's, and not with numpy."""
    monkeypatch.setattr("sfactory.model.layers._NUMPY_PAYS_UP_TO_THREADS", 0)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = torch.get_float32_matmul_precision()
    with simulated(monkeypatch) as made:
        yield made
    OwnTorchState.set_matmul_precision(before)  # --amp lowers it for the process
