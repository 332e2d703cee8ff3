"""Observations are normalized by statistics of what was learned from: chosen ones, once, and instead of scaling."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.config.flags import config_of
from sfactory.config.schema import AlgoConfig, LearnerConfig, ModelConfig, OptimConfig
from sfactory.errors import ConfigError
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.normalizer import EPS, ObsNormalizer
from sfactory.planning import plan as plan_module
from sfactory.planning.plan import plan_run
from sfactory.spec import DiscreteHead, EnvSpec, TensorSpec
from tests.support.models import model_of
from tests.support.parts import random_batch, trainer_for

ACTION = (DiscreteHead("action", 2),)
TWO = EnvSpec(obs=(("near", TensorSpec((3,), "float32")), ("far", TensorSpec((2,), "float32"))), actions=ACTION)
IMAGE = EnvSpec(obs=(("image", TensorSpec((3, 8, 8), "uint8")),), actions=ACTION)
MIXED = EnvSpec(obs=(*TWO.obs, *IMAGE.obs), actions=ACTION)
CONV: dict[str, Any] = {"encoder_conv_architecture": "resnet_impala", "encoder_conv_mlp_layers": (8,)}
SCALING: dict[str, Any] = {"obs_subtract_mean": 10.0, "obs_scale": 4.0}


def normalizer_of(model: ActorCritic) -> ObsNormalizer:
    assert model.obs_normalizer is not None
    return model.obs_normalizer


def observations(spec: EnvSpec, *rows: int) -> dict[str, Tensor]:
    """Random bytes for images, numbers of mean 20 and deviation 5 for all else."""
    generator = torch.Generator().manual_seed(3)
    return {
        path: torch.randint(0, 256, (*rows, *tensor.shape), dtype=torch.uint8, generator=generator)
        if tensor.dtype == "uint8"
        else 20.0 + 5.0 * torch.randn(*rows, *tensor.shape, generator=generator)
        for path, tensor in spec.obs
    }


def normalized_by_hand(leaf: Tensor) -> Tensor:
    """``leaf`` by the statistics of its own rows."""
    rows = leaf.double().numpy()
    normalized = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + EPS)
    return torch.from_numpy(normalized).float().clamp(-5.0, 5.0)


def batch_with(batch: Batch, obs: dict[str, Tensor]) -> Batch:
    return dataclasses.replace(batch, obs=obs)


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_statistics_are_those_of_the_valid_steps_and_know_nothing_of_the_step_after_the_rollout(
    with_vtrace: bool,
) -> None:
    model = model_of(normalize_input=True)
    learner = LearnerConfig(num_epochs=3, num_batches_per_epoch=2, early_stop_loss_change=0.0)
    trainer = trainer_for(model, AlgoConfig(with_vtrace=with_vtrace), OptimConfig(), learner)
    seen = []
    for seed in (1, 2):
        batch = random_batch(model, rows=6, seed=seed)
        valid = torch.rand(5, 6, generator=torch.Generator().manual_seed(seed)) > 0.3
        obs = 3.0 + 2.0 * batch.obs["obs"]
        seen.append(obs[:-1][valid].double().numpy())
        obs[-1] = 1e6
        obs[:-1][~valid] = 1e6
        trainer.train(dataclasses.replace(batch_with(batch, {"obs": obs}), taken=valid, valid=valid))

    statistics = normalizer_of(model)._by_key["obs"]
    rows = np.concatenate(seen)
    assert trainer.train_step == 12
    assert statistics.count.item() == len(rows) < 60
    np.testing.assert_allclose(statistics.mean.numpy(), rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(statistics.var.numpy(), rows.var(0), rtol=1e-9)


def test_acting_and_learning_see_the_same_normalized_observations() -> None:
    model, bare = model_of(normalize_input=True), model_of()
    obs = observations(EnvSpec(obs=(("obs", TensorSpec((3,), "float32")),), actions=ACTION), 50)
    model.observe(obs, torch.ones(50, dtype=torch.bool))
    by_hand = {"obs": normalized_by_hand(obs["obs"])}

    unrolled = model.unroll({"obs": obs["obs"].unsqueeze(0)}, torch.zeros(1, 50, 0), torch.zeros(1, 50).bool(), 1)

    expected = bare(by_hand)
    torch.testing.assert_close(model(obs).dist_params, expected.dist_params, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(unrolled.dist_params, expected.dist_params, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(unrolled.values[0], expected.value, rtol=1e-4, atol=1e-4)


def test_of_two_observations_the_chosen_one_is_normalized_and_only_the_other_is_scaled() -> None:
    model = model_of(TWO, encoder_mlp_layers=(), normalize_input=True, normalize_input_keys=("far",), **SCALING)
    obs = observations(TWO, 50)
    model.observe(obs, torch.ones(50, dtype=torch.bool))

    features = model.tower.encoder(normalizer_of(model)(obs))

    torch.testing.assert_close(features[:, :3], (obs["near"] - 10.0) / 4.0)
    torch.testing.assert_close(features[:, 3:], normalized_by_hand(obs["far"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keys", [("image",), ("near",), ("near", "image"), ()])
@pytest.mark.parametrize("spec", [IMAGE, MIXED], ids=["image", "mixed"])
def test_images_are_normalized_or_scaled_but_not_both(spec: EnvSpec, keys: tuple[str, ...]) -> None:
    keys = tuple(key for key in keys if key in dict(spec.obs))
    model = model_of(spec, normalize_input=True, normalize_input_keys=keys, **CONV, **SCALING)
    bare = model_of(spec, **CONV)
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if "normalizer" not in k})
    obs = observations(spec, 30)
    model.observe(obs, torch.ones(30, dtype=torch.bool))
    by_hand = {
        path: normalized_by_hand(leaf) if not keys or path in keys else (leaf.float() - 10.0) / 4.0
        for path, leaf in obs.items()
    }

    ours, theirs = model(obs), bare(by_hand)

    torch.testing.assert_close(ours.dist_params, theirs.dist_params, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.value, theirs.value, rtol=1e-3, atol=1e-3)


def test_a_key_that_the_env_does_not_give_is_refused_before_the_run_with_those_it_gives() -> None:
    config = config_of({"env": "any", "device": "cpu", "normalize_input_keys": ("near", "fat")})

    with pytest.raises(ConfigError) as refused:
        plan_run(config, TWO)

    text = str(refused.value)
    assert "--normalize_input_keys near fat: no observation 'fat'" in text
    assert "'near', 'far'" in text


def test_what_else_is_wrong_with_a_network_is_not_blamed_on_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: EnvSpec, config: ModelConfig) -> ActorCritic:
        raise ValueError("another mistake")

    monkeypatch.setattr(plan_module, "ActorCritic", broken)

    with pytest.raises(ValueError, match="another mistake"):
        plan_run(config_of({"env": "any", "device": "cpu"}), TWO)
