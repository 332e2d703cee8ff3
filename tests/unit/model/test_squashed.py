"""The squashed Gaussian has the exact density, entropy and divergence of the tanh of normals."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution, kl_divergence

from sfactory.model.distributions import ActionDistribution
from sfactory.spec import BoxHead

HEAD = BoxHead("arm", (2,), "float32", (-3.0, 0.0), (1.0, 100.0)).normalized(squashed=True)


def test_log_prob_is_the_density_of_the_squashed_action_and_finite_far_out() -> None:
    torch.manual_seed(1)
    params = torch.randn(16, 4, dtype=torch.float64)
    mean, log_std = params.chunk(2, dim=-1)
    normal = Independent(Normal(mean, log_std.exp()), 1)
    ours = ActionDistribution((HEAD,), params)

    actions = ours.sample_with_log_prob()[0]["arm"].clamp(
        -4.0, 4.0
    )  # the reference inverts the tanh, which rounding prevents further out

    theirs = TransformedDistribution(normal, [TanhTransform()]).log_prob(torch.tanh(actions))
    torch.testing.assert_close(ours.log_prob({"arm": actions}), theirs)
    far = ours.log_prob({"arm": torch.full_like(actions, 500.0)})
    assert torch.isfinite(far).all()


def test_entropy_is_the_mean_of_the_negative_log_prob() -> None:
    torch.manual_seed(2)
    for log_std in (-3.0, -1.0, 0.0):
        params = torch.tensor([[0.3, -1.0, log_std, log_std]], dtype=torch.float64).expand(400_000, 4)
        ours = ActionDistribution((HEAD,), params)

        estimate = -ours.sample_with_log_prob()[1].mean()

        assert float(ours.entropy()[0]) == pytest.approx(float(estimate), abs=0.01)


def test_entropy_has_a_gradient_and_the_divergence_is_that_of_the_normals() -> None:
    torch.manual_seed(3)
    params, other = torch.randn(2, 8, 4, dtype=torch.float64).unbind(0)
    params.requires_grad_()
    ours, theirs = ActionDistribution((HEAD,), params), ActionDistribution((HEAD,), other)

    (gradient,) = torch.autograd.grad(ours.entropy().sum(), params)

    assert torch.isfinite(gradient).all()
    assert (gradient != 0.0).all()
    normals = [Independent(Normal(p[:, :2], p[:, 2:].exp()), 1) for p in (params, other)]
    torch.testing.assert_close(ours.kl(theirs), kl_divergence(*normals))


def test_dimensions_without_two_bounds_are_not_squashed() -> None:
    head = BoxHead("arm", (2,), "float32", (0.0, 0.0), (math.inf, 4.0)).normalized(squashed=True)
    ours = ActionDistribution((head,), torch.zeros(1, 4))

    log_prob = float(ours.log_prob({"arm": torch.tensor([[2.0, 0.5]])}))

    normal = -0.5 * (2.0**2 + 0.5**2) - math.log(2.0 * math.pi)
    assert log_prob == pytest.approx(normal - math.log(1.0 - math.tanh(0.5) ** 2), abs=1e-5)
