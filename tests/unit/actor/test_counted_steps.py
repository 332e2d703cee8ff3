"""What the table is told of a slot while it is filled: valid steps of agents, by the policy that played them."""

from __future__ import annotations

import numpy as np
import pytest

from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import AssignmentRule, PolicyAssignment, RandomAssignment
from sfactory.env.multi_agent_adapters import agents_env_of
from sfactory.shared.slots import SlotTable
from sfactory.shared.trajectories import NOBODY, TrajectoryBuffer
from sfactory_envs.synthetic.counting_agents import AgentsRules, CountingLists
from tests.support.parts import small_layout

ENVS, POLICIES, ROLLOUT, SLOTS = 3, 3, 16, 40
OWN = 1  # the policy of the split, where that is fixed
RULES = AgentsRules(all_may_sleep=True)
ROWS = ENVS * RULES.agents


@pytest.mark.parametrize("is_drawn", [False, True], ids=["one policy for ever", "drawn"])
def test_counted_are_the_valid_steps_of_agents_that_sleep_and_die_by_policy(is_drawn: bool) -> None:
    envs = [agents_env_of(CountingLists(RULES.agents, RULES.max_length)) for _ in range(ENVS)]
    made = [env for env in envs if env is not None]
    spec = made[0].spec
    draw: AssignmentRule | None = RandomAssignment(POLICIES, 1, True, seed=1) if is_drawn else None
    assignment = PolicyAssignment(ROWS, RULES.agents, OWN, draw, POLICIES)
    split = MultiAgentSplit(0, made, spec, ROLLOUT, assignment=assignment)
    split.reset(list(range(ENVS)), "actor 0")
    layout = small_layout(
        num_actors=1, rows=ROWS, rollout=ROLLOUT, agents=RULES.agents, slots_per_split=1, num_policies=POLICIES
    )
    table = SlotTable(layout.num_actors, layout.splits, layout.slots_per_split, layout.num_policies)
    trajectories = TrajectoryBuffer(spec, layout)
    slot, invalid, nobodys = trajectories.slot(0), 0, 0

    for _ in range(SLOTS):
        table.begin(0)
        split.begin(slot)
        for t in range(ROLLOUT):
            slot.actions["action"][t] = 0
            split.step()
            split.count_steps(table)
            assert slot.policy_id is not None
            valid, ids = slot.valid[: t + 1], slot.policy_id[: t + 1]
            counted = [table.steps(0, policy) for policy in range(POLICIES)]
            assert counted == [int(np.count_nonzero(valid & (ids == policy))) for policy in range(POLICIES)]
            assert sum(counted) == np.count_nonzero(valid)
        invalid += int(np.count_nonzero(~slot.valid))
        nobodys += int(np.count_nonzero(slot.policy_id == NOBODY))
        split.finish()
        table.publish(0, *range(POLICIES))
        for policy in range(POLICIES):
            table.release(0, policy)

    # Or nothing of it would be proven.
    assert invalid > nobodys > 0
