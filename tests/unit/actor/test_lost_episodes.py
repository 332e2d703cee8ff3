"""An env whose every episode ends by a fault ends the actor after some, however late in the episode they come."""

from __future__ import annotations

from typing import Literal

import pytest

from sfactory.actor.env_restarts import LostEpisodes
from sfactory.config.flags import config_of
from sfactory.errors import EnvFaults
from sfactory.shared.status import StatusBoard
from sfactory.spec import EnvSpec
from tests.support.envs import FailsLate
from tests.support.parts import small_run
from tests.support.sampling import SerialSampler
from tests.unit.actor.test_env_faults import waits

__all__ = ["waits"]

SPEC = EnvSpec.of_spaces(FailsLate.observation_space, FailsLate.action_space)
RAISED = "raised ConnectionError: the simulator refused the connection"
NO_FLAG_HELPS = {"max_bad_env_data": 1.0, "min_traj_buffers_per_worker": 30}


@pytest.mark.parametrize(
    ("inference", "how", "cause"),
    [
        ("local", "raise", RAISED),
        ("central", "raise", RAISED),
        ("local", "shape", r"returned invalid data: observation 'obs' has shape \(3,\)"),
        ("central", "dtype", "returned invalid data: observation 'obs' has shape .* complex"),
        ("local", "nan", "returned invalid data: observation 'obs' holds NaN"),
        ("local", "reward", "returned invalid data: reward is inf"),
    ],
)
def test_late_faults_of_any_kind_end_the_actor_once_no_episode_has_finished_for_long(
    waits: list[float], inference: Literal["central", "local"], how: str, cause: str
) -> None:
    env = {"env": "tests.support.envs:FailsLate", "env_kwargs": {"how": how, "at": 30}, "inference": inference}
    flags = small_run(workers=2, envs=2, rollout=32, batch_size=64) | NO_FLAG_HELPS | env

    with SerialSampler(config_of(flags), SPEC) as sampler:
        with pytest.raises(EnvFaults, match=rf"env \d of sf-actor-\d {cause}.*; so ended the last 2\d episodes"):
            sampler.wait_until_held_back()

        assert sampler.shared.status.total("finished_episodes", "") == 0
        assert 20 <= sampler.shared.status.total("lost_episodes", "") < 24


def test_many_env_steps_without_a_fault_start_the_count_again() -> None:
    board = StatusBoard(["sf-actor-0", "sf-actor-1"])
    lost_episodes = LostEpisodes("sf-actor-0", 3, board)

    def lose(times: int, steps_between: int) -> None:
        for _ in range(times):
            board.row("sf-actor-1").add("env_steps", steps_between)
            lost_episodes.add(1, "raised RuntimeError")
            board.row("sf-actor-0").add("lost_episodes", 1)

    lose(30, steps_between=3000)
    with pytest.raises(EnvFaults, match=r"the last 4 episodes of the run, .* unless 3000 env steps lie between"):
        lose(3, steps_between=2999)


def test_an_episode_that_finishes_anywhere_in_the_run_starts_the_count_again() -> None:
    board = StatusBoard(["sf-actor-0", "sf-actor-1"])
    lost_episodes = LostEpisodes("sf-actor-0", 3, board)

    def lose(times: int) -> None:
        for _ in range(times):
            lost_episodes.add(1, "raised RuntimeError")
            board.row("sf-actor-0").add("lost_episodes", 1)

    lose(3)
    board.row("sf-actor-1").add("finished_episodes", 1)
    lose(3)
    with pytest.raises(EnvFaults, match="env 1 of sf-actor-0 raised RuntimeError; so ended the last 4 episodes"):
        lose(1)
