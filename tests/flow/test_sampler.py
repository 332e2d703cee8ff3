"""A sampler gives whole trajectories of the weights that were set last, and ends with its faults."""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import sfactory
from sfactory.errors import ConfigError, DivergedError, EnvError, SFactoryError
from tests.support.launches import SHORT
from tests.support.long import long
from tests.support.processes import eventually
from tests.support.random_env import InformedAgents
from tests.support.saved_run import BANDIT, CONTEXTS, LENGTH, save_run

FLAGS: dict[str, Any] = {**SHORT, "env": "CartPole-v1", "max_episode_steps": 5, "seed": 1}


def open_files() -> list[str]:
    folder = Path("/proc/self/fd")
    return [os.readlink(folder / fd) for fd in os.listdir(folder) if (folder / fd).is_symlink()]


@pytest.mark.parametrize(
    "layout", [{"serial_mode": True}, {"inference": "local"}, long({"inference": "central"})], ids=str
)
def test_batches_are_trajectories_of_the_weights_that_were_set(layout: dict[str, Any]) -> None:
    of_learning = {"num_batches_per_epoch": 2, "num_epochs": 3}
    flags = {**FLAGS, **layout, **of_learning, "use_rnn": True, "async_rl": False, "normalize_input": True}
    with sfactory.sampler(**flags) as sampler:
        first = next(sampler)
        shape = first.rewards.shape
        assert shape == (16, 8)
        assert first.obs["obs"].shape == (17, 8, 4)
        own = sampler.forward(first)
        assert torch.allclose(own.log_probs[first.valid], first.log_probs[first.valid], atol=1e-5)
        assert torch.allclose(own.values[:-1][first.valid], first.values[first.valid], atol=1e-4)
        seen = first.obs["obs"][:-1][first.valid]
        for batch, version in zip(sampler, range(1, 4), strict=False):
            assert int(batch.policy_version[batch.valid].min()) == sampler.version == version - 1
            time, row = (index[0] for index in (batch.truncated[:-2].nonzero(as_tuple=True)))
            assert not batch.valid[time + 1, row]
            assert batch.is_first[time + 2, row]
            assert not (batch.truncated & batch.terminated).any()
            own = sampler.forward(batch)  # with the statistics that have acted
            assert torch.allclose(own.log_probs[batch.valid], batch.log_probs[batch.valid], atol=1e-5)
            (-own.log_probs.mean()).backward()
            weights = {name: weight + 0.01 for name, weight in sampler.model.state_dict().items()}
            seen = torch.cat([seen, batch.obs["obs"][:-1][batch.valid]])
            sampler.set_weights(weights)
            assert sampler.version == version
            normalizer = sampler.model.obs_normalizer
            assert normalizer is not None
            (learned,) = normalizer.by_key.values()
            assert learned.count == len(seen)
            assert torch.allclose(learned.mean, seen.double().mean(0))
            assert torch.allclose(learned.var, seen.double().var(0, correction=0))
        assert sampler.episode_return_mean is not None
        assert 1.0 <= sampler.episode_return_mean <= 5.0
        broken = {name: weight * float("nan") for name, weight in weights.items()}
        with pytest.raises(DivergedError):
            sampler.set_weights(broken)
        sampler.close()
        with pytest.raises(SFactoryError, match="the sampler is closed"):
            next(sampler)
        assert not any("sfactory-trajectories" in file for file in open_files())


def test_statistics_of_observations_that_are_set_before_the_first_batch_are_gone_on_from() -> None:
    with sfactory.sampler(**{**FLAGS, "serial_mode": True, "normalize_input": True}) as sampler:
        saved = {name: value.clone() for name, value in sampler.model.state_dict().items()}
        (count,) = (name for name in saved if name.startswith("obs_normalizer") and name.endswith("count"))
        saved[count] += 1000
        sampler.set_weights(saved)
        batch = next(sampler)
        sampler.set_weights()

        assert sampler.model.state_dict()[count] == 1000 + batch.valid.sum()


def test_a_serial_sampler_that_was_interrupted_within_a_step_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    step, steps = CartPoleEnv.step, itertools.count(1)

    def interrupted(env: CartPoleEnv, action: int) -> Any:
        if next(steps) == 20:  # within the first batch
            signal.raise_signal(signal.SIGINT)
        return step(env, action)

    monkeypatch.setattr(CartPoleEnv, "step", interrupted)
    with sfactory.sampler(**FLAGS, serial_mode=True) as sampler:
        with pytest.raises(KeyboardInterrupt):
            next(sampler)
        with pytest.raises(SFactoryError, match="open another one"):
            next(sampler)


