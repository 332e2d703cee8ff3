"""An env of many agents that fails is lost as a whole, is counted once, and is at the start of an episode again."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from sfactory.actor.env_restarts import EnvFaults
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.errors import EnvError
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.fragile_env import Care
from tests.support.parts import small_layout
from tests.support.scripted_agents import Changes, ScriptedAgents

T = 4


class Made:
    """Two envs, the first of which is as told; and what takes its place."""

    def __init__(self, env: ScriptedAgents, *spare: ScriptedAgents, **limits: Any) -> None:
        self.envs, self.spare = [env, ScriptedAgents(base=5.0)], list(spare)
        self.care = Care(lambda seed: self.spare.pop(0), **limits)
        spec = env.spec
        self.split = MultiAgentSplit(0, self.envs, spec, T, self.care.care)
        self.split.reset([1, 2], "actor 0")
        layout = small_layout(num_actors=1, rows=4, rollout=T, agents=2, slots_per_split=1)
        self.slot: Slot = TrajectoryBuffer(spec, layout).slot(0)

    def play(self, steps: int = T) -> tuple[int, int]:
        """Fill the slot; env steps and agent steps."""
        env_steps = agent_steps = 0
        self.split.begin(self.slot)
        for t in range(steps):
            self.slot.actions["action"][t] = 0
            env_steps += self.split.step()
            agent_steps += self.split.agent_steps
        return env_steps, agent_steps

    def column(self, row: int) -> list[float]:
        """The observations of a row."""
        shown: list[float] = self.slot.obs["obs"][:, row, 0].tolist()
        return shown


def test_an_env_that_raises_in_a_step_is_made_anew_and_all_of_its_rows_are_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = Made(ScriptedAgents(fails=[2]), ScriptedAgents(base=1000.0))

    with caplog.at_level(logging.WARNING):
        steps = made.play()

    slot = made.slot
    assert made.column(0) == [0, 10, 1000, 1010, 1020]
    assert made.column(1) == [1, 11, 1001, 1011, 1021]
    assert slot.valid.T.tolist() == [[True, False, True, True]] * 2 + [[True] * 4] * 2
    assert slot.is_first.T.tolist() == [[True, False, True, False, False]] * 2 + [[True] + [False] * 4] * 2
    assert slot.reward[1].tolist() == [0.0, 0.0, 15.5, 16.5]
    assert slot.counts_env_step is not None
    assert slot.counts_env_step.T.tolist() == [[True, False, True, True], [False] * 4, [True] * 4, [False] * 4]
    assert steps == (7, 14)
    assert made.care.counts() == (1, 0)
    assert made.envs[0].closed == 1
    assert "env 0 of sf-actor-0 raised RuntimeError: step 2 fails" in caplog.text


@pytest.mark.parametrize("what", ["odd", "odd_rewards"])
def test_what_is_no_data_of_one_agent_loses_the_step_of_its_env_and_is_counted_once(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = np.array([np.nan], np.float32) if what == "odd" else np.nan
    faults: dict[str, Any] = {what: {2: nothing}}
    made = Made(ScriptedAgents(**faults), most_bad_data=1.0)

    with caplog.at_level(logging.WARNING):
        made.play()

    assert made.column(0) == [0, 10, 100, 110, 120]
    assert made.column(1) == [1, 11, 101, 111, 121]
    assert made.slot.valid.T.tolist() == [[True, False, True, True]] * 2 + [[True] * 4] * 2
    assert made.slot.reward[1].tolist() == [0.0, 0.0, 15.5, 16.5]
    assert made.care.counts() == (0, 1)
    assert "agent 'bob'" in caplog.text


def test_a_step_that_raises_while_an_agent_stands_aside_leaves_nobody_idle_afterwards() -> None:
    made = Made(ScriptedAgents({1: Changes(terminated=[1])}, fails=[2]), ScriptedAgents(base=1000.0))

    made.play()

    assert made.column(1) == [1, 0, 1001, 1011, 1021]
    assert made.slot.valid[:, :2].T.tolist() == [[True, False, True, True]] * 2
    assert made.slot.terminated[:, 1].tolist() == [True, False, False, False]
    assert made.split.batch.absent == []


def test_a_reset_that_raises_after_an_episode_loses_no_step() -> None:
    ends = {2: Changes(terminated=[0, 1])}
    made = Made(ScriptedAgents(ends, failing_resets=[2]), ScriptedAgents(base=1000.0))

    steps = made.play()

    assert made.column(0) == [0, 10, 1000, 1010, 1020]
    assert made.slot.valid.all()
    assert made.slot.terminated[:, :2].T.tolist() == [[False, True, False, False]] * 2
    assert steps == (8, 16)


def test_a_reset_that_raises_in_the_row_in_which_an_env_rests_is_made_good_in_it() -> None:
    ends = {1: Changes(truncated=[0], terminated=[1])}
    made = Made(ScriptedAgents(ends, failing_resets=[2]), ScriptedAgents(base=1000.0))

    made.play()

    assert made.column(0) == [0, 10, 1000, 1010, 1020]
    assert made.column(1) == [1, 0, 1001, 1011, 1021]
    assert made.slot.valid[:, :2].T.tolist() == [[True, False, True, True]] * 2
    assert made.slot.is_first[:, 0].tolist() == [True, False, True, False, False]


def test_too_many_restarts_end_the_actor() -> None:
    made = Made(ScriptedAgents(fails=[1]), ScriptedAgents(fails=[1]), ScriptedAgents(), most_restarts=1)

    with pytest.raises(EnvFaults, match="env 0 of sf-actor-0 raised RuntimeError: step 1 fails; 1 of the actor's envs"):
        made.play()


def test_episodes_of_a_lost_step_are_told_by_nobody() -> None:
    made = Made(
        ScriptedAgents({3: Changes(terminated=[0, 1])}, fails=[2]), ScriptedAgents({2: Changes(terminated=[0, 1])})
    )

    made.play()

    assert finished_episodes(made.split.episodes) == [(0.5 + 10.5, 2), (1.5 + 11.5, 2)]


def test_an_env_that_is_made_anew_with_other_agents_is_no_env_of_the_split(caplog: pytest.LogCaptureFixture) -> None:
    other = ScriptedAgents()
    other.agents = ("ann", "bob", "cid")
    made = Made(ScriptedAgents(fails=[1]), other, ScriptedAgents(base=1000.0))

    with caplog.at_level(logging.WARNING):
        made.play()

    assert made.column(0) == [0, 1000, 1010, 1020, 1030]
    assert made.care.counts() == (2, 0)
    assert "an env was made with the agents ['ann', 'bob', 'cid'], and another with ['ann', 'bob']" in caplog.text


def test_envs_of_a_split_have_the_same_agents() -> None:
    other = ScriptedAgents()
    other.agents = ("ann",)

    with pytest.raises(EnvError, match=r"made with the agents \['ann'\], and another with \['ann', 'bob'\]"):
        MultiAgentSplit(0, [ScriptedAgents(), other], ScriptedAgents().spec, T)


def test_a_last_observation_that_is_no_data_loses_the_end_of_the_episode_and_the_env_does_not_rest() -> None:
    nothing = {2: np.array([np.inf], np.float32)}
    made = Made(ScriptedAgents({2: Changes(truncated=[0, 1])}, odd=nothing), most_bad_data=1.0)

    made.play()

    assert made.column(0) == [0, 10, 100, 110, 120]
    assert made.slot.valid[:, :2].T.tolist() == [[True, False, True, True]] * 2
    assert not made.slot.truncated.any()
    assert made.slot.is_first[:, 1].tolist() == [True, False, True, False, False]
    assert finished_episodes(made.split.episodes) == []
