"""Probability distributions over all action heads of an agent.

Heads are independent given the network's outputs, so log-probabilities, entropies and divergences are sums over heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from sfactory.action_heads import ActionHead, BoxHead, DiscreteHead

MIN_STDDEV = 1e-4
MAX_STDDEV = 1e4
IMPOSSIBLE = -1e30  # the logit of an illegal choice: its probability is 0, and 0 times its logarithm is 0, too
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
FEW_CHOICES = 8  # see _log_softmax

Actions = dict[str, Tensor]


def num_params(heads: Sequence[ActionHead]) -> int:
    """P, the parameters of all heads: ``n`` logits of a DiscreteHead; ``size`` means and then ``size`` log standard
    deviations of a BoxHead."""
    return sum(head.n if isinstance(head, DiscreteHead) else 2 * head.size for head in heads)


def first_columns(heads: Sequence[ActionHead]) -> dict[str, int]:
    """By key, the column of each head's first parameter."""
    columns = accumulate((num_params((head,)) for head in heads), initial=0)
    return dict(zip((head.key for head in heads), columns, strict=False))  # the last column is the end


def require_discrete(heads: tuple[ActionHead, ...]) -> None:
    """Raise ValueError if there are Box heads: there is no uniform distribution over the reals."""
    boxes = [head.key for head in heads if isinstance(head, BoxHead)]
    if boxes:
        raise ValueError(
            f"the divergence from a uniform policy needs discrete actions; {', '.join(map(repr, boxes))} are not: "
            "explore by the entropy instead"
        )


class Categorical:
    """Distribution over the choices of one DiscreteHead. logits: [B, n] float. Actions are [B] int64.

    Log-probabilities, entropies and divergences are [B] float, here and below.
    """

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = _log_softmax(logits)  # [B, n]

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """[B] int64 and [B] float - a sample and its log-probability.

        Inverts the cumulative distribution: one random number per row for any n.
        """
        cumulative = self.log_probs.detach().exp().cumsum_(-1)
        total = cumulative[:, -1:]
        # total x (1 - u) with u in [0, 1), and a strict comparison: neither rounding of the total nor a choice of
        # probability 0 at either end can yield an index that is out of range or impossible.
        uniform = torch.rand(total.shape, generator=generator, dtype=total.dtype, device=total.device)
        threshold = torch.addcmul(total, total, uniform, value=-1)
        action = (cumulative < threshold).sum(-1, keepdim=True)
        return action.squeeze(-1), self.log_probs.gather(-1, action).squeeze(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def symmetric_kl_to_uniform(self) -> Tensor:
        """(KL(self || u) + KL(u || self)) / 2, with u = 1 / n for each of n legal choices."""
        # The logs of u cancel, since both distributions sum to 1.
        legal = (self.log_probs > 0.5 * IMPOSSIBLE).to(self.log_probs.dtype)
        excess = self.log_probs.exp() - legal / legal.sum(-1, keepdim=True)
        return 0.5 * (excess * self.log_probs).sum(-1)


class DiagonalGaussian:
    """Independent normals of one BoxHead, unclipped. params: [B, 2 * size] float. Actions are [B, size] float32.

    Standard deviations are clamped to [1e-4, 1e4]; outside, their parameter gets no gradient.
    """

    def __init__(self, params: Tensor) -> None:
        self.mean, log_std = params.chunk(2, dim=-1)
        self.log_std = log_std.clamp(math.log(MIN_STDDEV), math.log(MAX_STDDEV))

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """[B, size] float and [B] float - a sample, without gradient, and its log-probability."""
        mean = self.mean.detach()
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        action = torch.addcmul(mean, self.log_std.detach().exp(), noise)
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        """[B, size] float - the mean, without gradient."""
        return self.mean.detach()

    def log_prob(self, action: Tensor) -> Tensor:
        deviations = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * deviations.square() - self.log_std).sum(-1) - _HALF_LOG_2PI * action.shape[-1]

    def entropy(self) -> Tensor:
        return self.log_std.sum(-1) + (0.5 + _HALF_LOG_2PI) * self.log_std.shape[-1]


