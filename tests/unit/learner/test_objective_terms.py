"""Each term of the objective enters the total with its sign and its coefficient, and pulls where it should."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import ConfigError
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from sfactory.planning.plan import plan_run
from sfactory.spec import BoxHead, DiscreteHead, EnvSpec, TensorSpec
from tests.support.losses import loss_of
from tests.support.models import model_of
from tests.support.parts import VECTOR, evaluate, random_batch, trainer_for

JUMP, TURN = DiscreteHead("jump", 3), DiscreteHead("turn", 4)
ARM = BoxHead("arm", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))
GAE = AlgoConfig(with_vtrace=False, normalize_advantages=False)


def total_and_terms(model: ActorCritic, batch: Batch, config: AlgoConfig) -> tuple[float, dict[str, float]]:
    loss = loss_of(model, config, batch)
    return loss.total.item(), loss.statistics


def probabilities(model: ActorCritic, batch: Batch) -> Tensor:
    """[T, R, 2] of the choices in each step."""
    with torch.no_grad():
        params: Tensor = model({"obs": batch.obs["obs"][:-1].flatten(0, 1)}).dist_params
    return params.softmax(-1).view(*batch.valid.shape, 2)


def distance_to_uniform(model: ActorCritic, batch: Batch) -> float:
    """Mean over valid steps of (KL(pi || u) + KL(u || pi)) / 2."""
    total = 0.0
    for p, valid in zip(probabilities(model, batch).flatten(0, 1).tolist(), batch.valid.flatten(), strict=True):
        if valid:
            forward = sum(x * math.log(x / 0.5) for x in p)
            backward = sum(0.5 * math.log(0.5 / x) for x in p)
            total += 0.5 * (forward + backward)
    return total / int(batch.valid.sum())


def with_masked_steps(batch: Batch) -> Batch:
    valid = batch.valid.clone()
    valid[1, 2] = valid[3, 0] = False
    return dataclasses.replace(batch, valid=valid)


def without_advantages(batch: Batch) -> Batch:
    """``batch`` in which every step brought just what was expected of it, so that the policy loss has no gradient."""
    return dataclasses.replace(batch, rewards=batch.behavior_value.clone(), discounts=torch.zeros_like(batch.discounts))


def trained(model: ActorCritic, batch: Batch, config: AlgoConfig, updates: int = 30) -> None:
    trainer = trainer_for(model, config, OptimConfig(learning_rate=0.01), LearnerConfig())
    for _ in range(updates):
        trainer.train(batch)


@pytest.mark.parametrize("config", [GAE, AlgoConfig()], ids=["gae", "vtrace"])
@pytest.mark.parametrize("coefficient", [0.0, 0.5, 3.0])
def test_the_total_is_the_sum_of_policy_value_and_entropy_with_their_coefficients(
    config: AlgoConfig, coefficient: float
) -> None:
    model = model_of()
    batch = with_masked_steps(random_batch(model))
    config = dataclasses.replace(config, value_loss_coeff=coefficient, exploration_loss_coeff=coefficient / 7)

    total, terms = total_and_terms(model, batch, config)

    expected = terms["policy_loss"] + coefficient * terms["value_loss"] - coefficient / 7 * terms["entropy"]
    p = probabilities(model, batch)[batch.valid]
    assert terms["entropy"] == pytest.approx(float(-(p * p.log()).sum(-1).mean()), rel=1e-4)
    assert total == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("coefficient", [0.25, 2.0])
def test_symmetric_kl_adds_the_mean_distance_to_the_uniform_policy(coefficient: float) -> None:
    model = model_of()
    batch = with_masked_steps(random_batch(model))
    config = dataclasses.replace(GAE, exploration_loss="symmetric_kl", exploration_loss_coeff=coefficient)

    total, terms = total_and_terms(model, batch, config)

    distance = distance_to_uniform(model, batch)
    assert distance > 0.01
    expected = terms["policy_loss"] + 0.5 * terms["value_loss"] + coefficient * distance
    assert total == pytest.approx(expected, rel=1e-4)


def test_without_an_exploration_loss_its_coefficient_means_nothing() -> None:
    model = model_of()
    batch = random_batch(model)
    config = dataclasses.replace(GAE, exploration_loss="none", exploration_loss_coeff=100.0)

    total, terms = total_and_terms(model, batch, config)

    assert total == pytest.approx(terms["policy_loss"] + 0.5 * terms["value_loss"], rel=1e-5)


@pytest.mark.parametrize(("loss", "factor"), [("entropy", 0.5), ("symmetric_kl", 0.5), ("none", None)])
def test_an_exploration_loss_pushes_to_the_uniform_policy(loss: str, factor: float | None) -> None:
    model = model_of()
    batch = without_advantages(random_batch(model, rows=8))
    algo = AlgoConfig(
        with_vtrace=False,
        normalize_advantages=False,
        exploration_loss=loss,  # type: ignore[arg-type]
        exploration_loss_coeff=1.0,
        value_loss_coeff=0.0,
    )
    before = distance_to_uniform(model, batch)

    trained(model, batch, algo)

    after = distance_to_uniform(model, batch)
    if factor is None:
        assert after == pytest.approx(before, rel=1e-6)
    else:
        assert after < factor * before


@pytest.mark.parametrize(
    ("actions", "named"),
    [((ARM,), "'arm'"), ((JUMP, ARM), "'arm'"), ((ARM, dataclasses.replace(ARM, key="leg")), "'arm', 'leg'")],
)
def test_symmetric_kl_is_refused_before_the_run_where_actions_are_not_discrete(
    actions: tuple[DiscreteHead | BoxHead, ...], named: str
) -> None:
    config = config_of({"env": "any", "device": "cpu", "exploration_loss": "symmetric_kl"})

    with pytest.raises(ConfigError) as refused:
        plan_run(config, EnvSpec(VECTOR.obs, actions))

    text = str(refused.value)
    assert "--exploration_loss=symmetric_kl: " in text
    assert f"needs discrete actions; {named} are not" in text
    assert "--exploration_loss=entropy" in text


def test_symmetric_kl_is_planned_with_where_all_actions_are_discrete() -> None:
    config = config_of({"env": "any", "device": "cpu", "exploration_loss": "symmetric_kl"})
    spec = EnvSpec((("obs", TensorSpec((2,), "float32")),), (JUMP, TURN))

    assert plan_run(config, spec).spec is spec


@pytest.mark.parametrize("coefficient", [0.5, 4.0])
def test_the_kl_loss_adds_the_divergence_from_the_behavior_policy(coefficient: float) -> None:
    model = model_of()
    batch = with_masked_steps(random_batch(model))
    config = dataclasses.replace(GAE, kl_loss_coeff=coefficient, exploration_loss="none")

    total, terms = total_and_terms(model, batch, config)

    with torch.no_grad():
        flat = evaluate(
            model, {"obs": batch.obs["obs"][:-1].flatten(0, 1)}, {"action": batch.actions["action"].flatten()}
        )
    ratios = (flat.log_prob.view(5, 4) - batch.behavior_log_prob)[batch.valid].double().exp().tolist()
    divergence = sum(r * math.log(r) - (r - 1.0) for r in ratios) / len(ratios)
    assert divergence > 1e-3
    expected = terms["policy_loss"] + 0.5 * terms["value_loss"] + coefficient * divergence
    assert total == pytest.approx(expected, rel=1e-4)


def test_the_kl_loss_holds_the_policy_near_the_one_that_acted() -> None:
    divergences = []
    for coefficient in (0.0, 10.0):
        model = model_of()
        batch = random_batch(model, rows=8)
        with torch.no_grad():
            acted = evaluate(
                model, {"obs": batch.obs["obs"][:-1].flatten(0, 1)}, {"action": batch.actions["action"].flatten()}
            )
        batch = dataclasses.replace(batch, behavior_log_prob=acted.log_prob.view(5, 8))
        algo = dataclasses.replace(GAE, policy_loss="pg", kl_loss_coeff=coefficient, exploration_loss="none")
        trained(model, batch, algo)
        divergences.append(total_and_terms(model, batch, algo)[1]["kl"])

    free, held = divergences
    assert held < 0.2 * free


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.24, 1.0, True),
        (1.26, 1.0, False),
        (1.26, -1.0, True),
        (0.81, -1.0, True),
        (0.79, -1.0, False),  # within 1 - e, but not within 1 / (1 + e)
        (0.79, 1.0, True),
    ],
)
def test_the_ratio_is_clipped_to_a_quarter_more_or_the_inverse_of_it(
    ratio: float, advantage: float, moves: bool
) -> None:
    model = model_of()
    batch = random_batch(model)
    with torch.no_grad():
        acted = evaluate(
            model, {"obs": batch.obs["obs"][:-1].flatten(0, 1)}, {"action": batch.actions["action"].flatten()}
        )
    batch = dataclasses.replace(
        batch,
        behavior_log_prob=acted.log_prob.view(5, 4) - math.log(ratio),
        rewards=batch.behavior_value + advantage,
        discounts=torch.zeros_like(batch.discounts),
    )
    config = dataclasses.replace(GAE, ppo_clip_ratio=0.25, exploration_loss="none", value_loss_coeff=0.0)

    loss = loss_of(model, config, batch)
    torch.autograd.backward(loss.total)

    clipped = min(max(ratio, 0.8), 1.25)
    assert loss.total.item() == pytest.approx(-min(ratio * advantage, clipped * advantage), rel=1e-4)
    gradient = model.policy_head.linear.weight.grad
    assert gradient is not None
    assert bool(gradient.abs().max() > 1e-4) is moves
    assert loss.statistics["clip_fraction"] == (0.0 if 0.8 <= ratio <= 1.25 else 1.0)
