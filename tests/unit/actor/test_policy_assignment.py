"""A row is acted on by one policy for a whole split, by one drawn for each env or agent, or by a function's choice."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactory.actor.policy_assignment import (
    AssignmentRule,
    PolicyAssignment,
    custom_assignment,
    lasting_policies,
    random_assignment,
)
from sfactory.errors import EnvError
from sfactory.shared.trajectories import NOBODY, Slot, TrajectoryBuffer
from sfactory_envs.mappings import by_number
from tests.support.parts import SCALAR, small_layout

T, ENVS, AGENTS, POLICIES = 4, 3, 2, 3
ROWS = ENVS * AGENTS


def assignment_of(rule: AssignmentRule | None = None, policy: int = 0) -> PolicyAssignment:
    return PolicyAssignment(ROWS, AGENTS, policy, rule, POLICIES if rule else 1)


def by_agent() -> PolicyAssignment:
    """Agents act with policy 0 and policy 1."""
    return assignment_of(custom_assignment("here:by_number", by_number, ("agent_0", "agent_1"), 0, POLICIES))


def make_slot() -> Slot:
    return TrajectoryBuffer(SCALAR, small_layout(rows=ROWS, rollout=T, num_policies=POLICIES)).slot(0)


def ids_of(slot: Slot) -> np.ndarray:
    assert slot.policy_id is not None
    return slot.policy_id


def test_a_fixed_policy_acts_in_every_row() -> None:
    slot, assignment = make_slot(), assignment_of(policy=2)

    assignment.begin(slot, ())
    assignment.begin_episodes([0, 3])
    assignment.write(slot, 1, ())

    assert (ids_of(slot) == 2).all()
    assert assignment.present == (2,)
    assert list(assignment.may_play) == [2]


def test_no_policy_acts_in_absent_rows() -> None:
    slot, assignment = make_slot(), assignment_of(policy=1)
    present = []
    assignment.begin(slot, [0])
    for t, absent in enumerate(([0, 5], range(ROWS), ()), start=1):
        assignment.write(slot, t, absent)
        present.append(assignment.present)

    assert ids_of(slot)[:2].tolist() == [[NOBODY, 1, 1, 1, 1, 1], [NOBODY, 1, 1, 1, 1, NOBODY]]
    assert (ids_of(slot)[2] == NOBODY).all()
    assert (ids_of(slot)[3] == 1).all()
    assert present == [(1,), (), (1,)]


@given(each_agent=st.booleans(), episodes=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_a_new_policy_is_drawn_only_after_the_set_number_of_episodes(
    each_agent: bool, episodes: int, seed: int
) -> None:
    assignment = assignment_of(random_assignment(POLICIES, episodes, each_agent, seed))
    played = [assignment.ids.copy()]
    for _ in range(4 * episodes):
        assignment.begin_episodes([0, 1])
        played.append(assignment.ids.copy())

    assert assignment.present == tuple(np.unique(assignment.ids).tolist())
    for episode, ids in enumerate(played):
        assert np.isin(ids, range(POLICIES)).all()
        if episode % episodes:
            assert (ids == played[episode - 1]).all()
        assert (ids[AGENTS:] == played[0][AGENTS:]).all(), "envs in mid-episode keep their policies"
        if not each_agent:
            assert (ids.reshape(ENVS, AGENTS) == ids.reshape(ENVS, AGENTS)[:, :1]).all()


def test_every_policy_is_drawn_equally_often() -> None:
    assignment = assignment_of(random_assignment(POLICIES, 1, each_agent=True, seed=3))
    counts = np.zeros(POLICIES, int)
    for _ in range(2000):
        assignment.begin_episodes(range(ROWS))
        counts += np.bincount(assignment.ids, minlength=POLICIES)

    assert np.abs(counts / counts.sum() - 1 / POLICIES).max() < 0.02


def test_a_function_is_called_for_each_agent_with_the_episode_and_the_env_of_the_run() -> None:
    calls = []

    def choose(agent: str, episode: int, env: int) -> int:
        calls.append((agent, episode, env))
        return (env + episode) % POLICIES if agent == "red" else 0

    assignment = assignment_of(custom_assignment("m:choose", choose, ("red", "blue"), first_env=10, policies=POLICIES))
    assignment.begin_episodes([2, 3])

    assert calls[:2] == [("red", 0, 10), ("blue", 0, 10)]
    assert calls[-2:] == [("red", 1, 11), ("blue", 1, 11)]
    assert assignment.ids.tolist() == [10 % 3, 0, 12 % 3, 0, 12 % 3, 0]


@pytest.mark.parametrize("answer", [-1, 3, 1.0, "1", None, True])
def test_a_function_that_returns_no_policy_is_an_error_that_names_it_and_the_agent(answer: object) -> None:
    rule = custom_assignment("m:who", lambda agent, episode, env: answer, ("red",), 4, POLICIES)  # type: ignore[arg-type, return-value]

    with pytest.raises(EnvError, match=re.escape(f"--policy_mapping=m:who returned {answer!r} for agent 'red'")):
        rule(0, 0, np.zeros(1, np.int16))


def test_the_mapping_by_number_reads_the_number_at_the_end_of_a_name() -> None:
    assert [by_number(agent, 3, 5) for agent in ("agent_0", "agent_12", "adversary7")] == [0, 12, 7]
    with pytest.raises(ValueError, match="'ann' does not end with a number"):
        by_number("ann", 0, 0)


def test_agents_absent_at_the_end_of_a_slot_act_again_in_the_next() -> None:
    slot, assignment = make_slot(), by_agent()
    assignment.begin(slot, ())
    assignment.write(slot, T - 1, [1, 3, 5])
    present = [assignment.present]

    assignment.begin(slot, ())

    assert [*present, assignment.present] == [(0,), (0, 1)]
    assert ids_of(slot)[0].tolist() == [0, 1] * ENVS


def test_after_draw_is_called_once_policies_were_chosen() -> None:
    assignment, seen = by_agent(), []
    assignment.after_draw = lambda: seen.append(assignment.ids.tolist())

    assignment.begin_episodes([2])

    assert seen == [[0, 1] * ENVS]


def later(agent: str, episode: int, env: int) -> int:
    """One policy for all agents in the first hundred episodes, then one for each."""
    return 0 if episode < 100 else by_number(agent, episode, env)


def test_a_function_lasts_if_it_does_not_choose_otherwise_in_later_episodes() -> None:
    agents = ("agent_0", "agent_1")

    assert lasting_policies("sfactory_envs.mappings:by_number", agents, 2) == (0, 1)
    assert lasting_policies(f"{__name__}:later", agents, 2) == ()
