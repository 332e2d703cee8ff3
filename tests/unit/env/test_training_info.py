"""Envs that want to know how far training is get it before their first reset, in whatever form they are made."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import pytest

from sfactory.actor.reward_shaping import default_reward_shaping, shaped_env
from sfactory.config.schema import WrapperConfig
from sfactory.env.factory import EnvFactory
from sfactory.env.info_masks import InfoMaskAgentsEnv
from sfactory.env.training_info import informed_envs, set_training_info
from sfactory.errors import EnvError
from sfactory_envs.synthetic.counting_agents import CountingLists
from tests.support.scripted_env import ScriptedEnv
from tests.unit.env.test_action_masks import Pair, PairInTurn


class Calls:
    """Records the order of calls."""

    calls: list[Any]

    def set_training_info(self, info: Any) -> None:
        self.calls = [*getattr(self, "calls", []), dict(info)]

    def reset(self, **how: Any) -> Any:
        self.calls = [*getattr(self, "calls", []), "reset"]
        return super().reset(**how)  # type: ignore[misc]


class Curriculum(Calls, ScriptedEnv):
    """Of one agent."""


class Lists(Calls, CountingLists):  # type: ignore[misc]
    """Of several agents."""


class Masked(Calls, Pair):  # type: ignore[misc]
    """Of two agents, with masks in their infos."""


class Vector(Calls, gymnasium.vector.SyncVectorEnv):
    """Of many envs."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([lambda: gymnasium.make("CartPole-v1")] * num_envs)


class Refusing(ScriptedEnv):
    """Cannot use what it is given."""

    def set_training_info(self, info: Any) -> None:
        raise KeyError("total_steps")


def on_top(env: Any) -> Any:
    return gymnasium.wrappers.TimeLimit(env, 5)


FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("Curriculum", "off", {}),
    ("Curriculum", "off", {"wrapper": (f"{__name__}:on_top",), "env_framestack": 2}),
    ("Lists", "off", {"env_framestack": 2}),
    ("Masked", "on", {}),
    ("Vector", "off", {}),
]


@pytest.mark.parametrize(("name", "masks", "wrappers"), FORMS)
def test_an_env_gets_the_trained_steps_when_it_is_made_and_through_all_wrappers(
    name: str, masks: str, wrappers: dict[str, Any]
) -> None:
    factory = EnvFactory(f"{__name__}:{name}", {}, 1, masks, WrapperConfig(**wrappers), env_steps=70)

    env = factory.either()
    env.reset(seed=1)
    set_training_info(env, 90)

    (informed,) = informed_envs(env)
    assert informed.calls == [{"env_steps": 70}, "reset", {"env_steps": 90}]


def of_several(num_envs: int) -> Any:
    makers: list[Any] = [lambda: on_top(Curriculum()), ScriptedEnv, Curriculum]
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.vector.SyncVectorEnv(makers[:num_envs]))


def test_those_in_a_vector_env_of_gymnasium_get_them_each() -> None:
    env = EnvFactory(f"{__name__}:of_several", env_steps=70).vector(3, seed=0)
    env.reset(seed=1)
    set_training_info(env, 90)

    informed = informed_envs(env)
    assert [type(each) for each in informed] == [Curriculum, Curriculum]
    assert [each.calls for each in informed] == [[{"env_steps": 70}, "reset", {"env_steps": 90}]] * 2


def in_processes(num_envs: int) -> Any:
    env = gymnasium.vector.AsyncVectorEnv([lambda: on_top(Curriculum())] * num_envs)
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(env)


def test_those_in_processes_of_gymnasium_get_them_each() -> None:
    env: Any = EnvFactory(f"{__name__}:in_processes", env_steps=70).vector(2, seed=0)
    env.reset(seed=1)
    set_training_info(env, 90)

    assert informed_envs(env) == informed_envs(env)  # actors call it only if there is news
    assert env.unwrapped.call("calls") == ([{"env_steps": 70}, "reset", {"env_steps": 90}],) * 2
    env.close()


class Turns(Calls, PairInTurn):  # type: ignore[misc]
    """Of two agents that act in turn, with reward shaping."""

    metadata: ClassVar[dict[str, Any]] = {"is_parallelizable": True}
    render_mode = None

    def get_default_reward_shaping(self) -> dict[str, float]:
        return {"step": 1.0}

    def set_reward_shaping(self, reward_shaping: object, agent_idx: int) -> None: ...


def test_methods_of_an_env_of_turns_are_found_in_its_parallel_form() -> None:
    conversions = pytest.importorskip("pettingzoo.utils.conversions")
    env = Turns()

    converted = conversions.aec_to_parallel(env)

    assert informed_envs(converted) == [env]
    assert shaped_env(converted) is env
    assert default_reward_shaping(InfoMaskAgentsEnv(converted)) == {"step": 1.0}


def test_one_that_raises_is_named() -> None:
    with pytest.raises(EnvError, match=r":Refusing: set_training_info\(\) raised KeyError: 'total_steps'"):
        EnvFactory(f"{__name__}:Refusing").either()


def test_envs_without_the_method_are_left_alone() -> None:
    assert informed_envs(gymnasium.wrappers.TimeLimit(ScriptedEnv(), 5)) == []
    assert informed_envs(gymnasium.vector.SyncVectorEnv([ScriptedEnv])) == []
    in_processes = gymnasium.vector.AsyncVectorEnv([Curriculum, ScriptedEnv])
    assert informed_envs(in_processes) == []
    in_processes.close()
    set_training_info(ScriptedEnv(), 5)
