"""The action distribution agrees with torch.distributions, for each head and for all heads together."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution, kl_divergence

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead
from sfactory.model.distributions import FEW_CHOICES, ActionDistribution, num_params, require_discrete

FIRE = DiscreteHead("fire", 2)
MOVE = DiscreteHead("move", 5, start=3)
LOOK = DiscreteHead("look", FEW_CHOICES + 4)
ARM = BoxHead("arm", (2,), "float32", (-3.0, 0.0), (1.0, 100.0)).normalized(squashed=True)
STEER = BoxHead("steer", (3,), "float32", (-1.0,) * 3, (1.0,) * 3)
MIXED: tuple[ActionHead, ...] = (MOVE, STEER, FIRE)
ONLY = DiscreteHead("only", 1)
DISCRETE: list[tuple[ActionHead, ...]] = [(ONLY,), (FIRE,), (MOVE,), (LOOK,), (MOVE, FIRE)]
BATCH = 64

Reference = Categorical | Independent


def reference(head: ActionHead, params: Tensor) -> Reference:
    if isinstance(head, DiscreteHead):
        return Categorical(logits=params)
    mean, log_std = params.chunk(2, dim=-1)
    return Independent(Normal(mean, log_std.exp()), 1)


def references(heads: tuple[ActionHead, ...], params: Tensor) -> dict[str, Reference]:
    pieces = params.split([num_params((head,)) for head in heads], dim=-1)
    return {head.key: reference(head, piece) for head, piece in zip(heads, pieces, strict=True)}


def total(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0)


@pytest.mark.parametrize("heads", [*DISCRETE, (STEER,), MIXED])
def test_log_prob_and_entropy_and_gradients_equal_those_of_torch(heads: tuple[ActionHead, ...]) -> None:
    torch.manual_seed(1)
    params = torch.randn(BATCH, num_params(heads), dtype=torch.float64, requires_grad=True)
    ours, theirs = ActionDistribution(heads, params), references(heads, params)
    actions = ours.sample_with_log_prob()[0]

    found = ours.log_prob(actions), ours.entropy()
    expected = (
        total([p.log_prob(actions[k]) for k, p in theirs.items()]),
        total([p.entropy() for p in theirs.values()]),
    )

    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(total(list(terms)).square().sum(), params) for terms in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_sample_comes_with_its_log_prob_and_without_gradient() -> None:
    torch.manual_seed(2)
    distribution = ActionDistribution(MIXED, torch.randn(BATCH, num_params(MIXED), requires_grad=True))

    actions, log_prob = distribution.sample_with_log_prob()

    assert torch.equal(log_prob, distribution.log_prob(actions))
    assert log_prob.requires_grad
    assert not any(action.requires_grad for action in actions.values())


@pytest.mark.parametrize("head", [MOVE, LOOK])
@pytest.mark.parametrize("shift", range(5))
def test_choices_are_drawn_with_their_probabilities(head: DiscreteHead, shift: int) -> None:
    torch.manual_seed(3)
    probs = F.pad(torch.tensor([0.5, 0.03, 0.0, 0.27, 0.2]).roll(shift), (0, head.n - 5))
    samples = 200_000
    distribution = ActionDistribution((head,), probs.log().clamp(min=-1e4).expand(samples, -1))

    counts = torch.bincount(distribution.sample_with_log_prob()[0][head.key], minlength=head.n)

    # Five standard deviations of a binomial count at its widest, p = 1/2.
    assert (counts / samples - probs).abs().max() < 5.0 * math.sqrt(0.25 / samples)
    assert not bool(counts[probs == 0.0].any())


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 3), (1.0 - 2.0**-24, 1)])
def test_extreme_random_numbers_draw_possible_choices(
    uniform: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform))
    # Choices 0 and 4 are impossible, and the probabilities of 1 to 3 do not add up to 1 exactly.
    logits = torch.tensor([[-200.0, 0.1, 0.3, 0.7, -200.0]])

    action = ActionDistribution((MOVE,), logits).sample_with_log_prob()[0]["move"]

    assert action.tolist() == [expected]


def test_box_samples_have_their_mean_and_deviation() -> None:
    torch.manual_seed(5)
    mean, std = torch.tensor([-2.0, 0.0, 7.0]), torch.tensor([0.1, 1.0, 3.0])
    samples = 100_000
    distribution = ActionDistribution((STEER,), torch.cat([mean, std.log()]).expand(samples, -1))

    actions = distribution.sample_with_log_prob()[0]["steer"]

    assert bool(((actions.mean(0) - mean).abs() < 5.0 * std / math.sqrt(samples)).all())
    torch.testing.assert_close(actions.std(0), std, rtol=0.02, atol=0.0)


def test_mode_is_the_most_probable_action() -> None:
    params = torch.tensor([[0.0, 9.0, 1.0, 2.0, 3.0, 0.1, 0.2, 0.3, -1.0, -1.0, -1.0, 4.0, 2.0]])

    actions = ActionDistribution(MIXED, params).mode()

    assert actions["move"].tolist() == [1]
    assert torch.equal(actions["steer"], params[:, 5:8])
    assert actions["fire"].tolist() == [0]


def test_standard_deviation_is_bounded() -> None:
    log_stds = torch.tensor([[-50.0, -50.0, -50.0], [50.0, 50.0, 50.0]])
    distribution = ActionDistribution((STEER,), torch.cat([torch.zeros(2, 3), log_stds], dim=1))

    unit = 0.5 + 0.5 * math.log(2.0 * math.pi)
    torch.testing.assert_close(distribution.entropy(), 3.0 * (unit + torch.tensor([1e-4, 1e4]).log()))


@pytest.mark.parametrize("heads", DISCRETE)
def test_symmetric_kl_to_uniform_is_the_mean_of_both_divergences(heads: tuple[ActionHead, ...]) -> None:
    torch.manual_seed(6)
    params = 2.0 * torch.randn(BATCH, num_params(heads), dtype=torch.float64)
    theirs, uniform = references(heads, params), references(heads, torch.zeros_like(params))

    divergence = ActionDistribution(heads, params).symmetric_kl_to_uniform()

    both = [0.5 * (kl_divergence(p, uniform[k]) + kl_divergence(uniform[k], p)) for k, p in theirs.items()]
    torch.testing.assert_close(divergence, total(both))
    assert ActionDistribution(heads, torch.zeros_like(params)).symmetric_kl_to_uniform().abs().max() < 1e-15


def test_divergence_of_unsuitable_heads_is_refused() -> None:
    require_discrete((MOVE, FIRE))
    with pytest.raises(ValueError, match="'steer' are not"):
        require_discrete(MIXED)
    with pytest.raises(ValueError, match="needs discrete actions"):
        ActionDistribution(MIXED, torch.zeros(1, num_params(MIXED))).symmetric_kl_to_uniform()


def test_log_prob_is_the_density_of_the_squashed_action_and_finite_far_out() -> None:
    torch.manual_seed(1)
    params = torch.randn(16, 4, dtype=torch.float64)
    mean, log_std = params.chunk(2, dim=-1)
    normal = Independent(Normal(mean, log_std.exp()), 1)
    ours = ActionDistribution((ARM,), params)

    # The reference inverts the tanh, which rounding prevents further out.
    actions = ours.sample_with_log_prob()[0]["arm"].clamp(-4.0, 4.0)

    theirs = TransformedDistribution(normal, [TanhTransform()]).log_prob(torch.tanh(actions))
    torch.testing.assert_close(ours.log_prob({"arm": actions}), theirs)
    far = ours.log_prob({"arm": torch.full_like(actions, 500.0)})
    assert torch.isfinite(far).all()


def test_squashed_entropy_is_the_mean_of_the_negative_log_prob() -> None:
    torch.manual_seed(2)
    for log_std in (-3.0, -1.0, 0.0):
        params = torch.tensor([[0.3, -1.0, log_std, log_std]], dtype=torch.float64).expand(400_000, 4)
        ours = ActionDistribution((ARM,), params)

        estimate = -ours.sample_with_log_prob()[1].mean()

        assert float(ours.entropy()[0]) == pytest.approx(float(estimate), abs=0.01)


def test_squashed_entropy_has_a_gradient() -> None:
    torch.manual_seed(3)
    params = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)

    (gradient,) = torch.autograd.grad(ActionDistribution((ARM,), params).entropy().sum(), params)

    assert torch.isfinite(gradient).all()
    assert (gradient != 0.0).all()


def test_dimensions_without_two_bounds_are_not_squashed() -> None:
    head = BoxHead("arm", (2,), "float32", (0.0, 0.0), (math.inf, 4.0)).normalized(squashed=True)
    ours = ActionDistribution((head,), torch.zeros(1, 4))

    log_prob = float(ours.log_prob({"arm": torch.tensor([[2.0, 0.5]])}))

    normal = -0.5 * (2.0**2 + 0.5**2) - math.log(2.0 * math.pi)
    assert log_prob == pytest.approx(normal - math.log(1.0 - math.tanh(0.5) ** 2), abs=1e-5)


def test_which_dimensions_are_squashed_is_no_copy_to_the_device_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    head = BoxHead("arm", (3,), "float32", (0.0,) * 3, (math.inf, 4.0, 9.0)).normalized(squashed=True)
    torch.manual_seed(4)
    params, action = torch.randn(8, 6), torch.randn(8, 3)
    with torch.inference_mode():  # acting comes before learning
        acted = ActionDistribution((head,), params).log_prob({"arm": action})

    monkeypatch.setattr(torch, "tensor", None)  # nothing is made of Python's numbers any more
    learned = ActionDistribution((head,), params.requires_grad_())
    log_prob = learned.log_prob({"arm": action})
    (log_prob.sum() + learned.entropy().sum()).backward()

    assert torch.equal(acted, log_prob)
    assert params.grad is not None
    slope = 2.0 * (math.log(2.0) - action - torch.nn.functional.softplus(-2.0 * action))
    plain = ActionDistribution((BoxHead("arm", (3,), "float32", (0.0,) * 3, (math.inf,) * 3),), params)
    assert torch.equal(log_prob, plain.log_prob({"arm": action}) - slope[:, [1, 2]].sum(-1))
