"""A fault of a multi-agent env masks one step of all its agents, is counted once, and starts a new episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.env.multi_agent import AgentsStep
from sfactory.errors import EnvError, EnvFaults
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.episodes import finished_episodes
from tests.support.parts import small_layout
from tests.support.scripted_agents import Changes, ScriptedAgents
from tests.support.scripted_env import FaultRecord, no_faults

T = 4
SECOND_MASKED = [True, False, True, True]  # ``valid`` if the second step is
BOTH_END = Changes(terminated=[0, 1])


class Played:
    """A slot of two envs: ``env``, for which ``replacements`` are made in turn, and one without faults."""

    def __init__(self, env: ScriptedAgents, *replacements: ScriptedAgents, **limits: Any) -> None:
        self.env, stock = env, list(replacements)
        self.record = FaultRecord(lambda seed: stock.pop(0), **limits)
        self.split = MultiAgentSplit(0, [env, ScriptedAgents(base=5.0)], env.spec, T, self.record.handling)
        self.split.reset([1, 2], "actor 0")
        layout = small_layout(num_actors=1, rows=4, rollout=T, agents=2, slots_per_split=1)
        self.slot = TrajectoryBuffer(env.spec, layout).slot(0)
        self.env_steps = self.agent_steps = 0
        self.split.begin(self.slot)
        for t in range(T):
            self.slot.actions["action"][t] = 0
            self.env_steps += self.split.step()
            self.agent_steps += self.split.agent_steps

    def shown(self, row: int) -> list[float]:
        column: list[float] = self.slot.obs["obs"][:, row, 0].tolist()
        return column

    def valid(self) -> list[list[bool]]:
        """By agent of the first env."""
        rows: list[list[bool]] = self.slot.valid[:, :2].T.tolist()
        return rows


def test_an_env_that_raises_in_a_step_is_recreated_and_its_rows_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(ScriptedAgents(fails=[2]), ScriptedAgents(base=1000.0))

    slot = played.slot
    assert played.shown(0) == [0, 10, 1000, 1010, 1020]
    assert played.shown(1) == [1, 11, 1001, 1011, 1021]
    assert slot.valid.T.tolist() == [SECOND_MASKED] * 2 + [[True] * 4] * 2
    assert slot.is_first.T.tolist() == [[True, False, True, False, False]] * 2 + [[True] + [False] * 4] * 2
    assert slot.reward[1].tolist() == [0.0, 0.0, 15.5, 16.5]
    assert slot.counts_env_step is not None
    assert slot.counts_env_step.T.tolist() == [SECOND_MASKED, [False] * 4, [True] * 4, [False] * 4]
    assert (played.env_steps, played.agent_steps) == (7, 14)
    assert played.record.counts() == (1, 0)
    assert played.env.closed == 1
    assert "env 0 of sf-actor-0 raised RuntimeError: step 2 fails" in caplog.text


class Forgetful(ScriptedAgents):
    """Its second step, or its second reset, leaves out an agent."""

    def __init__(self, what: str, **script: Any) -> None:
        super().__init__(**script)
        self._what, self._resets, self._steps = what, 0, 0

    def reset(self, *, seed: int | None = None) -> list[Any]:
        self._resets += 1
        shown = super().reset(seed=seed)
        return shown[:1] if (self._what, self._resets) == ("reset", 2) else shown

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        self._steps += 1
        shown, rewards, change = super().step(actions)
        if self._steps == 2 and self._what == "rewards":
            rewards = rewards[:1]
        elif self._steps == 2 and self._what == "observations":
            shown = shown[:1]
        return shown, rewards, change


@pytest.mark.parametrize("what", ["observations", "rewards"])
def test_an_env_that_leaves_out_an_agent_is_recreated_and_moves_no_other_row(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    played = Played(Forgetful(what), ScriptedAgents(base=1000.0))

    assert played.shown(0) == [0, 10, 1000, 1010, 1020]
    assert played.shown(2) == [5, 15, 25, 35, 45]
    assert played.valid() == [SECOND_MASKED] * 2
    assert f"1 {what}" in caplog.text


def test_an_env_that_leaves_out_an_agent_in_a_reset_is_recreated(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(Forgetful("reset", script={2: BOTH_END}), ScriptedAgents(base=1000.0))

    assert played.shown(0) == [0, 10, 1000, 1010, 1020]
    assert played.shown(2) == [5, 15, 25, 35, 45]
    assert played.valid() == [[True] * T] * 2
    assert "reset() gave 1 observations for 2 agents" in caplog.text


@pytest.mark.parametrize(
    "fault", [{"odd": {2: np.array([np.nan], np.float32)}}, {"odd_rewards": {2: np.nan}}], ids=["observation", "reward"]
)
def test_invalid_data_of_one_agent_masks_the_step_of_its_env_and_counts_once(
    fault: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    played = Played(ScriptedAgents(**fault), most_bad_data=1.0)

    assert played.shown(0) == [0, 10, 100, 110, 120]
    assert played.shown(1) == [1, 11, 101, 111, 121]
    assert played.slot.valid.T.tolist() == [SECOND_MASKED] * 2 + [[True] * 4] * 2
    assert played.slot.reward[1].tolist() == [0.0, 0.0, 15.5, 16.5]
    assert played.record.counts() == (0, 1)
    assert "agent 'bob'" in caplog.text


def test_after_a_failure_an_agent_that_had_ended_acts_again() -> None:
    played = Played(ScriptedAgents({1: Changes(terminated=[1])}, fails=[2]), ScriptedAgents(base=1000.0))

    assert played.shown(1) == [1, 0, 1001, 1011, 1021]
    assert played.valid() == [SECOND_MASKED] * 2
    assert played.slot.terminated[:, 1].tolist() == [True, False, False, False]
    assert played.split.batch.absent == []


def test_a_reset_that_raises_after_an_episode_masks_no_step() -> None:
    played = Played(ScriptedAgents({2: BOTH_END}, failing_resets=[2]), ScriptedAgents(base=1000.0))

    assert played.shown(0) == [0, 10, 1000, 1010, 1020]
    assert played.slot.valid.all()
    assert played.slot.terminated[:, :2].T.tolist() == [[False, True, False, False]] * 2
    assert (played.env_steps, played.agent_steps) == (8, 16)


def test_a_reset_that_raises_in_a_truncation_row_masks_that_row_alone() -> None:
    ends = {1: Changes(truncated=[0], terminated=[1])}
    played = Played(ScriptedAgents(ends, failing_resets=[2]), ScriptedAgents(base=1000.0))

    assert played.shown(0) == [0, 10, 1000, 1010, 1020]
    assert played.shown(1) == [1, 0, 1001, 1011, 1021]
    assert played.valid() == [SECOND_MASKED] * 2
    assert played.slot.is_first[:, 0].tolist() == [True, False, True, False, False]


def test_too_many_restarts_end_the_actor() -> None:
    with pytest.raises(EnvFaults, match="env 0 of sf-actor-0 raised RuntimeError: step 1 fails; 1 of the actor's envs"):
        Played(ScriptedAgents(fails=[1]), ScriptedAgents(fails=[1]), ScriptedAgents(), most_restarts=1)


def test_an_episode_with_a_failed_step_is_not_reported() -> None:
    played = Played(ScriptedAgents({3: BOTH_END}, fails=[2]), ScriptedAgents({2: BOTH_END}))

    assert finished_episodes(played.split.episodes) == [(0.5 + 10.5, 2), (1.5 + 11.5, 2)]


def test_a_replacement_with_other_agents_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    other = ScriptedAgents()
    other.agents = ("ann", "bob", "cid")
    played = Played(ScriptedAgents(fails=[1]), other, ScriptedAgents(base=1000.0))

    assert played.shown(0) == [0, 1000, 1010, 1020, 1030]
    assert played.record.counts() == (2, 0)
    assert "an env was made with the agents ['ann', 'bob', 'cid'], and another with ['ann', 'bob']" in caplog.text
    with pytest.raises(EnvError, match=r"made with the agents \['ann', 'bob', 'cid'\], and another with"):
        MultiAgentSplit(0, [ScriptedAgents(), other], ScriptedAgents().spec, T, no_faults())


def test_an_invalid_final_observation_discards_the_end_of_the_episode_and_resets_the_env_at_once() -> None:
    invalid = {2: np.array([np.inf], np.float32)}
    played = Played(ScriptedAgents({2: Changes(truncated=[0, 1])}, odd=invalid), most_bad_data=1.0)

    assert played.shown(0) == [0, 10, 100, 110, 120]
    assert played.valid() == [SECOND_MASKED] * 2
    assert not played.slot.truncated.any()
    assert played.slot.is_first[:, 1].tolist() == [True, False, True, False, False]
    assert finished_episodes(played.split.episodes) == []