class SquashedGaussian(DiagonalGaussian):
    """The tanh of independent normals, in the dimensions of one BoxHead that have two finite bounds.

    Actions are stored before the tanh, so that nothing is lost to rounding near the bounds. Log-probabilities and
    entropies are of the squashed action. Source: Haarnoja et al. 2018, "Soft actor-critic", appendix C.
    """

    def __init__(self, params: Tensor, bounded: tuple[bool, ...]) -> None:
        super().__init__(params)
        self._squashed = slice(None) if all(bounded) else _places(bounded, params.device)

    def log_prob(self, action: Tensor) -> Tensor:
        """[B] float - of the tanh of action [B, size] float."""
        return super().log_prob(action) - _log_slope(action[:, self._squashed]).sum(-1)

    def entropy(self) -> Tensor:
        """[B] float - the expected log slope of the tanh by Gauss-Hermite quadrature."""
        mean, stddev = self.mean[:, self._squashed], self.log_std[:, self._squashed].exp()
        expected = _total([weight * _log_slope(mean + node * stddev) for node, weight in _QUADRATURE])
        return super().entropy() + expected.sum(-1)


@cache
def _places(bounded: tuple[bool, ...], device: torch.device) -> Tensor:
    """Indices of the bounded dimensions: a list would be copied to the device, and waited for, with every batch."""
    with torch.inference_mode(False):  # learning uses them, too
        return torch.tensor([place for place, finite in enumerate(bounded) if finite], dtype=torch.int64, device=device)


def _log_slope(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2), which does not underflow."""
    return 2.0 * (math.log(2.0) - x - torch.nn.functional.softplus(-2.0 * x))


# Nodes and weights of the mean over a standard normal.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
_QUADRATURE = tuple(zip(_NODES.tolist(), (_WEIGHTS / math.sqrt(2.0 * math.pi)).tolist(), strict=True))


def _log_softmax(logits: Tensor) -> Tensor:
    """[B, n] log-softmax of logits [B, n].

    A few choices do not fill a CPU's vector register, but rows do. So with few choices the result is laid out choice
    after choice, which halves the time of this and later operations (docs/performance.md).
    """
    if logits.is_cpu and logits.shape[-1] <= FEW_CHOICES:
        return torch.log_softmax(logits.t(), dim=0).t()
    return torch.log_softmax(logits, dim=-1)


Part = Categorical | DiagonalGaussian


class ActionDistribution:
    """One distribution over all action heads. params: [B, P] float with P = num_params(heads), head after head.

    Actions are dicts from head key to Tensor. Log-probabilities are of the stored, unclipped actions.
    """

    def __init__(self, heads: tuple[ActionHead, ...], params: Tensor) -> None:
        self.heads = heads
        self._parts: tuple[Part, ...]
        if len(heads) == 1:
            self._parts = (_part(heads[0], params),)
        else:
            pieces = params.split([num_params((head,)) for head in heads], dim=-1)
            self._parts = tuple(_part(head, piece) for head, piece in zip(heads, pieces, strict=True))

    def mode(self) -> Actions:
        """The most probable action per row; carries no gradient."""
        return {head.key: part.mode() for head, part in zip(self.heads, self._parts, strict=True)}

    def log_prob(self, actions: Actions) -> Tensor:
        """[B] float - joint log-probability (density, for Box heads) of ``actions``."""
        return _total([part.log_prob(actions[head.key]) for head, part in zip(self.heads, self._parts, strict=True)])

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Actions, Tensor]:
        """One random action per row, without gradient, and its log-probability [B]. None: torch's global generator."""
        actions, terms = {}, []
        for head, part in zip(self.heads, self._parts, strict=True):
            actions[head.key], term = part.sample_with_log_prob(generator)
            terms.append(term)
        return actions, _total(terms)

    def entropy(self) -> Tensor:
        return _total([part.entropy() for part in self._parts])

    def symmetric_kl_to_uniform(self) -> Tensor:
        """[B] float - summed over heads, each against its uniform choice. Raises ValueError as require_discrete."""
        require_discrete(self.heads)
        return _total([part.symmetric_kl_to_uniform() for part in self._parts if isinstance(part, Categorical)])


def _part(head: ActionHead, params: Tensor) -> Part:
    if isinstance(head, BoxHead):
        return SquashedGaussian(params, head.bounded) if head.squashed else DiagonalGaussian(params)
    return Categorical(params)


def _total(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
