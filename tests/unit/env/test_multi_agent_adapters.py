"""Multi-agent envs with other interfaces are recognised, and report the same of their agents as an AgentsEnv."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.env.lifecycle import close_env
from sfactory.env.multi_agent import BadAgents, Change, blank
from sfactory.env.multi_agent_adapters import ListedAgents, ParallelAgents, TurnAgents, UnequalAgents, agents_env_of
from sfactory.errors import EnvError
from tests.support.scripted_agents import ScriptedAgents
from tests.support.scripted_env import ScriptedEnv

BOX, DISCRETE = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(3)
NAMES = ["x", "y", "z"]
Flags = dict[str, bool]


class Parallel:
    """An env with PettingZoo's interface. script: by step, its agents after it, and the flags that it returns."""

    def __init__(self, *script: tuple[str, Flags, Flags], names: list[Any] | None = None) -> None:
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
        after, terminated, truncated = self.script.pop(0)
        self.agents = list(after)
        shown = {agent: f"{agent}{len(self.taken)}" for agent in [*acted, *self.agents] if agent not in self.left_out}
        return shown, dict.fromkeys(acted, 1.0), terminated, truncated, {agent: {"of": agent} for agent in acted}


def parallel(*script: tuple[str, Flags, Flags]) -> tuple[ParallelAgents, Parallel]:
    env = Parallel(*script)
    agents = agents_env_of(env)
    assert isinstance(agents, ParallelAgents)
    agents.reset(seed=3)
    return agents, env


class Lists:
    """An env with the list interface and two agents. returned: by the next step."""

    observation_space, action_space = BOX, DISCRETE

    def __init__(self, num_agents: Any = 2, is_multiagent: bool | None = None) -> None:
        self.num_agents = num_agents
        if is_multiagent is not None:
            self.is_multiagent = is_multiagent
        self.returned: tuple[list[Any], ...] = ([], [], [], [], [])
        self.infos: Any = [{}, {}]

    def reset(self, *, seed: int | None = None) -> tuple[list[Any], list[Any]]:
        return [0, 1], self.infos

    def step(self, actions: list[Any]) -> tuple[list[Any], ...]:
        return self.returned


def test_the_interface_of_an_env_is_recognised_by_its_attributes() -> None:
    own = ScriptedAgents()

    assert agents_env_of(own) is own
    assert agents_env_of(ScriptedEnv([])) is None
    assert agents_env_of(None) is None
    for env in (Lists(), Lists(np.int64(2)), Lists(1, is_multiagent=True), Lists(np.int32(1), is_multiagent=True)):
        assert isinstance(agents_env_of(env), ListedAgents)
    for env in (Lists(1), Lists(np.int64(1)), Lists("many"), Lists(3, is_multiagent=False)):
        assert agents_env_of(env) is None


class InTurn(Parallel):
    """With the interface of turns (AEC). turns: the agent of each turn, and what ``last`` says of it besides."""

    def __init__(self, *turns: tuple[str, float, bool, bool]) -> None:
        super().__init__(names=["x", "y", "z"])
        self.turns, self.actions = list(turns), list[Any]()

    def agent_iter(self) -> None: ...

    def reset(self, seed: int | None = None, options: Any = None) -> None:  # type: ignore[override]
        self.agents = list(self.start)

    @property
    def agent_selection(self) -> str:
        return self.turns[0][0]

    def last(self) -> tuple[Any, ...]:
        agent, *others = self.turns[0]
        return (f"{agent}{len(self.actions)}", *others, {"of": agent})

    def step(self, action: Any) -> None:  # type: ignore[override]
        self.actions.append(action)
        agent, _, terminated, truncated = self.turns.pop(0)
        if terminated or truncated:
            self.agents.remove(agent)


