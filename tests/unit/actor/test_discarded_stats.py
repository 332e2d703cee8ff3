"""What a discarded episode reports at its end is not counted: extra statistics are of the same episodes as lengths.

Envs report the length of each episode at its end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.split import Split
from sfactory.env.multi_agent import AgentsStep
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.episodes import extra_stats, finished_episodes
from tests.support.parts import SCALAR, small_layout
from tests.support.scripted_agents import Changes, ScriptedAgents
from tests.support.scripted_env import Ending, EnvStock, Episode, FaultRecord, Faults, ScriptedEnv
from tests.unit.actor.test_env_faults import make_split
from tests.unit.actor.test_split import T, play, used_slots

NAN_SHOWN = np.array([math.nan], np.float32)


class Reporting(ScriptedEnv):
    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"episode_extra_stats": {"steps": self._step}} if terminated or truncated else {}
        return obs, reward, terminated, truncated, info


class ReportingAgents(ScriptedAgents):
    def step(self, actions: Sequence[Any]) -> AgentsStep:
        shown, rewards, change = super().step(actions)
        infos = [{"episode_extra_stats": {"steps": self._step}}] * 2
        return shown, rewards, None if change is None else change._replace(infos=infos)


def reported(split: Split) -> tuple[list[float], list[float]]:
    """What envs have reported of episodes, and the lengths of those that were counted."""
    return extra_stats(split.batch.extras)["steps"], [length for _, length in finished_episodes(split.episodes)]


@pytest.mark.parametrize(
    ("ending", "faults", "counted"),
    [
        ("terminated", Faults(rewards={2: math.nan}), [1.0]),
        ("truncated", Faults(rewards={2: math.nan}), [1.0]),
        ("truncated", Faults(shown={2: NAN_SHOWN}), [1.0]),
        ("terminated", Faults(shown={2: NAN_SHOWN}), [2.0, 1.0]),
        ("terminated", Faults(reset_shown={2: NAN_SHOWN}), [2.0]),
    ],
)
def test_single_envs_report_nothing_of_an_episode_that_is_discarded(
    ending: Ending, faults: Faults, counted: list[float]
) -> None:
    env = Reporting([(2, ending), (1, "terminated")], faults)
    split, _, slots = make_split([env], EnvStock())

    play(split, slots[:1])

    assert reported(split) == (counted, counted)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_all_envs_of_a_vector_env_report_nothing_of_the_step_that_is_discarded(mode: AutoresetMode) -> None:
    script: list[Episode] = [(2, "terminated"), (1, "terminated")]
    faults = Faults(rewards={2: math.nan})
    makers = [functools.partial(Reporting, script), functools.partial(Reporting, script, faults)]
    env = SyncVectorEnv(makers, autoreset_mode=mode)
    split = Split.of_envs(0, env, SCALAR, T, FaultRecord(lambda seed: env).handling)
    split.reset([0, 0], "actor 0")

    play(split, used_slots(2)[:1])

    assert reported(split) == ([1.0, 1.0], [1.0, 1.0])


def test_agents_report_nothing_of_an_episode_that_is_discarded() -> None:
    both_end = Changes(terminated=[0, 1])
    env = ReportingAgents({2: both_end, 3: both_end}, odd_rewards={2: math.nan})
    split = MultiAgentSplit(0, [env], env.spec, T, FaultRecord(lambda seed: env).handling)
    split.reset([0], "actor 0")
    layout = small_layout(num_actors=1, rows=2, rollout=T, agents=2, slots_per_split=1)

    play(split, [TrajectoryBuffer(env.spec, layout).slot(0)])

    assert reported(split) == ([1.0, 1.0], [1.0, 1.0])
