"""Who plays which row: one policy for a whole split, one drawn for each env or agent, or what a function says."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactory.actor.policy_assignment import CustomAssignment, PolicyAssignment, RandomAssignment
from sfactory.config.schema import LearnerConfig, PopulationConfig, SamplingConfig
from sfactory.errors import EnvError
from sfactory.layout import Layout
from sfactory.shared.trajectories import NOBODY, Slot, TrajectoryBuffer
from sfactory.spec import DiscreteHead, EnvSpec, TensorSpec
from sfactory_envs.mappings import by_number

T, ENVS, AGENTS, POLICIES = 4, 3, 2, 3
SPEC = EnvSpec((("obs", TensorSpec((1,), "float32")),), (DiscreteHead("action", 2),))


def make_slot() -> Slot:
    sampling = SamplingConfig(num_workers=1, num_envs_per_worker=2 * ENVS * AGENTS, rollout=T)
    learner = LearnerConfig(batch_size=T)
    layout = Layout.plan(sampling, learner, "central", population=PopulationConfig(num_policies=POLICIES))
    return TrajectoryBuffer(SPEC, layout).slot(0)


def ids_of(slot: Slot) -> np.ndarray:
    assert slot.policy_id is not None
    return slot.policy_id


def test_a_split_of_one_policy_is_that_policys_in_every_row_of_every_slot() -> None:
    slot, assignment = make_slot(), PolicyAssignment(ENVS * AGENTS, AGENTS, policy=2)

    assignment.begin(slot, ())
    assignment.begin_episodes([0, 3])
    assignment.write(slot, 1, ())

    assert (ids_of(slot) == 2).all()
    assert assignment.present == (2,)
    assert list(assignment.may_play) == [2]


def test_for_rows_that_are_absent_nobody_acts_and_others_go_on() -> None:
    slot, assignment = make_slot(), PolicyAssignment(ENVS * AGENTS, AGENTS, policy=1)
    assignment.begin(slot, [0])
    assignment.write(slot, 1, [0, 5])
    everybody_else = assignment.present
    assignment.write(slot, 2, range(ENVS * AGENTS))
    nobody = assignment.present
    assignment.write(slot, 3, ())

    assert ids_of(slot)[0].tolist() == [NOBODY, 1, 1, 1, 1, 1]
    assert ids_of(slot)[1].tolist() == [NOBODY, 1, 1, 1, 1, NOBODY]
    assert (ids_of(slot)[2] == NOBODY).all()
    assert (ids_of(slot)[3] == 1).all()
    assert (everybody_else, nobody, assignment.present) == ((1,), (), (1,))


@given(each_agent=st.booleans(), episodes=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_a_policy_is_drawn_anew_only_when_as_many_episodes_are_over(each_agent: bool, episodes: int, seed: int) -> None:
    assignment = PolicyAssignment(
        ENVS * AGENTS, AGENTS, 0, RandomAssignment(POLICIES, episodes, each_agent, seed), POLICIES
    )
    played = [assignment.ids.copy()]
    for _ in range(4 * episodes):
        assignment.begin_episodes([0, 1])
        played.append(assignment.ids.copy())

    for episode, ids in enumerate(played):
        assert np.isin(ids, range(POLICIES)).all()
        assert assignment.present == tuple(np.unique(assignment.ids).tolist())
        if episode % episodes:
            assert (ids == played[episode - 1]).all()
        assert (ids[AGENTS:] == played[0][AGENTS:]).all(), "envs whose episodes go on keep their policies"
        if not each_agent:
            assert (ids.reshape(ENVS, AGENTS) == ids.reshape(ENVS, AGENTS)[:, :1]).all()


def test_in_the_long_run_every_policy_is_drawn_alike() -> None:
    assignment = PolicyAssignment(
        ENVS * AGENTS, AGENTS, 0, RandomAssignment(POLICIES, 1, each_agent=True, seed=3), POLICIES
    )
    counts = np.zeros(POLICIES, int)
    for _ in range(2000):
        assignment.begin_episodes(range(ENVS * AGENTS))
        counts += np.bincount(assignment.ids, minlength=POLICIES)

    share = counts / counts.sum()
    assert np.abs(share - 1 / POLICIES).max() < 0.02


def test_a_users_function_is_asked_for_each_agent_with_the_episode_and_the_env_of_the_run() -> None:
    asked = []

    def who(agent: str, episode: int, env: int) -> int:
        asked.append((agent, episode, env))
        return (env + episode) % POLICIES if agent == "red" else 0

    draw = CustomAssignment("m:who", who, ("red", "blue"), first_env=10, policies=POLICIES)
    assignment = PolicyAssignment(ENVS * AGENTS, AGENTS, 0, draw, POLICIES)
    assignment.begin_episodes([2, 3])

    assert asked[:2] == [("red", 0, 10), ("blue", 0, 10)]
    assert asked[-2:] == [("red", 1, 11), ("blue", 1, 11)]
    assert assignment.ids.tolist() == [10 % 3, 0, 12 % 3, 0, 12 % 3, 0]


@pytest.mark.parametrize("answer", [-1, 3, 1.0, "1", None, True])
def test_what_is_no_policy_is_an_error_that_tells_who_said_it_of_whom(answer: object) -> None:
    draw = CustomAssignment("m:who", lambda agent, episode, env: answer, ("red",), 4, POLICIES)  # type: ignore[arg-type, return-value]

    with pytest.raises(EnvError, match=re.escape(f"--policy_mapping=m:who returned {answer!r} for agent 'red'")):
        draw.draw(0, 0, np.zeros(1, np.int16))


def test_agents_can_have_policies_of_their_own_by_the_numbers_in_their_names() -> None:
    assert [by_number(agent, 3, 5) for agent in ("agent_0", "agent_12", "adversary7")] == [0, 12, 7]
    with pytest.raises(ValueError, match="'ann' does not end with a number"):
        by_number("ann", 0, 0)


def by_agent() -> PolicyAssignment:
    """Of three envs, whose agents are played by policy 0 and policy 1."""
    draw = CustomAssignment("here:by_number", by_number, ("agent_0", "agent_1"), 0, POLICIES)
    return PolicyAssignment(ENVS * AGENTS, AGENTS, 0, draw, POLICIES)


def test_who_was_absent_when_a_slot_ended_acts_again_where_the_next_begins() -> None:
    slot, assignment = make_slot(), by_agent()
    assignment.begin(slot, ())
    assignment.write(slot, T - 1, [1, 3, 5])
    without_policy_1 = assignment.present

    assignment.begin(slot, ())

    assert without_policy_1 == (0,)
    assert assignment.present == (0, 1)
    assert ids_of(slot)[0].tolist() == [0, 1] * ENVS


def test_whoever_wants_to_know_is_told_when_it_was_drawn_who_plays_next() -> None:
    assignment, told = by_agent(), []
    assignment.after_draw = lambda: told.append(assignment.ids.tolist())

    assignment.begin_episodes([2])

    assert told == [[0, 1] * ENVS]
