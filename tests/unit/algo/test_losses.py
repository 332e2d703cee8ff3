"""Each term of the loss equals its formula, and invalid cells touch neither losses nor gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.algo.losses import (
    approx_kl,
    clip_range,
    impact_log_prob,
    kl_penalty,
    log_ratio,
    normalize,
    outside_clip,
    pg_loss,
    ppo_clip_loss,
    symmetric_kl_to_uniform,
    value_loss,
)

CLIP_RATIO = 0.25
CLIP_VALUE = 0.5

Cells = dict[str, Tensor]
Loss = Callable[[Cells], Tensor]


def ratios_of(c: Cells) -> Tensor:
    return log_ratio(c["log_prob"], c["behavior_log_prob"], c["valid"])


def clipped_loss(c: Cells) -> Tensor:
    return ppo_clip_loss(
        log_ratios=ratios_of(c), advantages=c["advantages"], valid=c["valid"], clip=clip_range(CLIP_RATIO)
    )


def clipped_value_loss(c: Cells, clip_value: float | None) -> Tensor:
    fields = {name: c[name] for name in ("values", "targets", "behavior_values", "valid")}
    return value_loss(**fields, clip_value=clip_value)


# Every loss as a function of one dict of cells, which gives one number a cell, and the field its gradient must reach.
LOSSES: dict[str, tuple[Loss, str]] = {
    "ppo_clip": (clipped_loss, "log_prob"),
    "pg": (lambda c: pg_loss(log_prob=c["log_prob"], advantages=c["advantages"], valid=c["valid"]), "log_prob"),
    "value": (lambda c: clipped_value_loss(c, None), "values"),
    "value_clipped": (lambda c: clipped_value_loss(c, CLIP_VALUE), "values"),
    "symmetric_kl": (lambda c: symmetric_kl_to_uniform(symmetric_kl=c["entropy"], valid=c["valid"]), "entropy"),
    "kl_penalty": (lambda c: kl_penalty(log_ratios=ratios_of(c)), "log_prob"),
}


def mean_over_valid(terms: Tensor, valid: Tensor) -> Tensor:
    """As LossFunction takes it: a term is 0 at invalid cells, so that its sum is that of the valid ones."""
    return terms.sum() / valid.sum().clamp(min=1)


def random_cells(seed: int) -> Cells:
    generator = torch.Generator().manual_seed(seed)
    names = ("log_prob", "behavior_log_prob", "advantages", "values", "targets", "behavior_values", "entropy")
    cells = {name: torch.randn(6, 5, generator=generator, dtype=torch.float64) for name in names}
    cells["valid"] = torch.rand(6, 5, generator=generator) > 0.3
    return cells


def with_garbage(cells: Cells, garbage: float) -> Cells:
    spoiled = {name: tensor.masked_fill(~cells["valid"], garbage) for name, tensor in cells.items() if name != "valid"}
    return {**spoiled, "valid": cells["valid"]}


def loss_and_gradients(loss: Loss, cells: Cells) -> tuple[float, dict[str, Tensor]]:
    """The loss, and the gradient of every field that has one."""
    cells = {name: tensor.clone() for name, tensor in cells.items()}
    leaves = {name: tensor.requires_grad_() for name, tensor in cells.items() if name != "valid"}
    result = mean_over_valid(loss(cells), cells["valid"])
    result.backward()
    return result.item(), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize("seed", range(5))
def test_losses_equal_their_formulas_over_the_valid_cells(seed: int) -> None:
    cells = random_cells(seed)
    c = {name: tensor[cells["valid"]].numpy() for name, tensor in cells.items()}
    ratio = np.exp(c["log_prob"] - c["behavior_log_prob"])
    clipped = np.clip(ratio, 1.0 / (1.0 + CLIP_RATIO), 1.0 + CLIP_RATIO)
    near = c["behavior_values"] + np.clip(c["values"] - c["behavior_values"], -CLIP_VALUE, CLIP_VALUE)
    squared, near_squared = (c["values"] - c["targets"]) ** 2, (near - c["targets"]) ** 2
    expected = {
        "ppo_clip": -np.minimum(ratio * c["advantages"], clipped * c["advantages"]).mean(),
        "pg": -(c["log_prob"] * c["advantages"]).mean(),
        "value": squared.mean(),
        "value_clipped": np.maximum(squared, near_squared).mean(),
        "symmetric_kl": c["entropy"].mean(),
        "kl_penalty": (ratio * np.log(ratio) - ratio + 1.0).mean(),
    }

    results = {name: mean_over_valid(loss(cells), cells["valid"]).item() for name, (loss, _) in LOSSES.items()}

    assert results == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_garbage_in_invalid_cells_changes_neither_loss_nor_gradient_of_the_network(name: str, garbage: float) -> None:
    loss, trained = LOSSES[name]
    cells = random_cells(2)
    expected, expected_gradients = loss_and_gradients(loss, cells)

    result, gradients = loss_and_gradients(loss, with_garbage(cells, garbage))

    assert result == expected
    assert list(gradients) == [trained]
    assert torch.equal(gradients[trained], expected_gradients[trained])
    assert gradients[trained][~cells["valid"]].abs().max() == 0.0
    nothing, gradients = loss_and_gradients(loss, with_garbage({**cells, "valid": cells["valid"] & False}, garbage))
    assert nothing == 0.0
    assert not gradients[trained].any()


def test_clip_range_is_symmetric_in_log_space() -> None:
    # With e = 1 the range is [1/2, 2]: gradients vanish just beyond it where the clip binds, and live inside it.
    ratios = torch.tensor([[0.49, 0.51, 1.99, 2.01]], dtype=torch.float64)
    advantages = torch.tensor([[-1.0, -1.0, 1.0, 1.0]], dtype=torch.float64)
    log_prob, valid = ratios.log().requires_grad_(), torch.ones_like(ratios, dtype=torch.bool)

    logs = log_ratio(log_prob, torch.zeros_like(ratios), valid)
    loss = ppo_clip_loss(log_ratios=logs, advantages=advantages, valid=valid, clip=clip_range(1.0)).mean()
    (gradient,) = torch.autograd.grad(loss, log_prob)

    assert loss.item() == pytest.approx(-(-0.51 - 0.5 + 1.99 + 2.0) / 4)
    assert (gradient != 0.0).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("difference", [-1e4, -1.0, -1e-4, 1e-4, 1.0, 1e4])
def test_extreme_ratio_keeps_losses_and_gradients_finite(difference: float) -> None:
    extreme, zeros = torch.full((2, 1), difference, requires_grad=True), torch.zeros(2, 1)
    valid, advantages = torch.ones(2, 1, dtype=torch.bool), torch.tensor([[-1.0], [1.0]])

    logs = log_ratio(extreme, zeros, valid)
    loss = ppo_clip_loss(log_ratios=logs, advantages=advantages, valid=valid, clip=clip_range(0.1)).sum()
    penalty = kl_penalty(log_ratios=logs).sum()

    assert math.isfinite(loss.item())
    assert 0.0 < penalty.item() < math.inf
    for value in (loss, penalty):
        (gradient,) = torch.autograd.grad(value, extreme, retain_graph=True)
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0])
def test_kl_penalty_and_its_gradient_are_the_true_ones_in_expectation(spread: float) -> None:
    # Every action comes as often as behavior takes it: means are exact expectations under behavior.
    counts = torch.tensor([1, 7, 20, 12, 10])
    behavior = (counts.double() / counts.sum()).log()
    actions = torch.repeat_interleave(torch.arange(5), counts)
    noise = torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = (behavior + spread * noise).requires_grad_()
    log_probs = logits.log_softmax(-1)

    ratios = log_ratio(log_probs[actions], behavior[actions], torch.ones_like(actions, dtype=torch.bool))
    penalties = kl_penalty(log_ratios=ratios)

    true = (log_probs.exp() * (log_probs - behavior)).sum()
    (gradient,) = torch.autograd.grad(penalties.mean(), logits, retain_graph=True)
    (true_gradient,) = torch.autograd.grad(true, logits)
    assert penalties.mean().item() == pytest.approx(true.item(), rel=1e-9, abs=1e-15)
    torch.testing.assert_close(gradient, true_gradient, rtol=1e-9, atol=1e-15)
    if not spread:
        assert penalties.abs().max() < 1e-15


def test_symmetric_kl_of_each_cell_is_bounded_by_30_before_the_mean() -> None:
    cells = torch.tensor([[10.0, 1000.0, 29.0, math.inf, 5000.0]], requires_grad=True)
    valid = torch.tensor([[True, True, True, True, False]])

    loss = mean_over_valid(symmetric_kl_to_uniform(symmetric_kl=cells, valid=valid), valid)
    (gradient,) = torch.autograd.grad(loss, cells)

    assert loss.item() == (10.0 + 30.0 + 29.0 + 30.0) / 4
    assert gradient.tolist() == [[0.25, 0.0, 0.25, 0.0, 0.0]]


def test_approx_kl_estimates_the_true_divergence_and_is_never_negative() -> None:
    torch.manual_seed(0)
    behavior, current = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.1)
    actions = behavior.sample(torch.Size((1000, 200)))
    everything = torch.ones(1000, 200, dtype=torch.bool)

    cells = approx_kl(log_ratios=log_ratio(current.log_prob(actions), behavior.log_prob(actions), everything))

    true = torch.distributions.kl_divergence(behavior, current).item()
    assert cells.mean().item() == pytest.approx(true, rel=0.05)
    assert float(cells.min()) >= 0.0


def test_cells_outside_the_range_of_the_clip_are_marked() -> None:
    ratios = torch.tensor([[0.7, 0.81, 1.24, 1.26, 5.0]])
    valid = torch.tensor([[True, True, True, True, False]])

    outside = outside_clip(log_ratios=log_ratio(ratios.log(), torch.zeros(1, 5), valid), clip=clip_range(CLIP_RATIO))

    assert outside.tolist() == [[1.0, 0.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("worker_clip", [0.5, 1.0, 2.0])
def test_the_ratio_of_impact_is_that_of_the_paper(worker_clip: float) -> None:
    cells = random_cells(0)
    pi, mu, target = (cells[name].exp() for name in ("log_prob", "behavior_log_prob", "entropy"))

    reference = impact_log_prob(
        target_log_prob=target.log(), behavior_log_prob=cells["behavior_log_prob"], worker_clip=worker_clip
    )
    ratio = log_ratio(cells["log_prob"], reference, cells["valid"]).exp()

    expected = (mu / target).clamp(0.0, worker_clip) * (pi / mu)
    torch.testing.assert_close(ratio[cells["valid"]], expected[cells["valid"]], rtol=1e-12, atol=0.0)
    assert 0.0 < float((mu / target > worker_clip).double().mean()) < 1.0


@pytest.mark.parametrize("seed", range(3))
def test_normalized_advantages_have_mean_0_and_deviation_1_over_the_valid_cells(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, 5, generator=generator, dtype=torch.float64) * 3.0 + 100.0
    valid = torch.rand(7, 5, generator=generator) > 0.4
    chosen = x[valid].numpy()

    normalized = normalize(x.masked_fill(~valid, math.inf), valid)

    assert normalized.dtype == torch.float64
    np.testing.assert_allclose(normalized[valid], (chosen - chosen.mean()) / chosen.std(), rtol=1e-5)
    assert normalized[~valid].abs().max() == 0.0


@pytest.mark.parametrize("num_valid", [0, 1])
def test_one_or_no_valid_cell_gives_zeros(num_valid: int) -> None:
    advantages = torch.full((3, 2), math.nan)
    valid = torch.zeros(3, 2, dtype=torch.bool)
    advantages.view(-1)[:num_valid], valid.view(-1)[:num_valid] = 7.0, True

    assert torch.equal(normalize(advantages, valid), torch.zeros(3, 2))


def test_constant_advantages_are_not_blown_up() -> None:
    assert normalize(torch.full((64, 64), 0.1), torch.ones(64, 64, dtype=torch.bool)).abs().max() < 0.1
