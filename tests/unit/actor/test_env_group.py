"""A group steps its envs, resets those that ended, and resets truncated ones a step later or at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sfactory.actor.env_batch import EnvBatch, reward_row
from tests.support.scripted_env import Episode, ScriptedEnv, obs_at


def group_of(*scripts: list[Episode]) -> tuple[EnvBatch, list[ScriptedEnv]]:
    envs = [ScriptedEnv(script) for script in scripts]
    group = EnvBatch(envs)
    group.reset(range(len(envs)))
    return group, envs


def shown(group: EnvBatch) -> list[float]:
    return [float(obs[0]) for obs in group.observations]


def test_every_env_is_reset_with_its_own_seed_and_only_once_with_one() -> None:
    group, envs = group_of([(1, "terminated")], [])

    group.step([0, 0])

    assert [env.seeds for env in envs] == [[0, None], [1]]


def test_each_env_gets_its_own_action_and_gives_its_own_reward() -> None:
    group, envs = group_of([], [], [])

    group.step([3, 1, 2])
    group.step([4, 5, 6])

    assert [env.taken for env in envs] == [[3, 4], [1, 5], [2, 6]]
    assert shown(group) == [2.0, 2.0, 2.0]
    assert reward_row(group.rewards).tolist() == [1.5, 1.5, 1.5]
    assert (group.terminated, group.truncated, group.resumed) == ([], [], [])


def test_too_few_actions_are_an_error() -> None:
    group, _ = group_of([], [])

    with pytest.raises(ValueError, match="1 actions for 2 envs"):
        group.step([0])


@pytest.mark.parametrize("ending", ["terminated", "both"])
def test_a_terminated_env_shows_its_reset_at_once(ending: str) -> None:
    group, envs = group_of([], [(1, ending)])  # type: ignore[list-item]

    group.step([0, 0])

    assert (group.terminated, group.truncated, group.resumed) == ([1], [], [])
    assert shown(group) == [1.0, obs_at(1, 0)]
    assert group.rewards == [0.5, 0.5]
    group.step([0, 7])
    assert (group.terminated, envs[1].taken) == ([], [0, 7])


def test_a_truncated_env_shows_its_final_observation_for_one_step() -> None:
    group, envs = group_of([], [(1, "truncated")])

    group.step([0, 1])
    assert (group.terminated, group.truncated, group.resumed) == ([], [1], [])
    assert shown(group) == [1.0, obs_at(0, 1)]

    group.step([0, 2])
    assert (group.terminated, group.truncated, group.resumed) == ([], [], [1])
    assert shown(group) == [2.0, obs_at(1, 0)]
    assert group.rewards == [1.5, 0.0]

    group.step([0, 3])
    assert (group.terminated, group.truncated, group.resumed) == ([], [], [])
    assert shown(group) == [3.0, obs_at(1, 1)]
    # The action of the row in which it was reset was thrown away.
    assert envs[1].taken == [1, 3]


def test_truncated_envs_can_be_reset_at_once_instead() -> None:
    group, envs = group_of([(1, "truncated")], [], [(1, "truncated")])
    group.step([1, 1, 1])

    late = group.reset_truncated()

    assert late == [0, 2]
    assert group.truncated == []
    assert shown(group) == [obs_at(1, 0), 1.0, obs_at(1, 0)]
    group.step([2, 2, 2])
    assert group.resumed == []
    assert [env.taken for env in envs] == [[1, 2], [1, 2], [1, 2]]


def test_without_a_truncation_there_is_nothing_to_reset() -> None:
    group, envs = group_of([(1, "terminated")])
    group.step([0])

    assert group.reset_truncated() == []
    assert len(envs[0].seeds) == 2


def test_an_env_that_raises_is_not_hidden() -> None:
    class Broken(ScriptedEnv):
        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
            raise RuntimeError("the simulator is gone")

    group = EnvBatch([ScriptedEnv([]), Broken([])])
    group.reset([0, 1])

    with pytest.raises(RuntimeError, match="the simulator is gone"):
        group.step([0, 0])


def test_flags_may_be_numpy_bools() -> None:
    class NumpyFlags(ScriptedEnv):
        def step(self, action: int) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, np.bool_(terminated), np.bool_(truncated), info

    group = EnvBatch([NumpyFlags([(1, "truncated")]), NumpyFlags([(1, "terminated")])])
    group.reset([0, 1])

    group.step([0, 0])

    assert (group.terminated, group.truncated) == ([1], [0])


class Telling(ScriptedEnv):
    """Tells its steps so far in the info of every step."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"episode_extra_stats": {"steps": len(self.taken)}}


def test_extra_statistics_are_taken_at_the_ends_of_episodes_and_nowhere_else() -> None:
    group = EnvBatch([Telling([(2, "terminated"), (1, "both")]), Telling([(4, "truncated")]), Telling([])])
    group.reset([0, 1, 2])

    for _ in range(6):
        group.step([0, 0, 0])

    told: list[Any] = []

    def put(message: Any) -> bool:
        told.append(message)
        return True

    assert group.extras.send(9, put)
    assert [(message.actor, message.name, message.values.tolist()) for message in told] == [
        (9, "steps", [2.0, 3.0, 4.0])
    ]
