"""Actors that join over a network: each transition is learned from once, also if some of them are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfactory.config.schema import Config, LearnerConfig, ModelConfig, RunConfig, SamplingConfig
from sfactory.errors import ExitCode
from sfactory.spec import EnvSpec
from sfactory_envs.synthetic.counting import FIELD_LIMIT, Counting, CountingRules, decode
from tests.support.counting_check import Column, check_columns
from tests.support.processes import eventually
from tests.support.remote import RemoteActors, free_port, token_file
from tests.support.sampling import Array, Sampler, WitnessStaging
from tests.support.trainer import CLEAN_S, END_S, ENDLESS, RunTrainer, TrainerRun, within

COUNTING = "sfactory_envs.synthetic.counting:Counting"
SPEC = EnvSpec.of_spaces(Counting().observation_space, Counting().action_space)
ROLLOUT, ENVS, TRANSITIONS = 5, 4, 800
JOINED_S = within(30.0)
Start = Callable[..., RemoteActors]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts remote actors; ends what still runs after the test."""
    token_file(tmp_path)
    started: list[RemoteActors] = []

    def begin(port: int, env: str, **settings: Any) -> RemoteActors:
        started.append(RemoteActors(tmp_path, port, env, **settings))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def counting_config(port: int, folder: Path) -> Config:
    env_kwargs = {"min_length": 1, "max_length": 2 * ROLLOUT + 1, "ends": "mixed"}
    return Config(
        run=RunConfig(env=COUNTING, env_kwargs=env_kwargs, device="cpu"),
        sampling=SamplingConfig(
            num_workers=0,
            num_envs_per_worker=ENVS,
            worker_num_splits=1,
            inference="local",
            rollout=ROLLOUT,
            remote_actors_port=port,
            remote_actors_token_file=str(folder / "token"),
        ),
        learner=LearnerConfig(batch_size=7 * ROLLOUT),  # slots are cut
        model=ModelConfig(
            encoder_mlp_layers=(16,), obs_scale=float(FIELD_LIMIT), normalize_input=False, normalize_returns=False
        ),
    )


