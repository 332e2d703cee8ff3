"""A step to an observation that allows no action is a fault of the env, unless no action is to be taken there."""

from __future__ import annotations

from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sfactory.action_heads import DiscreteHead
from sfactory.actor.split import Split
from sfactory.config.schema import ModelConfig
from sfactory.shared.trajectories import Slot, TrajectoryBuffer
from sfactory.spec import EnvSpec, TensorSpec
from tests.support.parts import small_layout
from tests.support.scripted_env import EnvStock, Episode, FaultRecord, ScriptedEnv
from tests.unit.actor.test_split import Rows, T, assert_rows, play, steps_from

SEEN = ("obs", TensorSpec((1,), "float32"))
SPEC = EnvSpec((("action_mask", TensorSpec((10,), "int8")), SEEN), (DiscreteHead("action", 10),)).for_model(
    ModelConfig()
)
ENDS: list[Episode] = [(2, "truncated"), (1, "terminated")]
LATE: list[Episode] = [(4, "truncated")]


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Allows everything but after the end of an episode, and nothing where ``stuck`` is shown."""

    def __init__(self, script: list[Episode], stuck: float = -1.0) -> None:
        super().__init__(ScriptedEnv(script))
        self.observation_space = spaces.Dict(obs=self.env.observation_space, action_mask=spaces.MultiBinary(10))
        self._stuck = stuck

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.env.reset(seed=seed)
        return self._shown(obs, False), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(obs, terminated or truncated), reward, terminated, truncated, info

    def _shown(self, obs: Any, over: bool) -> dict[str, Any]:
        return {"obs": obs, "action_mask": np.full(10, 0 if over or obs[0] == self._stuck else 1, np.int8)}


def slots_of(rows: int) -> list[Slot]:
    buffer = TrajectoryBuffer(SPEC, small_layout(rows=rows, rollout=T))
    return [buffer.slot(index) for index in range(2)]


def split_of(env: Masked) -> tuple[Split, FaultRecord]:
    record = FaultRecord(EnvStock().make)
    split = Split.of_envs(0, [env], SPEC, T, record.handling)
    split.reset([0], "actor 0")
    return split, record


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (ENDS, Rows([0, 1, 2, 100, 200], truncated=(1,), terminated=(3,), invalid=(2,), is_first=(0, 3, 4))),
        (LATE, Rows([0, 1, 2, 3, 4], truncated=(3,), is_first=(0,))),
    ],
)
def test_final_observation_need_not_allow_an_action(script: list[Episode], expected: Rows) -> None:
    split, record = split_of(Masked(script))
    slots = slots_of(1)

    play(split, slots[:1])

    assert_rows(slots[0], 0, expected)
    assert record.counts() == (0, 0)


def test_step_to_an_observation_that_allows_nothing_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    split, record = split_of(Masked([], stuck=2.0))
    slots = slots_of(1)

    play(split, slots)

    assert_rows(slots[0], 0, Rows([0, 1, 100, 101, 102], invalid=(1,), is_first=(0, 2)))
    assert_rows(slots[1], 0, steps_from(102))
    assert record.counts() == (0, 1)
    assert "observation 'action_mask' allows no action" in caplog.text


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_final_observation_of_a_vector_env_need_not_allow_an_action(mode: AutoresetMode) -> None:
    record = FaultRecord(EnvStock().make)
    envs = SyncVectorEnv([lambda: Masked(ENDS), lambda: Masked([])], autoreset_mode=mode)
    split = Split.of_envs(0, envs, SPEC, T, record.handling)
    split.reset([0], "actor 0")

    play(split, slots_of(2))

    assert record.counts() == (0, 0)
