"""Observations are normalized by statistics of the learned steps; chosen ones only, and instead of scaling."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfactory.action_heads import DiscreteHead
from sfactory.config.flags import config_of
from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import ConfigError
from sfactory.model.normalizer import EPS
from sfactory.planning.plan import plan_run
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import VECTOR, model_of, observations, random_batch, trainer_for

ACTION = (DiscreteHead("action", 2),)
TWO = EnvSpec(obs=(("near", TensorSpec((3,), "float32")), ("far", TensorSpec((2,), "float32"))), actions=ACTION)
IMAGE = EnvSpec(obs=(("image", TensorSpec((3, 8, 8), "uint8", layout="chw")),), actions=ACTION)
MIXED = EnvSpec(obs=(*TWO.obs, *IMAGE.obs), actions=ACTION)
CONV: dict[str, Any] = {"encoder_conv_architecture": "resnet_impala", "encoder_conv_mlp_layers": (8,)}
SCALING: dict[str, Any] = {"obs_subtract_mean": 10.0, "obs_scale": 4.0}


def normalized(leaf: Tensor) -> Tensor:
    """``leaf`` by the statistics of its own rows."""
    rows = leaf.double().numpy()
    return torch.from_numpy((rows - rows.mean(0)) / np.sqrt(rows.var(0) + EPS)).float().clamp(-5.0, 5.0)


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_statistics_are_those_of_valid_steps_without_the_step_after_the_rollout(with_vtrace: bool) -> None:
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
        trainer.train(dataclasses.replace(batch, obs={"obs": obs}, taken=valid, valid=valid))

    assert model.obs_normalizer is not None
    statistics = model.obs_normalizer.state_dict()
    rows = np.concatenate(seen)
    assert trainer.train_step == 12
    assert statistics["normalizers.0.count"].item() == len(rows) < 60
    np.testing.assert_allclose(statistics["normalizers.0.mean"].numpy(), rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(statistics["normalizers.0.var"].numpy(), rows.var(0), rtol=1e-9)


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        (VECTOR, ()),
        (TWO, ("far",)),
        (IMAGE, ("image",)),
        (MIXED, ("image",)),
        (MIXED, ("near",)),
        (MIXED, ("near", "image")),
        (MIXED, ()),
    ],
)
def test_leaves_are_normalized_or_scaled_alike_in_acting_and_learning(spec: EnvSpec, keys: tuple[str, ...]) -> None:
    model = model_of(spec, normalize_input=True, normalize_input_keys=keys, **CONV, **SCALING)
    bare = model_of(spec, **CONV)
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if "normalizer" not in k})
    obs = observations(spec.obs, 30, mean=20.0)
    model.observe(obs, torch.ones(30, dtype=torch.bool))
    prepared = {
        path: normalized(leaf) if not keys or path in keys else (leaf.float() - 10.0) / 4.0
        for path, leaf in obs.items()
    }

    acted, expected = model(obs), bare(prepared)
    rollout = {path: leaf.unsqueeze(0) for path, leaf in obs.items()}
    learned = model.unroll(rollout, torch.zeros(1, 30, 0), torch.zeros(1, 30).bool(), 1)

    for params, value in ((acted.dist_params, acted.value), (learned.dist_params, learned.values[0])):
        torch.testing.assert_close(params, expected.dist_params, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(value, expected.value, rtol=1e-3, atol=1e-3)


def test_unknown_key_is_refused_before_the_run() -> None:
    config = config_of({"env": "any", "device": "cpu", "normalize_input_keys": ("near", "fat")})

    with pytest.raises(ConfigError, match=r"--normalize_input_keys near fat: no observation 'fat'.*'near', 'far'"):
        plan_run(config, TWO)
