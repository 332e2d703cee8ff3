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
from sfactory.learner.optimizers import RefusableOptimizer, RMSprop
from tests.support.equality import assert_same

KINDS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "rmsprop": {"optimizer": "rmsprop"},
    "rmsprop in tf style": {"optimizer": "rmsprop", "rmsprop_tf_style": True, "rmsprop_momentum": 0.5},
    "lamb": {"optimizer": "lamb", "weight_decay": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.1},
}
EVERY_KIND = pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS.keys())
YES, NO = torch.tensor(True), torch.tensor(False)
RATE = 0.125
ADAM = {"adam_beta1": 0.5, "adam_beta2": 0.75, "adam_eps": 0.25}
ADAM_SETTINGS = {"betas": (0.5, 0.75), "eps": 0.25}


def weights_of() -> list[nn.Parameter]:
    """Two matrices of a body, a bias, and the matrix of a head."""
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((8, 4), (6, 8), (6,), (2, 6))]


def optimizer_of(weights: list[nn.Parameter], **fields: Any) -> RefusableOptimizer:
    return RefusableOptimizer(weights, frozenset(weights[:2]), OptimConfig(**fields))


def give_gradients(seed: int, *models: list[nn.Parameter]) -> None:
    """The same random ones to each."""
    for weights in models:
        generator = torch.Generator().manual_seed(100 + seed)
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)


@EVERY_KIND
@pytest.mark.parametrize("refused_at", [0, 2])
def test_steps_after_a_refused_one_are_those_of_an_optimizer_that_never_saw_it(
    fields: dict[str, Any], refused_at: int
) -> None:
    spoiled, unspoiled = weights_of(), weights_of()
    optimizers = optimizer_of(spoiled, **fields), optimizer_of(unspoiled, **fields)

    for seed in range(4):
        if seed == refused_at:
            for weight in spoiled:
                weight.grad = torch.full_like(weight, torch.nan)
            optimizers[0].step(RATE, NO)
        give_gradients(seed, spoiled, unspoiled)
        for optimizer in optimizers:
            optimizer.step(RATE, YES)

    assert_same([weight.detach() for weight in spoiled], [weight.detach() for weight in unspoiled])
    assert_same(optimizers[0].state_dict(), optimizers[1].state_dict())


@EVERY_KIND
def test_a_step_reads_nothing_from_the_device_and_has_the_rate_it_is_given(fields: dict[str, Any]) -> None:
    read: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._local_scalar_dense.default:
                read.append(str(func))
            return func(*args, **(kwargs or {}))

    weights = weights_of()
    optimizer = optimizer_of(weights, **fields)
    for seed, (rate, taken) in enumerate([(RATE, YES), (RATE, NO), (0.0, YES)]):
        before = copy.deepcopy(weights)
        give_gradients(seed, weights)
        with Watch():
            optimizer.step(rate, taken)
        assert {group["lr"] for group in optimizer.param_groups} == {rate}
        assert torch.equal(weights[0], before[0]) == (seed > 0)
    assert read == []

    with Watch():
        float(weights[0].detach().sum())
    assert len(read) == 1


@pytest.mark.parametrize(("saved", "wanted"), [("adam", "rmsprop"), ("lamb", "adam"), ("muon", "adamw")])
def test_the_moments_of_one_optimizer_are_refused_by_another(saved: str, wanted: str) -> None:
    state = optimizer_of(weights_of(), optimizer=saved).state_dict()

    with pytest.raises(ValueError, match=f"saved with --optimizer={saved}, and --optimizer={wanted} has other"):
        optimizer_of(weights_of(), optimizer=wanted).load_state_dict(state)


