"""A batch gives each env its own seed and action, and takes extra statistics; test_split.py has what it records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sfactory.actor.env_batch import EnvBatch
from tests.support.scripted_env import Episode, ScriptedEnv, obs_at


def batch_of(*scripts: list[Episode], kind: type[ScriptedEnv] = ScriptedEnv) -> tuple[EnvBatch, list[ScriptedEnv]]:
    envs = [kind(script) for script in scripts]
    batch = EnvBatch(envs)
    batch.reset(range(len(envs)))
    return batch, envs


def shown(batch: EnvBatch) -> list[float]:
    return [float(obs[0]) for obs in batch.observations]


def test_each_env_gets_its_own_seed_and_actions_and_returns_its_own_reward() -> None:
    batch, envs = batch_of([], [(2, "terminated")], [])

    batch.step([3, 1, 2])
    batch.step([4, 5, 6])

    assert [env.taken for env in envs] == [[3, 4], [1, 5], [2, 6]]
    assert [env.seeds for env in envs] == [[0], [1, None], [2]]
    assert shown(batch) == [2.0, obs_at(1, 0), 2.0]
    assert batch.rewards == [1.5, 1.5, 1.5]


def test_too_few_actions_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 actions for 2 envs"):
        batch_of([], [])[0].step([0])


def test_truncated_envs_can_be_reset_at_once_instead() -> None:
    batch, envs = batch_of([(1, "truncated")], [], [(1, "truncated")])
    batch.step([1, 1, 1])

    assert batch.reset_truncated() == [0, 2]

    assert batch.truncated == batch.reset_truncated() == []
    assert shown(batch) == [obs_at(1, 0), 1.0, obs_at(1, 0)]
    batch.step([2, 2, 2])
    assert batch.resumed == []
    assert [env.taken for env in envs] == [[1, 2], [1, 2], [1, 2]]


class NumpyFlags(ScriptedEnv):
    """Returns numpy's bools, and its number of steps in the info of every step."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"episode_extra_stats": {"steps": len(self.taken)}}
        return obs, reward, np.bool_(terminated), np.bool_(truncated), info


def test_flags_may_be_numpy_bools() -> None:
    batch, _ = batch_of([(1, "truncated")], [(1, "terminated")], kind=NumpyFlags)

    batch.step([0, 0])

    assert (batch.terminated, batch.truncated) == ([1], [0])


def test_extra_statistics_are_taken_only_at_the_ends_of_episodes() -> None:
    batch, _ = batch_of([(2, "terminated"), (1, "both")], [(4, "truncated")], [], kind=NumpyFlags)

    for _ in range(6):
        batch.step([0, 0, 0])

    sent: list[Any] = []
    batch.extras.send(9, lambda message: bool(sent.append(message)))  # type: ignore[func-returns-value]
    assert [(sent[0].actor, sent[0].name, sent[0].values.tolist())] == [(9, "steps", [2.0, 3.0, 4.0])]
