"""Where agents act in turn, the rows of an agent without those in which it waits are its turns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.env.multi_agent_adapters import TurnAgents
from sfactory.shared.trajectories import NOBODY, TrajectoryBuffer
from tests.support.parts import small_layout
from tests.support.scripted_env import no_faults
from tests.support.turns_env import NAMES, Turn, Turns

ENVS = 2


@pytest.mark.parametrize("rollout", [1, 2, 5, 16, 40])
def test_the_rows_of_an_agent_without_waiting_are_its_turns(rollout: int) -> None:
    games = [Turns(seed) for seed in range(ENVS)]
    envs = [TurnAgents(game) for game in games]
    size, spec = ENVS * len(NAMES), envs[0].spec
    split = MultiAgentSplit(0, envs, spec, rollout, no_faults(), PolicyAssignment(size, len(NAMES), 0))
    split.reset([0] * ENVS, "actor 0")
    layout = small_layout(num_actors=1, rows=size, rollout=rollout, agents=len(NAMES), slots_per_split=1)
    slot, rng = TrajectoryBuffer(spec, layout).slot(0), np.random.default_rng(1)
    found: list[dict[float, tuple[Turn, float]]] = [{} for _ in range(size)]  # valid turns, and what each led to
    env_steps = 0

    for _ in range(1000 // rollout):
        split.begin(slot)
        for t in range(rollout):
            slot.actions["action"][t] = rng.integers(0, 5, size)
            env_steps += split.step()
        split.finish()
        assert slot.policy_id is not None
        for row in range(size):
            acts = np.flatnonzero([*(slot.policy_id[:, row] != NOBODY), True]).tolist()
            for t, after in pairwise(acts):
                assert not slot.valid[t + 1 : after, row].any()
                assert not slot.reward[t + 1 : after, row].any()
                if slot.valid[t, row]:
                    numbers = slot.obs["obs"][:, row, 0]
                    end = "terminated" if slot.terminated[t, row] else ""
                    turn = Turn(numbers[t], int(slot.actions["action"][t, row]), float(slot.reward[t, row]), end)
                    found[row][turn.shown] = turn, float(numbers[after])

    taken = lost = 0
    for row in range(size):
        turns = games[row // len(NAMES)].turns[NAMES[row % len(NAMES)]]
        known: dict[float, Turn] = {turn.shown: turn for turn in turns}
        taken += len(turns)
        lost += len(turns) - len(found[row])
        for shown, (turn, led_to) in found[row].items():
            due = known[shown]
            assert turn == due._replace(end="terminated" if due.end == "terminated" else "")
            if not due.end:  # it led to the next turn of the agent
                following = [other for other in known if other > shown]
                assert not following or led_to == min(following)
            elif due.end == "truncated":  # or to what it was shown last
                assert shown < led_to
                assert led_to not in known
    assert taken == env_steps
    # Turns that end with their slot while the agent waits: of three agents most of the time two wait.
    assert 0 < lost / taken < 3 / rollout
