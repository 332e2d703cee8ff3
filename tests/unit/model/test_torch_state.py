"""What an env's code sets for all of torch does not reach acting and learning, and is there again afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from sfactory.model.torch_state import OwnTorchState

MEDDLING: dict[str, Callable[[], object]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "gradients off": lambda: torch.set_grad_enabled(False),
    "threads": lambda: torch.set_num_threads(2),
    "default device": lambda: torch.set_default_device("meta"),
    "inference mode": lambda: _enter(torch.inference_mode()),
    "autocast": lambda: _enter(torch.autocast("cpu", dtype=torch.bfloat16)),
    "matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "deterministic algorithms, warn": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
}
LEFT_OPEN = contextlib.ExitStack()


def _enter(context: contextlib.AbstractContextManager[object]) -> None:
    LEFT_OPEN.enter_context(context)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    LEFT_OPEN.close()
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_num_threads(1)
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]  # torch.backends has a class of its own
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)


def facts() -> tuple[object, ...]:
    """How torch computes now."""
    made = torch.ones(2, 2, requires_grad=not torch.is_inference_mode_enabled())
    product = made @ made
    return (
        made.dtype,
        made.device.type,
        made.is_inference(),
        product.dtype,
        product.requires_grad,
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.get_deterministic_debug_mode(),
    )


@pytest.mark.parametrize("what", MEDDLING)
def test_what_an_env_sets_or_leaves_on_holds_outside_alone(what: str) -> None:
    own = facts()
    MEDDLING[what]()
    theirs = facts()
    assert theirs != own

    for _ in range(2):
        with OwnTorchState():
            assert facts() == own
        assert facts() == theirs


def test_everything_at_once_is_kept_out_and_restored() -> None:
    own = facts()
    for meddle in MEDDLING.values():
        meddle()
    theirs = facts()

    with OwnTorchState(), OwnTorchState():
        assert facts() == own
    assert facts() == theirs


def test_a_device_that_is_chosen_inside_holds_although_the_env_has_set_a_default_device() -> None:
    torch.set_default_device("cpu")

    with OwnTorchState(), torch.device("meta"):
        assert torch.ones(2).device.type == "meta"  # as the weights of a plan, which are to take no memory
    assert torch.get_default_device().type == torch.ones(2).device.type == "cpu"


def test_a_precision_that_an_env_sets_for_a_backend_is_no_error() -> None:
    torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]

    with OwnTorchState():
        assert torch.get_float32_matmul_precision() == "highest"
    with OwnTorchState():
        pass


def test_the_precision_of_a_run_holds_inside() -> None:
    try:
        OwnTorchState.set_matmul_precision("high")
        torch.set_float32_matmul_precision("medium")
        with OwnTorchState():
            assert torch.get_float32_matmul_precision() == "high"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        OwnTorchState.set_matmul_precision("highest")
