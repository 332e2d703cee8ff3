"""Envs of many agents as others write them are told apart, and tell the same of their agents."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.env.multi_agent import BadAgents, Change, blank
from sfactory.env.multi_agent_adapters import ListedAgents, ParallelAgents, agents_env_of
from sfactory.errors import EnvError
from tests.support.scripted_agents import ScriptedAgents
from tests.support.scripted_env import ScriptedEnv

BOX, DISCRETE = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(3)
NAMES = ["x", "y", "z"]


class Parallel:
    """PettingZoo's form, with a script: what ``agents`` are after each step, and the flags of the step."""

    def __init__(self, *script: tuple[str, dict[str, bool], dict[str, bool]], names: list[Any] | None = None) -> None:
        self.possible_agents: list[Any] = NAMES if names is None else names
        self.agents: list[Any] = []
        self.spaces: dict[Any, spaces.Space[Any]] = defaultdict(lambda: BOX)
        self.script, self.taken = list(script), list[dict[Any, Any]]()
        self.start = list(self.possible_agents)
        self.left_out: set[Any] = set()

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        return self.spaces[agent]

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return DISCRETE

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        self.agents = list(self.start)
        return {agent: agent for agent in self.agents}, {}

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        self.taken.append(actions)
        acted = self.agents
        after, died, cut = self.script.pop(0)
        self.agents = list(after)
        shown = {agent: f"{agent}{len(self.taken)}" for agent in acted if agent not in self.left_out}
        shown |= {agent: f"{agent}{len(self.taken)}" for agent in self.agents if agent not in self.left_out}
        return shown, dict.fromkeys(acted, 1.0), died, cut, {agent: {"of": agent} for agent in acted}


def parallel(*script: tuple[str, dict[str, bool], dict[str, bool]]) -> tuple[ParallelAgents, Parallel]:
    env = Parallel(*script)
    agents = agents_env_of(env)
    assert isinstance(agents, ParallelAgents)
    agents.reset(seed=3)
    return agents, env


class Lists:
    """The form of lists, of two agents; ``told``: what the next step gives."""

    num_agents = 2
    observation_space, action_space = BOX, DISCRETE

    def __init__(self) -> None:
        self.told: tuple[list[Any], ...] = ([], [], [], [], [])
        self.infos: Any = [{}, {}]

    def reset(self, *, seed: int | None = None) -> tuple[list[Any], list[Any]]:
        return [0, 1], self.infos

    def step(self, actions: list[Any]) -> tuple[list[Any], ...]:
        return self.told


def test_what_an_env_is_is_seen_from_what_it_has() -> None:
    own, single = ScriptedAgents(), ScriptedEnv([])

    assert agents_env_of(own) is own
    assert agents_env_of(single) is None
    assert agents_env_of(None) is None
    assert isinstance(agents_env_of(Lists()), ListedAgents)


@pytest.mark.parametrize(("is_multiagent", "count", "many"), [(None, 1, False), (False, 3, False), (True, 1, True)])
def test_an_env_of_lists_says_whether_it_is_one(is_multiagent: bool | None, count: int, many: bool) -> None:
    env = Lists()
    env.num_agents = count
    if is_multiagent is not None:
        env.is_multiagent = is_multiagent  # type: ignore[attr-defined]

    assert (agents_env_of(env) is not None) == many


def test_an_env_whose_agents_act_in_turn_is_refused() -> None:
    class InTurn(Parallel):
        def last(self) -> None: ...

        def agent_iter(self) -> None: ...

    with pytest.raises(EnvError, match=r"agents that act in turn \(AEC\); return its parallel_env\(\)"):
        agents_env_of(InTurn())


def test_spaces_that_differ_are_refused_with_the_names_of_two_agents() -> None:
    env = Parallel()
    env.spaces["y"] = spaces.Box(0, 9, (2,), np.float32)

    with pytest.raises(EnvError, match=r"agent 'x' has the observation space Box.*and agent 'y' has Box.*pad"):
        ParallelAgents(env)


