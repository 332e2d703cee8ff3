"""The bonus for new observations: it falls where the predictor has learned, and its returns do not know ends."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.action_heads import DiscreteHead
from sfactory.config.flags import config_of
from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.config.validation import find_problems
from sfactory.errors import ConfigError, EnvError
from sfactory.learner.auxiliary import Exploration, make_auxiliary
from sfactory.model.rnd import Rnd, first_visits
from sfactory.planning.plan import plan_sizes
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import TensorSpec
from tests.support.equality import changed, copied
from tests.support.parts import TINY, VECTOR, loss_of, model_of, random_batch, trainer_for

ALGO = AlgoConfig(rnd=True, gamma=0.5, rnd_gamma=0.9, gae_lambda=1.0, with_vtrace=False, rnd_coeff=2.0)


def rnd_of(**model: Any) -> Rnd:
    torch.manual_seed(3)
    made = make_auxiliary(model_of(**model), ALGO, TINY)
    assert isinstance(made, Rnd)
    return made


def exploration(batch_seed: int = 1, **changes: Any) -> tuple[Exploration, Any, Any]:
    """A task, a model and a batch with its intrinsic returns."""
    model = model_of()
    batch = random_batch(model, seed=batch_seed, **changes)
    task = Exploration(rnd_of(), seed=5, policy=0)
    return task, model, task.add_returns(model, batch, ALGO, parts=2)


def test_the_error_falls_where_the_predictor_has_learned_and_the_target_stays() -> None:
    rnd = rnd_of()
    seen, new = torch.randn(50, 8, 3), torch.randn(50, 8, 3) + 3.0
    rnd.normalizer.update({"obs": torch.cat((seen, new))}, torch.ones(100, 8, dtype=torch.bool))
    target = copied(rnd.target)
    optimizer = torch.optim.Adam([weight for weight in rnd.parameters() if weight.requires_grad], lr=1e-3)

    before = rnd.error({"obs": seen}).mean().item(), rnd.error({"obs": new}).mean().item()
    for _ in range(100):
        optimizer.zero_grad()
        torch.autograd.backward(rnd.error({"obs": seen}).mean())
        optimizer.step()
    after = rnd.error({"obs": seen}).mean().item(), rnd.error({"obs": new}).mean().item()

    assert after[0] < 0.1 * before[0]
    assert after[1] > 3 * after[0]
    assert not changed(rnd.target, target)


def test_observations_are_clipped_to_five_deviations() -> None:
    rnd = rnd_of()
    rnd.normalizer.update({"obs": torch.randn(100, 8, 3)}, torch.ones(100, 8, dtype=torch.bool))

    far, farther = (rnd.error({"obs": torch.full((1, 1, 3), size)}).item() for size in (20.0, 1e6))

    assert far == farther


def test_intrinsic_returns_are_discounted_sums_of_errors_that_go_on_over_ends() -> None:
    task, model, batch = exploration()
    ended = dataclasses.replace(batch, discounts=0.0 * batch.discounts)
    errors = task.rnd.error({"obs": batch.obs["obs"][1:]}).detach()
    fresh = Exploration(rnd_of(), seed=5, policy=0)
    again = fresh.add_returns(model, ended, ALGO, parts=1)

    torch.testing.assert_close(again.intrinsic_returns, batch.intrinsic_returns)
    # Values of the same first weights, before their statistics had seen returns.
    head = rnd_of().value
    unrolled = model.unroll(batch.obs, batch.rnn_states[:-1], batch.is_first, batch.recurrence)
    following = head.denormalize(head.forward(unrolled.features))[-1].detach()
    for t in reversed(range(len(errors))):
        following = errors[t] + 0.9 * following
        torch.testing.assert_close(batch.intrinsic_returns[t], following, rtol=1e-4, atol=1e-5)
    means = task.statistics()
    assert means["rnd_reward"] == pytest.approx(errors.mean().item(), rel=1e-4)
    assert means["rnd_return"] == pytest.approx(batch.intrinsic_returns.mean().item(), rel=1e-4)
    task.clear()
    assert np.isnan(task.statistics()["rnd_reward"])
    deviation = batch.intrinsic_returns.double().std(correction=0).item()
    plain = batch.intrinsic_returns - head.denormalize(head.forward(unrolled.features))[:-1].detach()
    torch.testing.assert_close(batch.intrinsic_advantages * (deviation**2 + 1e-5) ** 0.5, plain, rtol=1e-3, atol=1e-4)


def test_first_visits_are_those_that_no_equal_row_of_the_episode_comes_before() -> None:
    draw = torch.Generator().manual_seed(4)
    obs = {
        "image": torch.randint(0, 2, (40, 6, 2, 1), generator=draw, dtype=torch.uint8) * 255,
        "place": torch.randint(0, 2, (40, 6), generator=draw).double() / 3,
        "open": torch.randint(0, 2, (40, 6), generator=draw).bool(),
        "held": torch.randint(0, 2, (40, 6), generator=draw).bool(),
    }
    is_first = torch.rand(40, 6, generator=draw) < 0.05

    found = first_visits(obs, is_first)

    for column in range(6):
        seen: set[object] = set()
        for t in range(40):
            if is_first[t, column]:
                seen.clear()
            row = tuple(value for leaf in obs.values() for value in leaf[t, column].flatten().tolist())
            assert bool(found[t, column]) == (row not in seen)
            seen.add(row)
    assert 0.2 < found.float().mean() < 0.8


def test_fingerprints_tell_observations_apart_that_differ_in_two_bytes() -> None:
    rows = torch.zeros(65536, 1, 20, dtype=torch.uint8)
    rows[:, 0, 7] = torch.arange(65536) % 256
    rows[:, 0, 15] = torch.arange(65536) // 256

    assert bool(first_visits({"obs": rows}, torch.zeros(65536, 1, dtype=torch.bool)).all())


def test_an_observation_that_is_seen_again_earns_nothing_unless_the_flag_is_off() -> None:
    model = model_of()
    batch = random_batch(model, seed=1)
    is_first = batch.is_first.clone()
    is_first[2, 1] = is_first[3, 0] = True
    same = batch.obs["obs"][:1].expand_as(batch.obs["obs"])
    repeated = dataclasses.replace(batch, obs={"obs": same}, is_first=is_first)
    rewards = {}
    for first_only in (True, False):
        task = Exploration(rnd_of(), seed=5, policy=0)
        task.add_returns(model, repeated, dataclasses.replace(ALGO, rnd_first_only=first_only), parts=2)
        rewards[first_only] = task.statistics()["rnd_reward"]

    # The same everywhere in a column: only the first row of an episode is a first visit.
    errors = task.rnd.error({"obs": repeated.obs["obs"][1:]}).detach()
    assert rewards[True] == pytest.approx((errors * is_first[1:]).mean().item(), rel=1e-4)
    assert rewards[False] == pytest.approx(errors.mean().item(), rel=1e-4)


def test_action_masks_and_what_the_core_alone_reads_make_no_observation_new() -> None:
    view = TensorSpec((3,), "float32")
    obs = (
        ("view", view),
        ("action_mask", replace(view, layout="mask", heads=(3,))),
        ("last_reward", replace(view, shape=(1,), layout="last_reward")),
    )

    assert Rnd(obs, 8, TINY).seen == ("view",)


def test_images_that_its_encoders_cannot_read_are_refused_before_the_run_beside_an_encoder_of_ones_own() -> None:
    spec = EnvSpec((("obs", TensorSpec((5, 5, 3), "uint8", layout="hwc")),), (DiscreteHead("action", 2),))
    flags = {"env": "CartPole-v1", "rnd": True, "encoder": "tests.support.networks:AllKeys"}
    advised = {**flags, "encoder_conv_architecture": "convnet_minatar"}

    with pytest.raises(EnvError, match=r"too small for .*--encoder_conv_architecture=convnet_minatar"):
        plan_sizes(config_of(flags), spec)
    assert plan_sizes(config_of(advised), spec).layout.num_policies == 1
    assert find_problems(config_of(advised), chosen=advised) == []


@pytest.mark.parametrize(
    "mapping",
    [
        *({"policy_mapping": mapping} for mapping in ("env", "agent", "my_envs:choose")),
        {"num_workers": 1, "worker_num_splits": 1, "inference": "central"},  # too few splits
    ],
)
def test_policies_that_take_turns_in_an_env_are_refused_and_those_with_splits_of_their_own_are_not(
    mapping: dict[str, Any],
) -> None:
    flags: dict[str, Any] = {"env": "CartPole-v1", "rnd": True, "num_policies": 2}
    fitting: list[dict[str, Any]] = [
        {},
        {"policy_mapping": "split"},
        {**mapping, "num_policies": 1},
        {**mapping, "rnd": False},
    ]

    with pytest.raises(ConfigError, match=r"^--rnd=True: .* use --policy_mapping=split and at least 2 splits"):
        plan_sizes(config_of({**flags, **mapping}), VECTOR)
    for values in fitting:
        assert plan_sizes(config_of({**flags, **values}), VECTOR).layout.num_actors > 0


def test_the_loss_learns_from_both_advantages_and_steps_that_are_invalid_give_none() -> None:
    task, model, batch = exploration()
    task.begin(0)
    plain = loss_of(model, ALGO, dataclasses.replace(batch, intrinsic_advantages=None), auxiliary=task)
    task.begin(0)
    both = loss_of(model, ALGO, batch, auxiliary=task)

    assert plain.total != both.total
    assert plain.statistics["aux_loss"] == both.statistics["aux_loss"] > 0.0
    assert plain.statistics["value_loss"] == both.statistics["value_loss"]
    taken = batch.taken.clone()
    taken[2] = False
    invalid = random_batch(model, taken=taken, valid=taken)
    with_bonus = Exploration(rnd_of(), seed=5, policy=0).add_returns(model, invalid, ALGO, parts=1)
    assert with_bonus.intrinsic_advantages is not None
    assert bool((with_bonus.intrinsic_advantages[2] == 0).all())


def test_the_last_observation_of_an_episode_pays_is_learned_and_returns_go_on_after_it() -> None:
    _, model, batch = exploration()
    taken = batch.taken.clone()
    taken[2, 1] = False  # the step before it, which ended the episode, led there
    ended = random_batch(model, taken=taken, valid=taken)
    task = Exploration(rnd_of(), seed=5, policy=0)
    found = task.add_returns(model, ended, ALGO, parts=1)

    errors = task.rnd.error({"obs": ended.obs["obs"][1:]}).detach()
    assert found.intrinsic_returns is not None
    earned = errors[1, 1] + 0.9 * found.intrinsic_returns[3, 1]
    torch.testing.assert_close(found.intrinsic_returns[1, 1], earned, rtol=1e-4, atol=1e-5)
    unrolled = model.unroll(found.obs, found.rnn_states[:-1], found.is_first, found.recurrence)
    young = found.valid.clone()
    young[2, 2] = False  # too old to learn from

    def loss(obs: torch.Tensor) -> float:
        batch, algo = (
            dataclasses.replace(found, obs={"obs": obs}, valid=young),
            dataclasses.replace(ALGO, rnd_share=1.0),
        )
        return task.loss(batch, unrolled, algo, task.draw(batch, algo)).item()

    shown_last, too_old = found.obs["obs"].clone(), found.obs["obs"].clone()
    shown_last[2, 1], too_old[2, 2] = 3.0, 3.0
    assert loss(shown_last) != loss(found.obs["obs"]) == loss(too_old)


@pytest.mark.parametrize(("with_vtrace", "size"), [(True, 5), (False, 10), (False, 2)])
def test_gradients_of_parts_add_up_to_that_of_the_whole_minibatch(with_vtrace: bool, size: int) -> None:
    _, model, batch = exploration()
    taken = batch.taken.clone()
    taken[:, 0] = taken[2, 1:3] = False  # the first part has no valid step
    task = Exploration(rnd_of(), seed=5, policy=0)
    ended = task.add_returns(model, random_batch(model, taken=taken, valid=taken), ALGO, parts=1)
    algo = dataclasses.replace(ALGO, with_vtrace=with_vtrace, rnd_share=0.5)
    found = []
    for microbatch_size in (0, size):
        task.begin(0)
        loss = loss_of(model, algo, ended, microbatch_size=microbatch_size, auxiliary=task)
        weights = [weight for weight in (*task.rnd.parameters(), *model.parameters()) if weight.requires_grad]
        gradients = torch.autograd.grad(loss.total, weights)
        found.append((loss, torch.cat([gradient.flatten() for gradient in gradients])))

    (whole, gradient), (parts, added_up) = found
    assert (whole.parts, parts.parts) == (1, 20 // size)
    assert float(gradient.abs().max()) > 1e-2
    torch.testing.assert_close(added_up, gradient, rtol=1e-4, atol=1e-6)
    assert parts.statistics == pytest.approx(whole.statistics, rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("flags", [{}, {"with_vtrace": False}, {"with_vtrace": False, "shuffle": True}])
def test_predictor_value_head_and_policy_are_trained_and_nothing_else_of_it(flags: dict[str, bool]) -> None:
    learner = LearnerConfig(num_batches_per_epoch=2, shuffle_minibatches="shuffle" in flags)
    algo = dataclasses.replace(ALGO, with_vtrace=flags.get("with_vtrace", True))
    trainer = trainer_for(model_of(), algo, OptimConfig(learning_rate=0.01), learner)
    assert isinstance(trainer.auxiliary, Rnd)
    before = copied(trainer.auxiliary)

    trainer.train(random_batch(trainer.model))

    names = {name for name, tensor in trainer.auxiliary.state_dict().items() if not torch.equal(tensor, before[name])}
    trained = {name for name, weight in trainer.auxiliary.named_parameters() if weight.requires_grad}
    assert trained <= names
    assert not any(name.startswith("target") for name in names)
    assert 0.0 < trainer.statistics()["rnd_reward"] < 10.0
