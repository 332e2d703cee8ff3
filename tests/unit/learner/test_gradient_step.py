"""An update is one step however many parts its loss has, and the critic may have an optimizer of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfactory.config.schema import OptimConfig
from sfactory.learner.gradient_step import Applied, GradientStep, Rates
from sfactory.model.actor_critic import ActorCritic
from tests.support.equality import assert_same, changed, copied
from tests.support.parts import model_of

YES, NO = torch.tensor(True), torch.tensor(False)
KINDS = pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "lamb", "muon"])
SEPARATE = pytest.mark.parametrize("separate", [False, True])
RATES = Rates(0.01, 0.02)
# Actor and critic are far from each other in the size of their gradients.
VALUE_WEIGHT = 50.0


def apart(**fields: Any) -> ActorCritic:
    """A model whose actor and critic share nothing."""
    return model_of(actor_critic_share_weights=False, **fields)


def updater_of(
    model: ActorCritic, separate: bool = True, beside: Iterable[nn.Parameter] = (), **f: Any
) -> GradientStep:
    return GradientStep(model, OptimConfig(**{"max_grad_norm": 0.0, **f}, separate_value_optimizer=separate), beside)


def apply(updater: GradientStep, *parts: Tensor, rates: Rates = RATES, wanted: Tensor = YES) -> Applied:
    """An update whose loss is the sum of ``parts``."""
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
    """Of all their gradients."""
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
    applied = apply(updater, policy + value, wanted=NO if refused == "not wanted" else YES)

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
