"""Inputs of the core are the action and the reward of the step before, and zeros where an episode begins."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory.action_heads import BoxHead, DiscreteHead
from sfactory.actor.multi_agent_split import MultiAgentSplit
from sfactory.actor.policy_assignment import PolicyAssignment
from sfactory.actor.previous_steps import PreviousSteps
from sfactory.actor.split import Split
from sfactory.config.schema import ModelConfig
from sfactory.errors import EnvError
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.spec import LAST_ACTION, LAST_REWARD, EnvSpec, TensorSpec
from tests.support.parts import SCALAR, small_layout
from tests.support.random_env import ACTIONS, OBS, RandomAgents
from tests.support.scripted_env import ScriptedEnv, no_faults
from tests.unit.actor.test_split import CASES, T

BOTH = ModelConfig(core_inputs=("action", "reward"))


def one_hot(actions: Any) -> Any:
    return np.eye(10, dtype=np.float32)[actions]


def filled(split: Split, spec: EnvSpec, slots: int, agents: int = 1) -> list[Slot]:
    """Slots with traces of other rollouts, which must not show through."""
    layout = small_layout(num_actors=1, slots_per_split=slots, rows=split.batch.size, rollout=T, agents=agents)
    buffer, random = TrajectoryBuffer(spec, layout), np.random.default_rng(0)
    filled = [buffer.slot(index) for index in range(slots)]
    split.reset([0] * len(split.batch.envs), "actor 0")
    for slot in filled:
        for leaf in slot.obs.values():
            leaf[...] = 7
        split.begin(slot)
        for t in range(T):
            for head in spec.actions:
                block = slot.actions[head.key][t]
                block[...] = (
                    random.integers(head.n, size=block.shape)
                    if isinstance(head, DiscreteHead)
                    else random.normal(size=block.shape)
                )
            split.step()
        split.finish()
    return filled


def assert_previous(slots: list[Slot]) -> None:
    for index, slot in enumerate(slots):
        for t in range(T + 1):
            first = slot.is_first[t]
            before, row = (slot, t - 1) if t else (slots[index - 1], T - 1)
            if not t and not index:
                assert first.all()
            expected = np.where(first[:, None], 0.0, one_hot(before.actions["action"][row]))
            np.testing.assert_array_equal(slot.obs[LAST_ACTION][t], expected)
            expected = np.where(first, 0.0, before.reward[row])
            np.testing.assert_array_equal(slot.obs[LAST_REWARD][t, :, 0], expected)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_show_the_step_before_them(case: Any) -> None:
    spec = SCALAR.for_model(BOTH)
    split = Split.of_envs(0, [ScriptedEnv(case.script), ScriptedEnv([])], spec, T, no_faults())

    assert_previous(filled(split, spec, 3))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_rows_of_vector_envs_show_the_step_before_them(mode: AutoresetMode) -> None:
    spec = SCALAR.for_model(BOTH)
    scripts: Any = ([(2, "truncated"), (1, "terminated")], [(3, "terminated")])
    envs = SyncVectorEnv([partial(ScriptedEnv, script) for script in scripts], autoreset_mode=mode)

    assert_previous(filled(Split.of_envs(0, envs, spec, T, no_faults()), spec, 2))


def test_an_agent_that_slept_sees_its_own_last_action_and_what_it_earned_since() -> None:
    envs = [RandomAgents(OBS["numbers"], ACTIONS["discrete"], False)]
    spec = EnvSpec.of_spaces(envs[0].observation_space, envs[0].action_space, envs[0].agents).for_model(BOTH)
    split = MultiAgentSplit(0, envs, spec, T, no_faults(), PolicyAssignment(3, 3, 0, None, 1))
    slots = filled(split, spec, 60, agents=3)

    slept, awake = 0, 2
    steps = [(slot, t) for slot in slots for t in range(T)]
    for (slot, t), (then, after) in itertools.pairwise(steps):
        assert slot.policy_id is not None
        assert then.policy_id is not None
        if slot.policy_id[t, awake] < 0 <= then.policy_id[after, awake] and not then.is_first[after, awake]:
            slept += 1
            before = slot.obs[LAST_ACTION][t, awake]
            np.testing.assert_array_equal(then.obs[LAST_ACTION][after, awake], before)
            assert before.sum() == 1.0
            assert then.obs[LAST_REWARD][after, awake] != slot.obs[LAST_REWARD][t, awake]
    assert slept > 3


def test_actions_of_all_heads_stand_side_by_side() -> None:
    box = BoxHead("b", (2,), "float32", (-1.0, -1.0), (1.0, 1.0))
    spec = EnvSpec(SCALAR.obs, (DiscreteHead("a", 3), box, DiscreteHead("c", 2))).for_model(
        ModelConfig(core_inputs=("action",))
    )
    previous, rows = PreviousSteps(spec, 2), {LAST_ACTION: np.ones((2, 7), np.float32)}

    previous.write(rows)
    assert not rows[LAST_ACTION].any()
    actions = {"a": np.array([2, 0]), "b": np.array([[0.5, -3.0], [0.0, 1.0]], np.float32), "c": np.array([0, 1])}
    previous.record(actions, [1.0, 2.0], [], [])
    previous.write(rows)
    assert rows[LAST_ACTION].tolist() == [[0, 0, 1, 0.5, -3, 1, 0], [1, 0, 0, 0, 1, 0, 1]]
    assert LAST_REWARD not in dict(spec.obs)
    assert PreviousSteps.of(SCALAR, 2) is None


def test_an_observation_of_the_same_name_is_refused() -> None:
    spec = EnvSpec(((LAST_REWARD, TensorSpec((1,), "float32")),), SCALAR.actions)
    with pytest.raises(EnvError, match="'last_reward' of its own"):
        spec.for_model(BOTH)