@pytest.mark.parametrize(
    ("kind", "flags", "settings"),
    [
        ("adam", ADAM, ADAM_SETTINGS),
        ("adamw", ADAM, ADAM_SETTINGS),
        ("lamb", ADAM, ADAM_SETTINGS),
        ("muon", ADAM, ADAM_SETTINGS),
        (
            "rmsprop",
            {"rmsprop_alpha": 0.5, "rmsprop_momentum": 0.25, "rmsprop_eps": 0.125, "rmsprop_tf_style": True},
            {"alpha": 0.5, "momentum": 0.25, "eps": 0.125, "tf_style": True},
        ),
    ],
)
def test_flags_reach_the_optimizer_also_after_a_resume(
    kind: str, flags: dict[str, Any], settings: dict[str, Any]
) -> None:
    state = optimizer_of(weights_of(), optimizer=kind).state_dict()
    weights = weights_of()
    resumed = optimizer_of(weights, optimizer=kind, **flags)

    for _ in range(2):
        group = resumed.param_groups[-1]
        assert {key: group[key] for key in settings} == settings
        resumed.load_state_dict(state)
    give_gradients(0, weights)
    resumed.step(RATE, YES)


@pytest.mark.parametrize(
    ("kind", "decays"), [("adam", False), ("adamw", True), ("rmsprop", False), ("lamb", True), ("muon", True)]
)
def test_weights_decay_by_the_rate_apart_from_the_gradient_or_not_at_all(kind: str, decays: bool) -> None:
    for decay in (0.0, 0.5):
        weights = weights_of()
        optimizer = optimizer_of(weights, optimizer=kind, weight_decay=decay)
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimizer.step(RATE, YES)

        factor = 1.0 - RATE * decay if decays else 1.0
        for start, after in zip(weights_of(), weights, strict=True):
            torch.testing.assert_close(after.detach(), factor * start.detach())


def test_lamb_and_muon_take_the_steps_of_the_librarys_own() -> None:
    def lamb(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Lamb(weights, lr=RATE, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1, adam_debias=True)

    def muon(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        rest = {"use_muon": False, "betas": (0.9, 0.999), "eps": 1e-6}
        groups = [{"params": weights[:2], "use_muon": True, "use_adjusted_lr": True}, {"params": weights[2:], **rest}]
        return Muon([{**group, "weight_decay": 0.1} for group in groups], lr=RATE, adamw_lr=RATE)

    for kind, make in (("lamb", lamb), ("muon", muon)):
        mine, theirs = weights_of(), weights_of()
        optimizer, library = optimizer_of(mine, optimizer=kind, weight_decay=0.1), make(theirs)
        for seed in range(3):
            give_gradients(seed, mine, theirs)
            optimizer.step(RATE, YES)
            library.step()
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_muon_without_a_matrix_is_its_partner_alone() -> None:
    optimizer = RefusableOptimizer(weights_of()[2:], frozenset(), OptimConfig(optimizer="muon"))

    assert [len(group["params"]) for group in optimizer.param_groups] == [2]


LR, ALPHA, EPS = 0.1, 0.9, 0.01


def rmsprop_of(weights: list[Tensor], momentum: float, tf_style: bool) -> RMSprop:
    return RMSprop(weights, lr=LR, alpha=ALPHA, momentum=momentum, eps=EPS, tf_style=tf_style)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_tensorflows_style_begins_at_1_and_adds_eps_under_the_root(momentum: float) -> None:
    weight = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = rmsprop_of([weight], momentum, tf_style=True)
    expected, square, velocity = 1.0, 1.0, 0.0

    for gradient in (0.5, -2.0, 1.5):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()

        square = 0.9 * square + 0.1 * gradient**2
        velocity = momentum * velocity + gradient / math.sqrt(square + 0.01)
        expected -= 0.1 * velocity
        assert weight.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_torchs_style_takes_the_steps_of_torchs_own(momentum: float) -> None:
    mine, theirs = weights_of(), weights_of()
    optimizer = rmsprop_of(list[Tensor](mine), momentum, tf_style=False)
    torchs = torch.optim.RMSprop(theirs, lr=LR, alpha=ALPHA, momentum=momentum, eps=EPS)

    for seed in range(5):
        give_gradients(seed, mine, theirs)
        optimizer.step()
        torchs.step()

    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