def test_of_agents_that_act_in_turn_one_acts_in_a_step() -> None:
    ends = (("z", 3.0, True, False), ("x", 4.0, False, True), ("y", 5.0, True, True))
    env = InTurn(("x", 0.0, False, False), ("y", 1.0, False, False), ("y", 2.0, False, False), *ends)
    agents = agents_env_of(env)
    assert isinstance(agents, TurnAgents)
    assert agents.spec.in_turns

    assert agents.reset(seed=3) == ["x0", None, None]
    shown, rewards, change = agents.step([6, 7, 8])
    assert (shown, rewards) == ([None, "y1", None], [0.0, 1.0, 0.0])
    assert change is not None
    assert (change.active, any(change.terminated), any(change.truncated)) == ([False, True, False], False, False)
    # The same agent again: nothing changes. Then the episodes of all end, and none is left.
    assert agents.step([6, 7, 8]) == ([None, "y2", None], [0.0, 2.0, 0.0], None)
    shown, rewards, change = agents.step([6, 7, 8])
    assert env.actions == [6, 7, 7, None, None, None]
    assert (shown, rewards) == (["x4", "y5", "z3"], [4.0, 5.0, 3.0])
    assert change is not None
    assert (change.terminated, change.truncated) == ([False, True, True], [True, False, False])
    assert change.infos == [{"of": name} for name in "xyz"]


def test_agents_that_act_in_turn_must_leave_when_their_episode_is_over() -> None:
    env = InTurn(("x", 0.0, False, False), ("y", 1.0, True, False))
    agents = TurnAgents(env)
    agents.reset()
    env.agents = ["x", "y", "y"]
    with pytest.raises(BadAgents, match=r"agent 'y' is over, and is among the env's agents after step\(None\)"):
        agents.step([0, 0, 0])
    env.turns = [("w", 0.0, False, False)]
    with pytest.raises(BadAgents, match=r"agent 'w' has a turn, and is not in the env's possible_agents"):
        agents.reset()
    env.turns = [("x", 0.0, True, False), ("y", 0.0, False, False)]
    with pytest.raises(BadAgents, match=r"after reset\(\) no agent has a turn, or the episode of one is over"):
        agents.reset()


def test_agents_with_different_spaces_fill_the_entry_of_their_kind() -> None:
    env = Parallel(("xyz", {}, {}))
    env.possible_agents = env.start = ["x", "y", "z"]
    env.spaces["y"] = wide = spaces.Box(0, 9, (2,), np.float32)
    agents = agents_env_of(env)
    assert isinstance(agents, UnequalAgents)

    assert agents.kinds == agents.spec.kinds == ("x", "y", "x")
    assert agents.observation_space == spaces.Dict(x=BOX, y=wide)
    assert agents.action_space == spaces.Dict(x=DISCRETE, y=DISCRETE)
    part = agents.spec.part("y")
    assert [path for path, _ in part.obs] == [head.key for head in part.actions] == ["y"]
    shown = agents.reset()
    assert [obs["x"] for obs in shown] == ["x", blank(BOX), "z"]
    assert [np.shape(obs["y"]) for obs in shown] == [(2,), (), (2,)]
    assert shown[1]["y"] == "y"
    agents.step([{"x": 1, "y": 2}, {"x": 3, "y": 4}, {"x": 5, "y": 6}])
    assert env.taken == [{"x": 1, "y": 4, "z": 5}]


def test_masks_of_agents_with_different_spaces_stand_by_kind() -> None:
    env, tree = Parallel(), spaces.Tuple([spaces.MultiBinary(3)])
    env.possible_agents = env.start = ["x", "y"]
    env.spaces["y"] = spaces.Dict(action_mask=tree, seen=BOX)
    shown = {"seen": np.zeros(1, np.float32), "action_mask": (np.array([0, 1, 0], np.int8),)}
    env.reset = lambda seed=None, options=None: ({"x": "x", "y": shown}, {})  # type: ignore[method-assign]
    env.agents = ["x", "y"]
    agents = agents_env_of(env)
    assert isinstance(agents, UnequalAgents)

    assert agents.observation_space == spaces.Dict(x=BOX, y=spaces.Dict(seen=BOX), action_mask=spaces.Dict(y=tree))
    assert [path for path, _ in agents.spec.part("x").obs] == ["x"]
    assert [path for path, _ in agents.spec.part("y").obs] == ["action_mask/y/0", "y/seen"]
    masks = [obs["action_mask"]["y"][0].tolist() for obs in agents.reset()]
    assert masks == [[1, 1, 1], [0, 1, 0]]  # of what an agent does not choose, nothing is forbidden

    env.possible_agents = ["action_mask", "y"]
    with pytest.raises(EnvError, match="an agent is called 'action_mask'"):
        agents_env_of(env)


