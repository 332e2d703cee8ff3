"""Every optimizer follows its flags and formulas, and a step that is refused changes nothing of it."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from pytorch_optimizer import Lamb, Muon
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sfactory.config.schema import OptimConfig
from sfactory.learner.optimizers import GuardedOptimizer, RMSprop

KINDS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "rmsprop": {"optimizer": "rmsprop"},
    "rmsprop with momentum": {"optimizer": "rmsprop", "rmsprop_momentum": 0.5},
    "rmsprop in tf style": {"optimizer": "rmsprop", "rmsprop_tf_style": True, "rmsprop_momentum": 0.5},
    "lamb": {"optimizer": "lamb", "weight_decay": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.1},
}
EVERY_KIND = pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS.keys())
YES, NO = torch.tensor(True), torch.tensor(False)
RATE = 0.125


def weights_of(seed: int = 0) -> list[nn.Parameter]:
    """Two matrices of a body, a bias, and the matrix of a head."""
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((8, 4), (6, 8), (6,), (2, 6))]


def optimizer_of(weights: list[nn.Parameter], **fields: Any) -> GuardedOptimizer:
    return GuardedOptimizer(weights, frozenset(weights[:2]), OptimConfig(**fields))


def give_gradients(weights: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(100 + seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)


def give_bad_gradients(weights: list[nn.Parameter]) -> None:
    for weight in weights:
        weight.grad = torch.full_like(weight, torch.nan)


def all_of(weights: list[nn.Parameter], optimizer: GuardedOptimizer) -> list[Any]:
    """Every weight, moment and hyperparameter, in order, copied."""

    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [leaf for key in sorted(value, key=str) for leaf in (key, *leaves(value[key]))]
        if isinstance(value, list | tuple):
            return [leaf for item in value for leaf in leaves(item)]
        return [value]

    return copy.deepcopy([*(weight.detach() for weight in weights), *leaves(optimizer.state_dict())])


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, other, strict=True)
    )


@EVERY_KIND
@pytest.mark.parametrize("refused_at", [0, 2])
def test_steps_after_a_refused_one_are_those_of_an_optimizer_that_never_saw_it(
    fields: dict[str, Any], refused_at: int
) -> None:
    spoiled, unspoiled = weights_of(), weights_of()
    optimizers = optimizer_of(spoiled, **fields), optimizer_of(unspoiled, **fields)

    for seed in range(4):
        if seed == refused_at:
            give_bad_gradients(spoiled)
            optimizers[0].step(RATE, NO)
        for weights, optimizer in zip((spoiled, unspoiled), optimizers, strict=True):
            give_gradients(weights, seed)
            optimizer.step(RATE, YES)

    assert same(all_of(spoiled, optimizers[0]), all_of(unspoiled, optimizers[1]))


@EVERY_KIND
def test_a_step_asks_the_device_for_nothing(fields: dict[str, Any]) -> None:
    asked: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._local_scalar_dense.default:
                asked.append(str(func))
            return func(*args, **(kwargs or {}))

    weights = weights_of()
    optimizer = optimizer_of(weights, **fields)
    for seed, taken in enumerate((YES, NO, YES)):
        give_gradients(weights, seed)
        with Watch():
            optimizer.step(RATE, taken)
    assert asked == []

    with Watch():
        float(weights[0].detach().sum())
    assert len(asked) == 1


@EVERY_KIND
def test_the_rate_of_a_step_is_the_one_it_is_given(fields: dict[str, Any]) -> None:
    weights = weights_of()
    optimizer = optimizer_of(weights, **fields)

    for seed, rate in enumerate((RATE, 0.01, 0.0)):
        give_gradients(weights, seed)
        before = [weight.detach().clone() for weight in weights]
        optimizer.step(rate, YES)
        assert {group["lr"] for group in optimizer.param_groups} == {rate}

    assert all(torch.equal(weight, old) for weight, old in zip(weights, before, strict=True))


@pytest.mark.parametrize(("saved", "wanted"), [("adam", "rmsprop"), ("lamb", "adam"), ("muon", "adamw")])
def test_the_moments_of_one_optimizer_are_refused_by_another(saved: str, wanted: str) -> None:
    weights = weights_of()
    state = optimizer_of(weights, optimizer=saved).state_dict()

    with pytest.raises(ValueError, match=f"saved with --optimizer={saved}, and --optimizer={wanted} has other"):
        optimizer_of(weights, optimizer=wanted).load_state_dict(state)


def test_a_resumed_optimizer_follows_the_flags_of_now() -> None:
    weights = weights_of()
    state = optimizer_of(weights, optimizer="rmsprop").state_dict()
    resumed = optimizer_of(weights, optimizer="rmsprop", rmsprop_alpha=0.5, rmsprop_eps=0.25, rmsprop_momentum=0.75)

    resumed.load_state_dict(state)
    give_gradients(weights, 0)
    resumed.step(RATE, YES)

    group = resumed.param_groups[0]
    assert (group["alpha"], group["eps"], group["momentum"]) == (0.5, 0.25, 0.75)


@pytest.mark.parametrize("kind", ["adam", "adamw", "lamb", "muon"])
def test_adams_flags_reach_all_that_are_adams_kin(kind: str) -> None:
    fields = {"adam_beta1": 0.5, "adam_beta2": 0.75, "adam_eps": 0.25}

    group = optimizer_of(weights_of(), optimizer=kind, **fields).param_groups[-1]

    assert (group["betas"], group["eps"]) == ((0.5, 0.75), 0.25)


@pytest.mark.parametrize(
    ("kind", "decays"), [("adam", False), ("adamw", True), ("rmsprop", False), ("lamb", True), ("muon", True)]
)
def test_weights_decay_by_the_rate_apart_from_the_gradient_or_not_at_all(kind: str, decays: bool) -> None:
    after = {}
    for decay in (0.0, 0.5):
        weights = weights_of()
        optimizer = optimizer_of(weights, optimizer=kind, weight_decay=decay)
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimizer.step(RATE, YES)
        after[decay] = [weight.detach() for weight in weights]

    factor = 1.0 - RATE * 0.5 if decays else 1.0
    for start, kept, decayed in zip(weights_of(), after[0.0], after[0.5], strict=True):
        torch.testing.assert_close(kept, start.detach())
        torch.testing.assert_close(decayed, factor * start.detach())


def test_rmsprops_flags_reach_it() -> None:
    fields = {"rmsprop_alpha": 0.5, "rmsprop_momentum": 0.25, "rmsprop_eps": 0.125, "rmsprop_tf_style": True}

    group = optimizer_of(weights_of(), optimizer="rmsprop", **fields).param_groups[0]

    assert {key: group[key] for key in ("alpha", "momentum", "eps", "tf_style")} == {
        "alpha": 0.5,
        "momentum": 0.25,
        "eps": 0.125,
        "tf_style": True,
    }


def test_lamb_takes_the_steps_of_the_librarys_own() -> None:
    mine, theirs = weights_of(), weights_of()
    optimizer = optimizer_of(mine, optimizer="lamb", weight_decay=0.1)
    library = Lamb(theirs, lr=RATE, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1, adam_debias=True)

    for seed in range(3):
        for weights in (mine, theirs):
            give_gradients(weights, seed)
        optimizer.step(RATE, YES)
        library.step()

    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one, other)


def test_muon_and_its_partner_take_the_steps_of_the_librarys_own() -> None:
    mine, theirs = weights_of(), weights_of()
    optimizer = optimizer_of(mine, optimizer="muon", weight_decay=0.1)
    library = Muon(
        [
            {"params": theirs[:2], "use_muon": True, "weight_decay": 0.1, "use_adjusted_lr": True},
            {"params": theirs[2:], "use_muon": False, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.1},
        ],
        lr=RATE,
        adamw_lr=RATE,
    )

    for seed in range(3):
        for weights in (mine, theirs):
            give_gradients(weights, seed)
        optimizer.step(RATE, YES)
        library.step()

    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_muon_without_a_matrix_is_its_partner_alone() -> None:
    weights = weights_of()[2:]
    config = OptimConfig(optimizer="muon", learning_rate=RATE)

    optimizer = GuardedOptimizer(weights, frozenset(), config)

    assert [len(group["params"]) for group in optimizer.param_groups] == [2]


GRADIENTS = (0.5, -2.0, 1.5)
LR, ALPHA, EPS = 0.1, 0.9, 0.01


def rmsprop_of(weights: list[Tensor], momentum: float, tf_style: bool) -> RMSprop:
    return RMSprop(weights, lr=LR, alpha=ALPHA, momentum=momentum, eps=EPS, tf_style=tf_style)


def steps_taken(momentum: float, tf_style: bool) -> list[float]:
    """A weight of 1 after each of three steps."""
    weight = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = rmsprop_of([weight], momentum, tf_style)
    weights = []
    for gradient in GRADIENTS:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        weights.append(float(weight.detach()))
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_tensorflows_style_begins_at_1_and_adds_eps_under_the_root(momentum: float) -> None:
    weight, square, velocity, expected = 1.0, 1.0, 0.0, []
    for gradient in GRADIENTS:
        square = 0.9 * square + 0.1 * gradient**2
        velocity = momentum * velocity + gradient / math.sqrt(square + 0.01)
        weight -= 0.1 * velocity
        expected.append(weight)

    assert steps_taken(momentum, tf_style=True) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_torchs_style_takes_the_steps_of_torchs_own(momentum: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)]
    mine, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(2))
    optimizers = (
        rmsprop_of(mine, momentum, tf_style=False),
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
