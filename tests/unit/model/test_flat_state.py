"""A model's tensors are views of one block of bytes, and remain so while the model is trained and loaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from tests.support.parts import tiny_model


class Mixed(nn.Module):
    """Several dtypes, sizes that are no multiple of a cache line, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)
        self.register_buffer("count", torch.tensor(2**40))
        self.register_buffer("mean", torch.arange(7, dtype=torch.float64))
        self.register_buffer("flag", torch.tensor([True, False, True]))


def assert_views(flat: FlatState, module: nn.Module) -> None:
    start, end = flat.block.data_ptr(), flat.block.data_ptr() + flat.block.numel()
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert start <= tensor.data_ptr() < end, name


def test_block_carries_every_dtype_to_another_module() -> None:
    module = Mixed()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    flat, twin = FlatState(module), Mixed()

    FlatState(twin).adopt(torch.from_numpy(flat.to_host().copy()))

    assert_views(flat, module)
    for name, tensor in before.items():
        for other in (module.state_dict()[name], twin.state_dict()[name]):
            assert torch.equal(other, tensor), name
            assert other.dtype == tensor.dtype


def test_tensors_start_on_cache_lines_and_do_not_overlap() -> None:
    module = Mixed()
    flat = FlatState(module)
    start = flat.block.data_ptr()

    spans = sorted((t.data_ptr() - start, t.numel() * t.element_size()) for t in module.state_dict().values())

    assert all(offset % 64 == 0 for offset, _ in spans)
    assert all(offset + size <= later for (offset, size), (later, _) in itertools.pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= flat.block.numel() == flat_bytes(module)
    with torch.device("meta"):
        assert flat_bytes(Mixed()) == flat.block.numel()


def train(model: ActorCritic, fused: bool) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(model({"obs": torch.ones(4, 3)}).value.sum())
        optimizer.step()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: train(model, fused=False),
        lambda model: train(model, fused=True),
        lambda model: model.load_state_dict(tiny_model(seed=2).state_dict()),
        lambda model: model.eval(),
    ],
    ids=["optimizer", "fused optimizer", "load_state_dict", "eval"],
)
def test_tensors_remain_views(change: Callable[[ActorCritic], object]) -> None:
    model, twin = tiny_model(seed=1), tiny_model(seed=99)
    flat = FlatState(model)

    change(model)

    assert_views(flat, model)
    FlatState(twin).adopt(torch.from_numpy(flat.to_host().copy()))
    assert torch.equal(twin({"obs": torch.ones(1, 3)}).value, model({"obs": torch.ones(1, 3)}).value)


@pytest.mark.parametrize("name", ["linear.weight", "linear.bias", "mean"])
def test_single_number_that_is_not_finite_is_found(name: str) -> None:
    module = Mixed()
    flat = FlatState(module)
    numbers = module.state_dict()[name].view(-1)
    inf = float("inf")

    # Infinities of both signs do not cancel, and sums of large finite numbers overflow.
    for values, finite in (([1.0], True), ([float("nan")], False), ([inf], False), ([inf, -inf], False)):
        numbers[-len(values) :] = torch.tensor(values, dtype=numbers.dtype)
        assert flat.is_finite(float(flat.sum())) is finite
    numbers.fill_(3e38)
    assert flat.is_finite(float(flat.sum()))


class Masked(Mixed):
    """Has constants that are infinite, between others."""

    later: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("later", torch.ones(3))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))
        self.fixed = nn.Parameter(torch.full((2,), float("inf")), requires_grad=False)


def test_constants_that_are_not_finite_do_not_count_and_are_carried_along() -> None:
    module, twin = Masked(), Masked()
    flat = FlatState(module)

    assert flat.is_finite(float(flat.sum()))
    assert float(flat.sum()) == pytest.approx(sum(float(each.sum()) for each in module.linear.parameters()) + 24)
    assert [len(each) for each in flat.filled(["mask", "fixed"], 1.0)] == [len(each) for each in flat.floats]
    assert not any(each.any() for each in flat.filled(["mask", "fixed"], 1.0))
    twin.mask.zero_()
    FlatState(twin).adopt(flat.block.clone())
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in twin.state_dict().items())
    for tensor in (module.later, module.linear.weight.data, module.linear.bias.data):
        tensor[0] = float("inf")
        assert not flat.is_finite(float(flat.sum()))
        tensor[0] = 1.0
        assert flat.is_finite(float(flat.sum()))


class Tied(nn.Module):
    """The embedding and the layer after it share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 3), nn.Linear(3, 4)
        self.head.weight = self.embedding.weight


def test_tied_weights_have_one_place_under_all_their_names() -> None:
    module = Tied()
    flat = FlatState(module)
    with torch.no_grad():
        module.embedding.weight.fill_(2.0)
        module.head.bias.fill_(1.0)

    saved = flat.state_dict(torch.from_numpy(flat.to_host().copy()))

    assert_views(flat, module)
    assert flat_bytes(module) == 128
    assert torch.equal(saved["embedding.weight"], torch.full((4, 3), 2.0))
    assert torch.equal(saved["head.weight"], torch.full((4, 3), 2.0))
    assert float(flat.sum()) == 4 * 3 * 2 + 4
    assert float(flat.filled(["head.weight"], 1.0)[0].sum()) == 4 * 3  # what Averaging multiplies by
    with torch.device("meta"):
        assert flat_bytes(Tied()) == 128


@pytest.mark.gpu
def test_copy_of_a_block_on_a_gpu_waits_for_the_device() -> None:
    module = Mixed().to("cuda")
    flat = FlatState(module)
    before = flat.to_host().copy()
    with torch.no_grad():
        torch.cuda._sleep(200_000_000)  # clock cycles: a reader that does not wait gets the old bytes
        module.linear.weight.add_(1.0)

    found = flat.to_host().copy()

    assert np.array_equal(found, flat.block.cpu().numpy())
    assert not np.array_equal(found, before)