@pytest.mark.parametrize(
    ("names", "message"), [([], "is empty"), (["a", "a"], "names an agent twice"), ([1, "1"], "names an agent twice")]
)
def test_agents_without_names_of_their_own_are_refused(names: list[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        ParallelAgents(Parallel(names=names))


def test_while_all_agents_act_there_is_no_change() -> None:
    agents, env = parallel(("xyz", {}, {}), ("xyz", dict.fromkeys("xyz", False), {}))

    assert agents.step([0, 1, 2]) == (("x1", "y1", "z1"), (1.0, 1.0, 1.0), None)
    assert agents.step([0, 1, 2])[2] is None
    assert env.taken == [{"x": 0, "y": 1, "z": 2}] * 2


def test_an_agent_that_ends_is_reported_once_and_gets_no_more_actions() -> None:
    agents, env = parallel(("xz", {"y": True}, {"y": True}), ("xz", {"y": True}, {}), ("", {"x": True}, {"z": True}))

    first, second, third = agents.step([0, 1, 2]), agents.step([0, 1, 2]), agents.step([0, 1, 2])

    none, infos = [False] * 3, [{"of": "x"}, {"of": "y"}, {"of": "z"}]
    assert first == (["x1", "y1", "z1"], [1.0] * 3, Change([False, True, False], none, [True, False, True], infos))
    assert second == (["x2", None, "z2"], [1.0, 0.0, 1.0], None)
    assert third[2] == Change([True, False, False], [False, False, True], none, [infos[0], {}, infos[2]])
    assert env.taken == [{"x": 0, "y": 1, "z": 2}, {"x": 0, "z": 2}, {"x": 0, "z": 2}]


def test_an_agent_that_is_not_listed_and_has_not_ended_sleeps() -> None:
    agents, env = parallel(("xz", {}, {}), ("xyz", {}, {}), ("xyz", {}, {}))

    asleep, awake, later = agents.step([0, 1, 2]), agents.step([0, 1, 2]), agents.step([0, 1, 2])

    assert asleep[2] is not None
    assert (asleep[0][1], asleep[2].active) == ("y1", [True, False, True])
    assert not any([*asleep[2].terminated, *asleep[2].truncated])
    assert awake[2] is not None
    assert (awake[0][1], awake[2].active) == ("y2", [True] * 3)
    assert later[2] is None
    assert [sorted(actions) for actions in env.taken] == [["x", "y", "z"], ["x", "z"], ["x", "y", "z"]]


def test_an_agent_that_is_not_listed_after_reset_sleeps_though_it_is_shown_something() -> None:
    class ShowsAll(Parallel):
        """Its reset shows what all agents would see."""

        def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
            self.agents = ["x", "z"]
            return {agent: agent for agent in self.possible_agents}, {}

    agents = agents_env_of(ShowsAll(("xyz", {}, {})))
    assert agents is not None

    assert agents.reset() == ["x", None, "z"]
    change = agents.step([0, 1, 2])[2]
    assert change is not None
    assert change.active == [True] * 3


def test_when_no_agents_are_left_those_without_a_flag_are_truncated() -> None:
    agents, _ = parallel(("xz", {}, {}), ("", {"x": True}, {}))
    agents.step([0, 1, 2])

    change = agents.step([0, 1, 2])[2]

    assert change is not None
    assert (change.terminated, change.truncated) == ([True, False, False], [False, True, True])


def test_a_new_episode_starts_with_all_agents() -> None:
    agents, env = parallel(("", dict.fromkeys("xyz", True), {}), ("xyz", {}, {}))
    agents.step([0, 1, 2])
    agents.reset()

    assert agents.step([0, 1, 2])[2] is None
    assert sorted(env.taken[1]) == NAMES


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([("xyzw", {}, {})], "'w' among the env's agents, but not in its possible_agents"),
        ([("xyz", {"y": True}, {}), ("xyz", {}, {})], "agent 'y' is over, and is among the env's agents all the same"),
    ],
)
def test_an_unknown_agent_or_one_that_stays_after_its_end_is_an_error(script: list[Any], message: str) -> None:
    agents, _ = parallel(*script)
    for _ in script[1:]:
        agents.step([0, 1, 2])

    with pytest.raises(BadAgents, match=message):
        agents.step([0, 1, 2])


