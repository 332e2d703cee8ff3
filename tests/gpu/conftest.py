"""What tests that need a GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sfactory.model.torch_state import OwnTorchState
from tests.support.gpu import GPU_TESTS_ON


@pytest.fixture
def device() -> torch.device:
    """What a test computes on."""
    return torch.device(GPU_TESTS_ON)


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """float32 is float32, not TF32, unless the test itself allows that."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = torch.get_float32_matmul_precision()
    OwnTorchState.set_matmul_precision("highest")
    yield
    OwnTorchState.set_matmul_precision(before)


@pytest.fixture(autouse=True)
def passes_are_recorded(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A pass that cannot be recorded is computed without a graph, and a test would not notice."""
    yield
    assert "actions are chosen kernel by kernel" not in caplog.text
