"""What all unit tests share: torch computes with one thread."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tensors of a few hundred numbers gain nothing by a second thread, and on a busy machine they wait long for it."""
    torch.set_num_threads(1)