@pytest.mark.parametrize("listed", ["xyz", "xy"])
def test_an_active_agent_without_an_observation_is_an_error(listed: str) -> None:
    agents, env = parallel((listed, {}, {}))
    env.left_out = {"y"}

    with pytest.raises(BadAgents, match=r"no observation.* of agent 'y', who takes part"):
        agents.step([0, 1, 2])


def test_a_parallel_env_may_have_one_agent() -> None:
    agents = agents_env_of(Parallel(("x", {}, {}), names=["x"]))
    assert agents is not None
    agents.reset()

    assert agents.step([2]) == (("x1",), (1.0,), None)


def test_lists_are_passed_on_and_a_flag_that_stays_is_reported_once() -> None:
    env = Lists()
    agents = ListedAgents(env)
    agents.reset(seed=1)
    env.returned = ([5, 6], [0.5, 1.5], [False, False], [False, False], [{}, {}])
    assert agents.step([0, 0]) == ([5, 6], [0.5, 1.5], None)

    env.returned = ([5, 6], [0.5, 1.5], [True, False], [True, False], [{"a": 1}, {}])
    assert agents.step([0, 0])[2] == Change([True, False], [False, False], [False, True], [{"a": 1}, {}])
    assert agents.step([0, 0])[2] is None


def test_lists_are_closed_if_they_can_be(caplog: pytest.LogCaptureFixture) -> None:
    class Closed(Lists):
        times = 0

        def close(self) -> None:
            self.times += 1

    closed = Closed()
    for env in (Lists(), closed):
        close_env(agents_env_of(env), "lists")

    assert caplog.messages == []
    assert closed.times == 1


def test_in_lists_an_agent_that_is_not_active_sleeps() -> None:
    env = Lists()
    agents = ListedAgents(env)
    env.infos = [{"is_active": False}, {}]
    assert agents.reset() == [None, 1]

    for terminated in ([False, False], [False, True]):
        env.returned = ([5, 6], [0.5, 1.5], terminated, [False, False], [{}, {"is_active": False}])
        assert agents.step([0, 0])[2] == Change(terminated, [False] * 2, [True, False], env.returned[4])


@pytest.mark.parametrize(("place", "what"), [(0, "observations"), (1, "rewards"), (2, "terminated"), (4, "infos")])
def test_lists_of_a_wrong_length_are_an_error(place: int, what: str) -> None:
    env = Lists()
    agents = ListedAgents(env)
    agents.reset()
    returned: list[list[Any]] = [[5, 6], [0.5, 1.5], [True, False], [False, False], [{}, {}]]
    returned[place] = returned[place] * 2
    env.returned = tuple(returned)

    with pytest.raises(BadAgents, match=rf"step\(\) gave 4 {what} for 2 agents"):
        agents.step([0, 0])


def test_the_blank_observation_has_the_structure_of_the_space() -> None:
    shown = blank(spaces.Dict(a=BOX, b=spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])))

    assert shown["a"].tolist() == [0.0]
    assert (shown["b"][0], shown["b"][1].tolist()) == (0, [0, 0])
    assert shown["b"][0].dtype == np.int64
