"""Brax's own envs as TensorEnvs: their rows, their ends, and memory that is shared with JAX."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.env.factory import EnvFactory
from sfactory.env.tensor_env import TensorEnv
from sfactory.errors import EnvError
from sfactory.packages import lack_of
from sfactory.planning.tensor_env_check import check_tensor_env
from sfactory_envs.brax import FAMILY
from tests.support.warm_process import finished

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(lack_of(FAMILY.modules, FAMILY.extra)), reason="Brax is not installed"),
]
ENVS, LENGTH = 3, 7


def made(name: str = "fast", **kwargs: object) -> TensorEnv:
    return EnvFactory(f"brax:{name}", {"episode_length": LENGTH, **kwargs}).tensors(ENVS)


def test_episodes_are_truncated_and_begin_again_in_the_next_step() -> None:
    env = made("inverted_pendulum", backend="spring")
    check_tensor_env(env, "--env=brax:inverted_pendulum")

    first = env.reset(seed=3).clone()
    shown = [env.step(torch.zeros(ENVS, 1)) for _ in range(LENGTH + 2)]
    obs = [step.obs.clone() for step in shown]

    ends = [step.truncated.tolist() for step in shown]
    assert ends == [[False] * ENVS] * (LENGTH - 1) + [[True] * ENVS] + [[False] * ENVS] * 2
    assert not any(step.terminated.any() for step in shown)
    assert torch.equal(obs[LENGTH], first)
    assert torch.equal(obs[LENGTH + 1], obs[0])
    assert not torch.equal(obs[LENGTH - 1], first)
    assert shown[LENGTH].rewards.tolist() == [0.0] * ENVS
    assert shown[0].rewards.tolist() == [1.0] * ENVS


def test_steps_are_those_of_brax() -> None:
    jax: Any = importlib.import_module("jax")
    envs: Any = importlib.import_module("brax.envs")
    env = made("inverted_pendulum", backend="spring")
    obs = env.reset(seed=5).clone()
    brax = envs.get_environment("inverted_pendulum", backend="spring")
    keys = jax.random.split(jax.random.PRNGKey(5), ENVS)
    state, step = jax.jit(jax.vmap(brax.reset))(keys), jax.jit(jax.vmap(brax.step))

    for number in range(LENGTH):
        np.testing.assert_allclose(obs.numpy(), np.asarray(state.obs), rtol=1e-5, atol=1e-6)
        actions = torch.full((ENVS, 1), 0.1 * number)
        state = step(state, jax.numpy.asarray(actions.numpy()))
        obs = env.step(actions).obs.clone()


def test_tensors_share_their_memory_with_jax() -> None:
    env: Any = made()
    env.reset(seed=1)
    env.step(torch.zeros(ENVS, *env.single_action_space.shape))
    step = env.step(torch.zeros(ENVS, *env.single_action_space.shape))

    assert env._step._cache_size() == 1  # compiled once
    assert step.obs.data_ptr() == env._shown[0].unsafe_buffer_pointer()
    assert step.obs.dtype is torch.float32
    assert step.terminated.dtype is torch.bool


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(EnvError, match="inverted_pendulum"):
        made("inverted_pendulums")


def test_a_run_learns_resumes_and_is_played(tmp_path: Path) -> None:
    flags = [
        *("--env=brax:inverted_pendulum", "--experiment=brax", "--device=cpu", "--seed=1", "--with_tensorboard=False"),
        *("--num_envs_per_worker=64", "--batch_size=256", "--num_batches_per_epoch=4", "--gamma=0.99"),
        *("--encoder_mlp_layers", "64", "64", "--train_dir=runs", "--learning_rate=1e-3"),
        '--env_kwargs={"backend": "spring", "episode_length": 200}',
    ]
    results = []
    for limit in (3_000, 60_000):
        done = finished("sfactory.train", *flags, f"--train_for_env_steps={limit}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout.splitlines()[-1]))
    first, last = results
    assert "resumed at" in done.stderr
    assert last["env_steps"] >= 60_000
    assert last["episode_return_mean"] > 2.0 * first["episode_return_mean"]
    played = finished("sfactory.enjoy", "--experiment=brax", "--train_dir=runs", "--max_num_episodes=1", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