@pytest.mark.parametrize(
    ("names", "message"), [([], "is empty"), (["a", "a"], "names an agent twice"), ([1, "1"], "names an agent twice")]
)
def test_agents_without_names_of_their_own_are_refused(names: list[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        ParallelAgents(Parallel(names=names))


def test_while_everybody_plays_on_nothing_has_changed() -> None:
    agents, env = parallel(("xyz", {}, {}), ("xyz", dict.fromkeys("xyz", False), {}))

    assert agents.step([0, 1, 2]) == (("x1", "y1", "z1"), (1.0, 1.0, 1.0), None)
    assert agents.step([0, 1, 2])[2] is None
    assert env.taken == [{"x": 0, "y": 1, "z": 2}] * 2


def test_an_agent_that_ends_is_told_once_and_asked_no_more() -> None:
    agents, env = parallel(("xz", {"y": True}, {"y": True}), ("xz", {"y": True}, {}), ("", {"x": True}, {"z": True}))

    first, second, third = agents.step([0, 1, 2]), agents.step([0, 1, 2]), agents.step([0, 1, 2])

    none, told = [False] * 3, [{"of": "x"}, {"of": "y"}, {"of": "z"}]
    assert first == (["x1", "y1", "z1"], [1.0] * 3, Change([False, True, False], none, [True, False, True], told))
    assert second == (["x2", None, "z2"], [1.0, 0.0, 1.0], None)
    assert third[2] == Change([True, False, False], [False, False, True], none, [told[0], {}, told[2]])
    assert env.taken == [{"x": 0, "y": 1, "z": 2}, {"x": 0, "z": 2}, {"x": 0, "z": 2}]


def test_who_is_not_among_the_agents_and_not_over_sleeps() -> None:
    agents, env = parallel(("xz", {}, {}), ("xyz", {}, {}), ("xyz", {}, {}))

    asleep, awake, later = agents.step([0, 1, 2]), agents.step([0, 1, 2]), agents.step([0, 1, 2])

    assert asleep[2] is not None
    assert (asleep[0][1], asleep[2].active) == ("y1", [True, False, True])
    assert not any(asleep[2].terminated + asleep[2].truncated)  # type: ignore[operator]
    assert awake[2] is not None
    assert (awake[0][1], awake[2].active) == ("y2", [True] * 3)
    assert later[2] is None
    assert [sorted(actions) for actions in env.taken] == [["x", "y", "z"], ["x", "z"], ["x", "y", "z"]]


def test_who_begins_an_episode_asleep_shows_nothing() -> None:
    agents, env = parallel()
    env.start = ["x", "z"]

    assert agents.reset() == ["x", None, "z"]


def test_once_nobody_is_left_whoever_was_not_told_of_was_cut_off() -> None:
    agents, _ = parallel(("xz", {}, {}), ("", {"x": True}, {}))
    agents.step([0, 1, 2])

    change = agents.step([0, 1, 2])[2]

    assert change is not None
    assert (change.terminated, change.truncated) == ([True, False, False], [False, True, True])


def test_a_new_episode_begins_with_everybody() -> None:
    agents, env = parallel(("", dict.fromkeys("xyz", True), {}), ("xyz", {}, {}))
    agents.step([0, 1, 2])
    agents.reset()

    assert agents.step([0, 1, 2])[2] is None
    assert sorted(env.taken[1]) == NAMES


def test_agents_that_appear_from_nowhere_are_named() -> None:
    agents, _ = parallel(("xyzw", {}, {}))

    with pytest.raises(BadAgents, match="'w' among the env's agents, but not in its possible_agents"):
        agents.step([0, 1, 2])


def test_an_agent_that_is_over_and_stays_is_named() -> None:
    agents, _ = parallel(("xyz", {"y": True}, {}), ("xyz", {}, {}))
    agents.step([0, 1, 2])

    with pytest.raises(BadAgents, match="agent 'y' is over, and is among the env's agents all the same"):
        agents.step([0, 1, 2])


@pytest.mark.parametrize("everybody", [True, False])
def test_an_agent_that_plays_on_unseen_is_named(everybody: bool) -> None:
    agents, env = parallel(("xyz" if everybody else "xy", {}, {}))
    env.left_out = {"y"}

    with pytest.raises(BadAgents, match=r"no observation.* of agent 'y', who takes part"):
        agents.step([0, 1, 2])


def test_an_env_of_one_parallel_agent_is_one_of_many() -> None:
    env = Parallel(("x", {}, {}), names=["x"])
    agents = agents_env_of(env)
    assert agents is not None
    agents.reset()

    assert agents.step([2]) == (("x1",), (1.0,), None)


def test_lists_are_passed_on_and_flags_that_stay_are_told_once() -> None:
    env = Lists()
    agents = ListedAgents(env)
    agents.reset(seed=1)
    env.told = ([5, 6], [0.5, 1.5], [False, False], [False, False], [{}, {}])
    assert agents.step([0, 0]) == ([5, 6], [0.5, 1.5], None)

    env.told = ([5, 6], [0.5, 1.5], [True, False], [True, False], [{"a": 1}, {}])
    assert agents.step([0, 0])[2] == Change([True, False], [False, False], [False, True], [{"a": 1}, {}])
    assert agents.step([0, 0])[2] is None


def test_in_lists_who_is_not_active_sleeps() -> None:
    env = Lists()
    agents = ListedAgents(env)
    env.infos = [{"is_active": False}, {}]
    assert agents.reset() == [None, 1]

    env.told = ([5, 6], [0.5, 1.5], [False, False], [False, False], [{}, {"is_active": False}])
    assert agents.step([0, 0])[2] == Change([False] * 2, [False] * 2, [True, False], env.told[4])
    env.told = ([5, 6], [0.5, 1.5], [False, True], [False, False], [{}, {"is_active": False}])
    assert agents.step([0, 0])[2] == Change([False, True], [False] * 2, [True, False], env.told[4])


@pytest.mark.parametrize(("place", "what"), [(0, "observations"), (1, "rewards"), (2, "terminated"), (4, "infos")])
def test_lists_of_another_length_are_refused(place: int, what: str) -> None:
    env = Lists()
    agents = ListedAgents(env)
    agents.reset()
    told: list[list[Any]] = [[5, 6], [0.5, 1.5], [True, False], [False, False], [{}, {}]]
    told[place] = told[place] * 2
    env.told = tuple(told)

    with pytest.raises(BadAgents, match=rf"step\(\) gave 4 {what} for 2 agents"):
        agents.step([0, 0])


def test_the_blank_observation_has_the_structure_of_the_space() -> None:
    space = spaces.Dict(a=BOX, b=spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]))

    shown = blank(space)

    assert shown["a"].tolist() == [0.0]
    assert (shown["b"][0], shown["b"][1].tolist()) == (0, [0, 0])
    assert shown["b"][0].dtype == np.int64


def test_a_plain_env_that_counts_its_agents_is_not_one_of_many() -> None:
    class Crowd(ScriptedEnv):
        num_agents = "many"

    env: gymnasium.Env[Any, Any] = Crowd([])

    assert agents_env_of(env) is None
