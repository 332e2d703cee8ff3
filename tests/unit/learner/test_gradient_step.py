"""An update is one step however many parts its loss has, and the critic may have an optimiser of its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.config.schema import OptimConfig
from sfactory.learner.gradient_step import Applied, GradientStep, Rates
from sfactory.model.actor_critic import ActorCritic
from tests.support.models import model_of

YES, NO = torch.tensor(True), torch.tensor(False)
KINDS = ("adam", "adamw", "rmsprop", "lamb", "muon")
RATES = Rates(0.01, 0.02)
# Actor and critic are far from each other in the size of their gradients.
VALUE_WEIGHT = 50.0


def apart(seed: int = 0, **fields: Any) -> ActorCritic:
    """A model whose actor and critic share nothing."""
    return model_of(seed=seed, actor_critic_share_weights=False, **fields)


def updater_of(model: ActorCritic, **fields: Any) -> GradientStep:
    return GradientStep(model, OptimConfig(**{"max_grad_norm": 0.0, **fields}))


def apply(updater: GradientStep, loss: Tensor, rates: Rates, wanted: Tensor) -> Applied:
    """An update with a loss in one part."""
    updater.begin()
    updater.backward(loss)
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


def gradients(parameters: list[Any]) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in parameters]


def norm_of(tensors: list[Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([tensor.norm() for tensor in tensors])))


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def frozen(model: ActorCritic) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def changed(model: ActorCritic, before: dict[str, Tensor]) -> set[str]:
    """Names of the weights that are not what they were."""
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def is_critics(name: str) -> bool:
    return name.startswith(("critic_tower.", "value_head."))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separate", [False, True])
def test_a_loss_in_parts_gives_the_step_of_the_whole(kind: str, separate: bool) -> None:
    models = apart(), apart()
    whole, parts = (
        updater_of(model, optimizer=kind, separate_value_optimizer=separate, max_grad_norm=0.5) for model in models
    )

    for seed in range(3):
        at_once = apply(whole, loss_of(models[0], seed), RATES, YES)
        parts.begin()
        for share in (0.25, 0.75):
            parts.backward(share * loss_of(models[1], seed))
        in_parts = parts.step(RATES, YES)
        assert float(in_parts.norm) == pytest.approx(float(at_once.norm), rel=1e-5)

    # Muon rounds to bfloat16 on its way.
    tolerance = 1e-3 if kind == "muon" else 1e-6
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_begin_forgets_gradients_that_were_not_stepped_along() -> None:
    model, fresh = apart(), apart()
    updater = updater_of(model)
    updater.begin()
    updater.backward(loss_of(model, seed=1))

    updater.begin()
    updater.backward(loss_of(model))
    loss_of(fresh).backward()

    assert_equal(gradients(list(model.parameters())), gradients(list(fresh.parameters())))


@pytest.mark.parametrize("computed_in", [torch.float32, torch.float16])
def test_a_loss_in_parts_is_scaled_and_unscaled_once(computed_in: torch.dtype) -> None:
    model = apart()
    model.computes_in = computed_in  # the loss is scaled for float16; its layers stay what they are
    updater = updater_of(model)
    updater.begin()
    for share in (0.25, 0.75):
        updater.backward(share * loss_of(model))

    applied = updater.step(RATES, YES)

    fresh = apart()
    loss_of(fresh).backward()
    assert float(applied.norm) == pytest.approx(norm_of(gradients(list(fresh.parameters()))), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen_part", ["critic", "all else"])
def test_a_rate_of_0_freezes_exactly_its_part(kind: str, frozen_part: str) -> None:
    model = apart(use_rnn=True, decoder_mlp_layers=(5,))
    updater = updater_of(model, optimizer=kind, separate_value_optimizer=True, weight_decay=0.1)
    before, critic_frozen = frozen(model), frozen_part == "critic"

    for seed in range(2):
        apply(updater, loss_of(model, seed), Rates(0.01, 0.0) if critic_frozen else Rates(0.0, 0.01), YES)

    assert changed(model, before) == {name for name in before if is_critics(name) != critic_frozen}


def test_gradients_are_clipped_to_their_norm() -> None:
    model = apart()

    applied = apply(updater_of(model, max_grad_norm=1e-3), loss_of(model), RATES, YES)

    assert norm_of(gradients(list(model.parameters()))) == pytest.approx(1e-3, rel=1e-3)
    assert float(applied.norm) > 1e-2  # before clipping


def test_each_optimizer_clips_by_the_norm_of_its_own_gradients() -> None:
    model, unclipped = apart(), apart()
    loss_of(unclipped).backward()
    policy_norm = norm_of(gradients(unclipped.actor_parameters()))
    value_norm = norm_of(gradients(unclipped.critic_parameters()))
    limit = 2 * policy_norm
    assert value_norm > 2 * limit
    updater = updater_of(model, separate_value_optimizer=True, max_grad_norm=limit)

    applied = apply(updater, loss_of(model), RATES, YES)

    # The policy's are left alone, however large the critic's are; together they would have been cut down.
    assert_equal(gradients(model.actor_parameters()), gradients(unclipped.actor_parameters()))
    assert norm_of(gradients(model.critic_parameters())) == pytest.approx(limit, rel=1e-4)
    assert float(applied.norm) == pytest.approx((policy_norm**2 + value_norm**2) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("refused", ["actor's gradient", "critic's gradient", "not wanted"])
def test_a_refused_step_changes_nothing_of_either_optimizer(kind: str, separate: bool, refused: str) -> None:
    model = apart()
    updater = updater_of(model, optimizer=kind, separate_value_optimizer=separate)
    apply(updater, loss_of(model), RATES, YES)
    before, state = frozen(model), copy.deepcopy(updater.state())

    policy, value = losses_of(model)
    if refused == "actor's gradient":
        policy = policy * torch.nan
    elif refused == "critic's gradient":
        value = value * torch.nan
    applied = apply(updater, policy + value, RATES, NO if refused == "not wanted" else YES)

    assert not bool(applied.taken)
    assert not bool(applied.excused)
    assert changed(model, before) == set()
    assert_same_state(updater.state(), state)


def assert_same_state(one: Any, other: Any) -> None:
    """Nested states of optimisers are equal, tensors and all."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_state(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same_state(mine, theirs)
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("saved", [True, False])
def test_one_optimizer_cannot_resume_as_two_or_two_as_one(saved: bool) -> None:
    state = updater_of(apart(), separate_value_optimizer=saved).state()

    with pytest.raises(ValueError, match=f"--separate_value_optimizer={saved}, which cannot become {not saved}"):
        updater_of(apart(), separate_value_optimizer=not saved).load(state)