def test_memory_of_agents_that_sleep_stays_the_same() -> None:
    kwargs = {"obs": "numbers", "actions": "discrete", "masked": False, "agents": "three"}
    flags = {**FLAGS, "env": "tests.support.random_env:random_env", "env_kwargs": kwargs, "use_rnn": True}
    with sfactory.sampler(**{**flags, "max_episode_steps": 0, "serial_mode": True}) as sampler:
        batch = next(sampler)
        assert batch.held is not None
        assert batch.held.any()
        own = sampler.forward(batch)

    assert torch.allclose(own.log_probs[batch.valid], batch.log_probs[batch.valid], atol=1e-5)


def test_envs_are_shown_the_env_steps_that_were_handed_out() -> None:
    of_one_env: dict[str, Any] = {
        "num_envs_per_worker": 1,
        "worker_num_splits": 1,
        "batch_size": 16 * 3,
        "max_episode_steps": 0,
    }
    InformedAgents.shown.clear()
    handed_out = [0]
    flags = {**FLAGS, **of_one_env, "env": InformedAgents, "serial_mode": True, "async_rl": False}
    with sfactory.sampler(**flags) as sampler:
        for batch in itertools.islice(sampler, 4):
            handed_out.append(handed_out[-1] + int(batch.valid.any(dim=1).sum()))

    assert InformedAgents.shown == handed_out[:-1]
    assert handed_out[-1] > 30


def test_a_sampler_begins_with_the_weights_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    save_run(certainty=30.0)
    env: dict[str, Any] = {
        "env": BANDIT,
        "env_kwargs": {"num_contexts": CONTEXTS, "length": LENGTH},
        "max_episode_steps": 0,
    }
    network: dict[str, Any] = {"encoder_mlp_layers": (), "normalize_input": True, "normalize_returns": True}
    network |= {"normalize_actions": False}  # of Box actions alone
    with sfactory.sampler(**{**FLAGS, **env, **network, "serial_mode": True, "init_from": "run"}) as sampler:
        batch = next(sampler)

    assert caplog.text.count("may compute something else here: it was trained with --normalize_actions=True") == 1
    assert batch.policy_version.max() == 0
    assert (batch.rewards == 1.0)[batch.valid].all()


def kill_waiting_actor() -> None:
    """Kill it once it waits for a free slot: within a call of a ring it would leave the ring locked."""
    (actor,) = (each for each in psutil.Process().children(recursive=True) if each.name() == "sf-actor-0")
    used = [-2.0, -1.0]

    def waits() -> bool:
        used.append(sum(actor.cpu_times()[:2]))
        return used[-1] == used[-2] == used[-3]

    assert eventually(waits, 60.0, every_s=0.5)
    actor.kill()


def test_a_killed_actor_is_replaced_and_one_too_many_ends_the_sampler() -> None:
    with sfactory.sampler(**{**FLAGS, "inference": "local", "max_worker_restarts": 1}) as sampler:
        next(sampler)
        kill_waiting_actor()
        for _ in range(5):
            next(sampler)
        kill_waiting_actor()
        with pytest.raises(SFactoryError, match="sf-actor-0"):
            list(itertools.islice(sampler, 1000))


def test_what_a_sampler_does_not_do_is_refused(tmp_path: Path) -> None:
    hooks: dict[str, Any] = {
        "observers": [sfactory.Observer()],
        "after_train_step": ["tests.no:hook"],
        "eval_interval_sec": 9,
    }
    starts: dict[str, Any] = {"restart_behavior": "resume", "load_checkpoint_kind": "best", "train_dir": str(tmp_path)}
    others: dict[str, Any] = {"with_pbt": True, "autotune": True, "num_policies": 2, "num_envs_per_worker": 8}
    with pytest.raises(ConfigError) as caught, sfactory.sampler(**{**FLAGS, **hooks, **starts, **others}):
        pass
    named = [re.split("[ =]", problem.removeprefix("--"))[0] for problem in caught.value.problems]
    assert sorted(named) == sorted({*hooks, *starts, *others} - {"train_dir", "num_envs_per_worker"})
    for flags, error in (
        ({"gama": 1}, ConfigError),
        ({"init_from": "no_such_run", "serial_mode": True}, ConfigError),
        ({"env": "sfactory_envs.synthetic.bandit:Bandit", "env_kwargs": {"num_contexts": 1}}, EnvError),
    ):
        with pytest.raises(error), sfactory.sampler(**{**FLAGS, "max_episode_steps": 0, **flags}):
            pass
