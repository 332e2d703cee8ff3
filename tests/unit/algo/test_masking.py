"""Masked statistics see the valid cells alone and survive having one or none of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sfactory.algo.losses import masked_mean, masked_mean_std, normalize


@pytest.mark.parametrize("seed", range(5))
def test_mean_and_deviation_are_those_of_the_valid_cells(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, 5, generator=generator, dtype=torch.float64) * 3.0 + 4.0
    valid = torch.rand(7, 5, generator=generator) > 0.4
    chosen = x[valid].numpy()

    mean, std = masked_mean_std(x.masked_fill(~valid, math.nan), valid)

    np.testing.assert_allclose([mean, std], [chosen.mean(), chosen.std()], rtol=1e-12)
    assert mean.dtype == torch.float64


def test_normalized_valid_cells_have_mean_0_and_deviation_1_and_the_others_are_0() -> None:
    torch.manual_seed(0)
    advantages, valid = torch.randn(32, 8) * 5.0 + 100.0, torch.rand(32, 8) > 0.3
    advantages[~valid] = math.inf

    result = normalize(advantages, valid)

    assert abs(result[valid].mean().item()) < 1e-4
    assert abs(result[valid].std(correction=0).item() - 1.0) < 1e-4
    assert result[~valid].abs().max() == 0.0


@pytest.mark.parametrize("num_valid", [0, 1])
def test_one_or_no_valid_cell_gives_zeros(num_valid: int) -> None:
    advantages = torch.full((3, 2), math.nan)
    valid = torch.zeros(3, 2, dtype=torch.bool)
    advantages.view(-1)[:num_valid], valid.view(-1)[:num_valid] = 7.0, True

    mean, std = masked_mean_std(advantages, valid)

    assert (mean.item(), std.item()) == (7.0 * num_valid, 0.0)
    assert torch.equal(normalize(advantages, valid), torch.zeros(3, 2))


def test_constant_advantages_are_not_blown_up() -> None:
    advantages = torch.full((64, 64), 0.1)

    assert normalize(advantages, torch.ones(64, 64, dtype=torch.bool)).abs().max() < 0.1


def test_mean_over_no_valid_cell_is_0_with_zero_gradient() -> None:
    x = torch.full((2, 2), math.nan, requires_grad=True)

    mean = masked_mean(x, torch.zeros(2, 2, dtype=torch.bool))
    mean.backward()

    assert mean.item() == 0.0
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(2, 2))
