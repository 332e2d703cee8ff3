"""Optimizers follow their flags and formulas; an update in parts is one step; a refused one changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from gymnasium import spaces
from pytorch_optimizer import Lamb, Muon
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sfactory.config.schema import ModelConfig, OptimConfig
from sfactory.learner.gradient_step import Applied, GradientStep, Rates
from sfactory.learner.optimizers import RefusableOptimizer, RMSprop
from sfactory.model.actor_critic import ActorCritic
from sfactory.spec import EnvSpec
from tests.support.equality import assert_same, changed, copied
from tests.support.parts import model_of

YES, NO = torch.tensor(True), torch.tensor(False)
KINDS = pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "lamb", "muon"])
SEPARATE = pytest.mark.parametrize("separate", [False, True])
RATES = Rates(0.01, 0.02)
# Actor and critic are far from each other in the size of their gradients.
VALUE_WEIGHT = 50.0


def apart(**fields: Any) -> ActorCritic:
    """A model with an actor and a critic that share nothing."""
    return model_of(actor_critic_share_weights=False, **fields)


def updater_of(
    model: ActorCritic, separate: bool = True, beside: Iterable[nn.Parameter] = (), **f: Any
) -> GradientStep:
    return GradientStep(model, OptimConfig(**{"max_grad_norm": 0.0, **f}, separate_value_optimizer=separate), beside)


def apply(updater: GradientStep, *parts: Tensor, rates: Rates = RATES, wanted: Tensor = YES) -> Applied:
    """An update by a loss that is the sum of ``parts``."""
    updater.begin()
    for part in parts:
        updater.backward(part)
    return updater.step(rates, wanted)


def losses_of(model: ActorCritic, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A loss of the policy and one of the values, for 16 observations."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.full((16, model.state_size), 0.5)  # weights of a memory that is empty get no gradient
    output = model({"obs": torch.randn(16, 3, generator=generator)}, state)
    wanted = torch.randn(16, generator=generator)
    return output.dist_params.square().mean(), VALUE_WEIGHT * (output.value - wanted).square().mean()


def loss_of(model: ActorCritic, seed: int = 0) -> Tensor:
    policy, value = losses_of(model, seed)
    return policy + value


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]


def norm_of(parameters: Iterable[nn.Parameter]) -> float:
    return float(torch.cat([gradient.flatten() for gradient in gradients(parameters)]).norm())


def of_critic(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(("critic_tower.", "value_head."))}


@KINDS
@SEPARATE
def test_a_loss_in_parts_gives_the_step_of_the_whole(kind: str, separate: bool) -> None:
    models = apart(), apart()
    whole, parts = (updater_of(model, separate, optimizer=kind, max_grad_norm=0.5) for model in models)

    for seed in range(3):
        at_once = apply(whole, loss_of(models[0], seed))
        in_parts = apply(parts, *(share * loss_of(models[1], seed) for share in (0.25, 0.75)))
        assert float(in_parts.norm) == pytest.approx(float(at_once.norm), rel=1e-5)

    # Muon rounds to bfloat16 on its way.
    tolerance = 1e-3 if kind == "muon" else 1e-6
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("computed_in", [torch.float32, torch.float16])
def test_an_update_begins_without_gradients_and_is_unscaled_once(computed_in: torch.dtype) -> None:
    model, fresh = apart(), apart()
    model.computes_in = computed_in  # the loss is scaled for float16; its layers stay in float32
    updater = updater_of(model)
    updater.begin()
    updater.backward(loss_of(model, seed=1))

    applied = apply(updater, *(share * loss_of(model) for share in (0.25, 0.75)))

    loss_of(fresh).backward()
    assert float(applied.norm) == pytest.approx(norm_of(fresh.parameters()), rel=1e-5)


@KINDS
@pytest.mark.parametrize("critic_frozen", [True, False])
def test_a_rate_of_0_freezes_exactly_its_part(kind: str, critic_frozen: bool) -> None:
    model = apart(use_rnn=True, decoder_mlp_layers=(5,))
    updater = updater_of(model, optimizer=kind, weight_decay=0.1)
    before = copied(model)

    for seed in range(2):
        apply(updater, loss_of(model, seed), rates=Rates(0.01, 0.0) if critic_frozen else Rates(0.0, 0.01))

    critic = of_critic(before)
    assert changed(model, before) == (set(before) - critic if critic_frozen else critic)


def test_each_optimizer_clips_by_the_norm_of_its_own_gradients() -> None:
    model, unclipped = apart(), apart()
    loss_of(unclipped).backward()
    policy_norm, value_norm = norm_of(unclipped.actor_parameters()), norm_of(unclipped.critic_parameters())
    limit = 2 * policy_norm
    assert value_norm > 2 * limit

    applied = apply(updater_of(model, max_grad_norm=limit), loss_of(model))

    # The policy's are left alone, however large the critic's are; together they would have been cut down.
    assert_same(gradients(model.actor_parameters()), gradients(unclipped.actor_parameters()))
    assert norm_of(model.critic_parameters()) == pytest.approx(limit, rel=1e-4)
    assert float(applied.norm) == pytest.approx((policy_norm**2 + value_norm**2) ** 0.5, rel=1e-5)
    apply(updater_of(model, separate=False, max_grad_norm=limit), loss_of(model))
    assert norm_of(model.parameters()) == pytest.approx(limit, rel=1e-3)


@KINDS
@SEPARATE
@pytest.mark.parametrize("refused", ["actor's gradient", "critic's gradient", "not wanted"])
def test_a_refused_step_changes_nothing_of_either_optimizer(kind: str, separate: bool, refused: str) -> None:
    model = apart()
    updater = updater_of(model, separate, optimizer=kind)
    apply(updater, loss_of(model))
    before, state = copied(model), copy.deepcopy(updater.state())

    policy, value = losses_of(model)
    if refused == "actor's gradient":
        policy = policy * torch.nan
    elif refused == "critic's gradient":
        value = value * torch.nan
    applied = apply(updater, policy, value, wanted=NO if refused == "not wanted" else YES)

    assert not bool(applied.taken)
    assert not bool(applied.excused)
    assert changed(model, before) == set()
    assert_same(updater.state(), state)


@SEPARATE
def test_weights_beside_the_model_are_learned_along_with_the_policys(separate: bool) -> None:
    model, beside = apart(), torch.nn.Linear(3, 1)
    updater = updater_of(model, separate, beside.parameters())
    before = copied(beside)

    applied = apply(updater, loss_of(model), beside(torch.ones(1, 3)).sum(), rates=Rates(0.01, 0.0))

    norm = norm_of([*model.parameters(), *beside.parameters()])
    assert float(applied.norm) == pytest.approx(norm, rel=1e-5)
    assert changed(beside, before) == set(before)
    # The last of its optimizer: moments of the model keep their places.
    assert updater.optimizer.parameters[-1] is beside.bias


def test_muon_steps_the_matrices_of_towers_alone() -> None:
    model = apart(use_rnn=True, decoder_mlp_layers=(5,))
    updater = updater_of(model, optimizer="muon")
    assert updater.value_optimizer is not None

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer, tower in ((updater.optimizer, "tower."), (updater.value_optimizer, "critic_tower.")):
        stepped = {names[id(parameter)] for parameter in optimizer.param_groups[0]["params"]}
        matrices = {name for name, p in model.named_parameters() if name.startswith(tower) and p.ndim >= 2}
        assert stepped == matrices
        assert len(stepped) >= 4


@pytest.mark.parametrize(
    ("one_hot_max", "left_out"), [(10, "tower.encoder.layers.0.weight"), (4, "tower.encoder.choices.0.table.weight")]
)
def test_muon_leaves_rows_of_choices_to_adam(one_hot_max: int, left_out: str) -> None:
    spec = EnvSpec.of_spaces(spaces.Discrete(5), spaces.Discrete(2))
    model = ActorCritic(spec, ModelConfig(encoder_mlp_layers=(8, 8), one_hot_max=one_hot_max))

    hidden = {id(weight) for weight in model.hidden_matrices()}

    towers = {name for name, weight in model.named_parameters() if name.startswith("tower") and weight.ndim >= 2}
    assert {name for name, weight in model.named_parameters() if id(weight) in hidden} == towers - {left_out}
    assert left_out in towers
    assert ActorCritic(spec, ModelConfig(encoder_mlp_layers=(), one_hot_max=10)).hidden_matrices() == []


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "rmsprop": {"optimizer": "rmsprop"},
    "rmsprop in tf style": {"optimizer": "rmsprop", "rmsprop_tf_style": True, "rmsprop_momentum": 0.5},
    "lamb": {"optimizer": "lamb", "weight_decay": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.1},
}
EVERY_KIND = pytest.mark.parametrize("fields", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
RATE = 0.125


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


@KINDS
def test_flags_reach_the_optimizer_also_after_a_resume(kind: str) -> None:
    flags: dict[str, Any] = {"adam_beta1": 0.5, "adam_beta2": 0.75, "adam_eps": 0.25}
    settings: dict[str, Any] = {"betas": (0.5, 0.75), "eps": 0.25}
    if kind == "rmsprop":
        settings = {"alpha": 0.5, "momentum": 0.25, "eps": 0.125, "tf_style": True}
        flags = {f"rmsprop_{name}": value for name, value in settings.items()}
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


@pytest.mark.parametrize(("kind", "decay"), [("adam", 0.0), ("adamw", 0.5), ("lamb", 0.5), ("muon", 0.5)])
def test_a_weight_decay_of_0_may_become_another_one(kind: Any, decay: float) -> None:
    optimizer = optimizer_of(weights_of(), optimizer=kind)

    optimizer.adopt(OptimConfig(optimizer=kind, weight_decay=0.5))

    assert {group["weight_decay"] for group in optimizer.param_groups} == {decay}


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
