"""Where agents act in turn with action masks, those that wait need no legal action after a fault of their env."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.env.multi_agent_adapters import TurnAgents
from sfactory.shared.trajectories import TrajectoryBuffer
from tests.support.parts import small_layout
from tests.support.scripted_env import FaultRecord
from tests.support.turns_env import NAMES, Turns

T = 6


class MaskedTurns(Turns):
    """The agents act one after the other and stay. ``raises``, ``odd``: numbers of turns that fail, or show NaN."""

    def __init__(self, raises: tuple[int, ...] = (), odd: tuple[int, ...] = ()) -> None:
        super().__init__()
        self._raises, self._odd = raises, odd

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(seen=super().observation_space(agent), action_mask=spaces.MultiBinary(5))

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = super().last()
        seen = np.full_like(seen, np.nan) if self._shown in self._odd else seen
        return {"seen": seen, "action_mask": np.ones(5, np.int8)}, reward, terminated, truncated, info

    def step(self, action: Any) -> None:
        if self._shown in self._raises:
            raise RuntimeError(f"turn {self._shown} fails")
        super().step(action)

    def _leave(self) -> None: ...


@pytest.mark.parametrize(
    ("faulty", "counts", "spoiled"), [({"raises": (3,)}, (1, 0), 2), ({"odd": (3,)}, (0, 1), 1)], ids=["raises", "NaN"]
)
def test_a_game_of_turns_with_masks_goes_on_after_a_fault(
    faulty: dict[str, Any], counts: tuple[int, int], spoiled: int
) -> None:
    record = FaultRecord(lambda seed: TurnAgents(MaskedTurns()), most_restarts=1, most_bad_data=1.0)
    envs = [TurnAgents(MaskedTurns(**faulty)), TurnAgents(MaskedTurns())]
    spec, rows = envs[0].spec.masked_by(()), 2 * len(NAMES)
    split = MultiAgentSplit(0, envs, spec, T, record.handling, PolicyAssignment(rows, len(NAMES), 0))
    split.reset([1, 2], "actor 0")
    layout = small_layout(num_actors=1, rows=rows, rollout=T, agents=len(NAMES), slots_per_split=1)
    slot = TrajectoryBuffer(spec, layout).slot(0)
    split.begin(slot)
    env_steps = 0
    for t in range(T):
        slot.actions["action"][t] = 0
        env_steps += split.step()

    assert record.counts() == counts
    assert slot.is_first[:, 0].nonzero()[0].tolist() == [0, spoiled + 1]
    assert slot.is_first[:, len(NAMES)].nonzero()[0].tolist() == [0]
    assert env_steps == 2 * T - 1
