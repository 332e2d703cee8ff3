"""Envs that want to know how far training is get it before a rollout, whatever wraps them."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from sfactory.actor.split import Split
from sfactory.actor.training_info import send_training_info
from tests.support.parts import SCALAR
from tests.support.scripted_env import ScriptedEnv, no_faults
from tests.unit.actor.test_split import T, play, used_slots


class Curriculum(ScriptedEnv):
    def __init__(self) -> None:
        super().__init__()
        self.received: list[Any] = []

    def set_training_info(self, info: Any) -> None:
        self.received.append((dict(info), len(self.taken)))


def test_envs_get_the_trained_steps_before_each_rollout_with_news() -> None:
    inner, other, steps = Curriculum(), ScriptedEnv(), [0]
    wrapped: gymnasium.Env[Any, Any] = TimeLimit(inner, 1000)
    split = Split.of_envs(0, [wrapped, other], SCALAR, T, no_faults())
    send_training_info([split], lambda: steps[0])
    split.reset([0, 1], "actor 0")
    slots = used_slots(2)

    for slot, news in zip([*slots, *slots], [0, 0, 7, 9], strict=False):
        steps[0] = news
        play(split, [slot])

    assert inner.received == [({"env_steps": 0}, 0), ({"env_steps": 7}, 2 * T), ({"env_steps": 9}, 3 * T)]


def test_those_in_a_vector_env_get_them_too() -> None:
    env = SyncVectorEnv([Curriculum, ScriptedEnv, Curriculum])
    split = Split.of_envs(0, env, SCALAR, T, no_faults())
    send_training_info([split], lambda: 5)
    split.reset([0, 1, 2], "actor 0")

    play(split, used_slots(3)[:2])

    assert [each.received for each in env.envs if isinstance(each, Curriculum)] == [[({"env_steps": 5}, 0)]] * 2


def test_envs_without_the_method_cost_nothing() -> None:
    split = Split.of_envs(0, [ScriptedEnv()], SCALAR, T, no_faults())
    send_training_info([split], lambda: 0)
    assert split.before_slot == []