@pytest.mark.parametrize("separate", [False, True])
def test_weights_beside_the_model_are_learned_along_with_the_policys(separate: bool) -> None:
    model, beside = apart(), torch.nn.Linear(3, 1)
    config = OptimConfig(separate_value_optimizer=separate, max_grad_norm=0.0)
    updater = GradientStep(model, config, beside.parameters())
    before = beside.weight.detach().clone()

    updater.begin()
    updater.backward(loss_of(model))
    updater.backward(beside(torch.ones(1, 3)).sum())
    applied = updater.step(Rates(0.01, 0.0), YES)

    expected = [*gradients(list(model.parameters())), *gradients(list(beside.parameters()))]
    assert float(applied.norm) == pytest.approx(norm_of(expected), rel=1e-5)
    assert not torch.equal(beside.weight, before)
    # The last of its optimiser: moments of the model keep their places.
    assert updater.optimizer.parameters[-1] is beside.bias


def test_weights_belong_to_the_critic_alone_or_to_the_actor() -> None:
    for model in (apart(use_rnn=True), model_of(use_rnn=True)):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        critic = {names[id(parameter)] for parameter in model.critic_parameters()}
        actor = {names[id(parameter)] for parameter in model.actor_parameters()}
        assert critic == {name for name in names.values() if is_critics(name)}
        assert actor == set(names.values()) - critic


def test_muon_steps_the_matrices_of_towers_alone() -> None:
    model = apart(use_rnn=True, decoder_mlp_layers=(5,))
    updater = updater_of(model, optimizer="muon", separate_value_optimizer=True)
    assert updater.value_optimizer is not None

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer, tower in ((updater.optimizer, "tower."), (updater.value_optimizer, "critic_tower.")):
        stepped = {names[id(parameter)] for parameter in optimizer.param_groups[0]["params"]}
        matrices = {name for name, p in model.named_parameters() if name.startswith(tower) and p.ndim >= 2}
        assert stepped == matrices
        assert len(stepped) >= 4
