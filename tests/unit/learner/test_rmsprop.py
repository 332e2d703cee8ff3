"""RMSprop takes the steps of its formulas, in torch's style and in TensorFlow's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sfactory.learner.optimizers import RMSprop

GRADIENTS = (0.5, -2.0, 1.5)
LR, ALPHA, EPS = 0.1, 0.9, 0.01


def optimizer_of(weights: list[Tensor], momentum: float, tf_style: bool) -> RMSprop:
    return RMSprop(weights, lr=LR, alpha=ALPHA, momentum=momentum, eps=EPS, tf_style=tf_style)


def steps_taken(momentum: float, tf_style: bool) -> list[float]:
    """A weight of 1 after each of three steps."""
    weight = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = optimizer_of([weight], momentum, tf_style)
    weights = []
    for gradient in GRADIENTS:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        weights.append(float(weight.detach()))
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_torchs_style_begins_at_0_and_adds_eps_to_the_root(momentum: float) -> None:
    weight, square, velocity, expected = 1.0, 0.0, 0.0, []
    for gradient in GRADIENTS:
        square = 0.9 * square + 0.1 * gradient**2
        velocity = momentum * velocity + gradient / (math.sqrt(square) + 0.01)
        weight -= 0.1 * velocity
        expected.append(weight)

    assert steps_taken(momentum, tf_style=False) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_tensorflows_style_begins_at_1_and_adds_eps_under_the_root(momentum: float) -> None:
    weight, square, velocity, expected = 1.0, 1.0, 0.0, []
    for gradient in GRADIENTS:
        square = 0.9 * square + 0.1 * gradient**2
        velocity = momentum * velocity + gradient / math.sqrt(square + 0.01)
        weight -= 0.1 * velocity
        expected.append(weight)

    assert steps_taken(momentum, tf_style=True) == pytest.approx(expected, rel=1e-12)


def test_the_first_step_of_both_styles_in_numbers() -> None:
    # 1 - 0.1 * 0.5 / (sqrt(0.1 * 0.25) + 0.01) and 1 - 0.1 * 0.5 / sqrt(0.9 + 0.1 * 0.25 + 0.01)
    assert steps_taken(0.0, tf_style=False)[0] == pytest.approx(0.702582, abs=1e-6)
    assert steps_taken(0.0, tf_style=True)[0] == pytest.approx(0.948291, abs=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_torchs_style_takes_the_steps_of_torchs_own(momentum: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)]
    mine, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(2))
    optimizers = (
        optimizer_of(mine, momentum, tf_style=False),
        torch.optim.RMSprop(theirs, lr=LR, alpha=ALPHA, momentum=momentum, eps=EPS),
    )

    for _ in range(5):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()

    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_weight_without_a_gradient_stays() -> None:
    used, unused = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = optimizer_of([used, unused], 0.5, tf_style=True)
    used.grad = torch.ones(2)

    optimizer.step()

    assert torch.equal(unused.detach(), torch.ones(2))
    assert float(used.detach()[0]) < 1.0