class Collected:
    """What a sampler, in the place of a learner, has received; it publishes each version as the value of all states."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self._staging = sampler, WitnessStaging(sampler)
        self.datasets: list[dict[str, Array]] = []
        with torch.no_grad():
            sampler.model.value_head.linear.weight.zero_()
        self._publish(0)

    def _publish(self, version: int) -> None:
        with torch.no_grad():
            self._sampler.model.value_head.linear.bias.fill_(version)
        self._sampler.publish(version)

    def add(self, transitions: int, envs: int = 0) -> None:
        """Receive so many more, and something of at least ``envs`` envs: actors that have joined start at some time."""
        due, end = self.delivered + transitions, time.monotonic() + END_S
        while self.delivered < due or len(self.by_env()) < envs:
            assert time.monotonic() < end, f"{self.delivered} transitions of {len(self.by_env())} envs have come"
            self._sampler.fill(self._staging)
            self.datasets.append(self._staging.snapshot())
            self._publish(len(self.datasets))

    @property
    def delivered(self) -> int:
        """Valid transitions so far."""
        return sum(int(dataset["valid"].sum()) for dataset in self.datasets)

    def waiting(self) -> int:
        """Valid transitions in slots, none of which is being filled."""
        return self._staging.untaken_env_steps(self._sampler.shared.trajectories.slots())

    def by_env(self) -> dict[int, list[dict[str, Array]]]:
        """The rows of each env, in the order in which they came."""
        found: dict[int, list[dict[str, Array]]] = {}
        for dataset in self.datasets:
            for row in range(dataset["obs"].shape[1]):
                fields = {name: array[:, row] for name, array in dataset.items()}
                found.setdefault(decode(fields["obs"][0]).identity, []).append(fields)
        return found


def kill_all(remote: RemoteActors) -> None:
    """As if its machine had lost power."""
    remote.signal_group(signal.SIGKILL)
    remote.assert_all_gone(CLEAN_S)


def test_every_transition_of_remote_actors_arrives_once_though_one_is_killed(tmp_path: Path, start: Start) -> None:
    port = free_port()
    sampler = Sampler(counting_config(port, tmp_path), SPEC)
    with sampler:
        collected = Collected(sampler)
        killed, stays = start(port, COUNTING), start(port, COUNTING, workers=2)
        assert eventually(lambda: all("joined the run" in each.stderr for each in (killed, stays)), JOINED_S)
        collected.add(TRANSITIONS, 3 * ENVS)
        kill_all(killed)
        collected.add(TRANSITIONS)
        sampler.wait_until_held_back()
        sampled = sampler.shared.status.total("env_steps", "sf-actor")
        waiting = collected.waiting()
    assert stays.wait(END_S) == ExitCode.DONE
    stays.assert_all_gone(CLEAN_S)

    envs = collected.by_env()
    assert len(envs) == 3 * ENVS
    columns = [Column.of_slots(rollouts, ROLLOUT) for rollouts in envs.values()]
    counts = check_columns(columns, CountingRules(max_length=2 * ROLLOUT + 1, ends="mixed"))
    assert sum(each.rows["valid"] for each in counts) == collected.delivered
    assert sampled == collected.delivered + waiting
    assert 0 < stays.result()["env_steps"] < sampled  # those of the one that was killed are not among them
    for rollouts in envs.values():
        versions = np.stack([rollout["policy_version"] for rollout in rollouts])
        assert np.array_equal(versions, np.stack([rollout["value"] for rollout in rollouts]))
        assert (np.diff(versions.ravel()) >= 0).all()
        assert (versions == versions[:, :1]).all()


@pytest.mark.long
def test_a_run_goes_on_without_a_remote_actor_that_is_killed_and_accounts_for_all_steps(
    run_trainer: RunTrainer, tmp_path: Path, start: Start
) -> None:
    port, env = free_port(), "CartPole-v1"
    flags = {"remote_actors_port": port, "remote_actors_token_file": tmp_path / "token", "inference": "local"}
    run = run_trainer(**flags, num_workers=0, train_for_env_steps=ENDLESS)
    killed, stays = start(port, env), start(port, env)
    run.wait_until(lambda: run.stderr.count("has joined") == 2 and run.saved_env_steps() > 0)

    kill_all(killed)
    run.wait_until("is lost: nothing came from it for")
    run.saves_again()
    os.kill(run.pid_of("sf-actor-remote"), signal.SIGKILL)
    run.wait_until("sf-actor-remote was killed by SIGKILL.*replaced")
    run.wait_until(lambda: run.stderr.count("has joined") == 3)
    run.saves_again()
    stays.signal_group(signal.SIGINT)
    assert stays.wait(END_S) == ExitCode.SIGINT, stays.report("wrong end")
    stays.assert_all_gone(CLEAN_S)
    run.wait_until("has left; 0 are there")
    run.stop()

    assert "not acknowledged are lost" in stays.stderr
    assert "interrupted: the result is what the run has acknowledged" in stays.stderr
    assert "before there was a result" not in stays.stderr
    row = run.metrics()[-1]
    known = row["perf/received_steps"] + row["perf/held_steps"] + row["perf/discarded_steps"]
    assert row["perf/sampled_env_steps"] == known > 0
    assert run.result()["episodes"] > 0
    if "from the checkpoint at" not in run.stderr:  # there it was killed within a queue, and all counts began again
        assert stays.result()["env_steps"] <= known


def refused(remote: RemoteActors, text: str) -> None:
    """It ends as refused, and says why."""
    assert remote.wait(END_S) == ExitCode.REFUSED, remote.report("not refused")
    assert text in remote.stderr, remote.report(f"does not say {text}")


@pytest.mark.long
def test_remote_actors_of_another_env_and_code_that_only_the_run_names_are_refused(
    run_trainer: RunTrainer, tmp_path: Path, start: Start
) -> None:
    port = free_port()
    flags = {"remote_actors_port": port, "remote_actors_token_file": tmp_path / "token", "inference": "local"}
    wrapper = ("tests.support.wrapped_envs:HalfReward",)
    run: TrainerRun = run_trainer(**flags, num_workers=1, wrapper=wrapper, train_for_env_steps=ENDLESS)
    run.wait_until("remote actors can join")

    refused(start(port, "Acrobot-v1"), "--env=CartPole-v1")
    refused(start(port, "CartPole-v1"), "--trust_learner=True")
    run.wait_until_training()
    run.stop()


@pytest.mark.long
def test_remote_actors_alone_learn_cartpole(run_trainer: RunTrainer, tmp_path: Path, start: Start) -> None:
    port = free_port()
    flags = {"remote_actors_port": port, "remote_actors_token_file": tmp_path / "token", "task_defaults": True}
    own = ("num_envs_per_worker", "rollout", "batch_size", "worker_num_splits", "inference", "encoder_mlp_layers")
    run = run_trainer(**{**dict.fromkeys(own), **flags}, num_workers=0, train_for_env_steps=150_000)
    remote = start(port, "CartPole-v1", workers=2)

    assert run.wait(within(300.0)) == ExitCode.DONE
    assert remote.wait(END_S) == ExitCode.DONE
    assert run.result()["best_episode_return_mean"] > 400
