"""Action masks in infos of many agents that would not be read are refused."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar, Literal

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest

from sfactory.env.factory import EnvFactory
from sfactory.env.info_masks import InfoMaskAgentsEnv
from sfactory.errors import EnvError
from sfactory.planning.env_inspection import inspect_env
from sfactory.planning.env_probe import examine
from sfactory_envs.synthetic.counting_agents import CountingLists, CountingParallel


class HalfMaskedAgents(CountingParallel):  # type: ignore[misc]
    """Gives masks in the infos of steps alone. The second agent has another space if they are not ``equal``."""

    def __init__(self, equal: bool) -> None:
        super().__init__(agents=2)
        self._equal = equal

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return super().action_space(agent) if self._equal or agent == "counter_0" else spaces.Box(-1, 1, (2,))

    def step(self, actions: Any) -> Any:
        *others, _ = super().step(dict.fromkeys(actions, 0))
        return *others, {agent: {"action_mask": np.ones(7, np.int8)} for agent in self.possible_agents}


@pytest.mark.parametrize("equal", [True, False])
def test_masks_that_only_steps_of_many_agents_give_are_refused(equal: bool) -> None:
    factory = EnvFactory(f"{__name__}:HalfMaskedAgents", {"equal": equal}, info_action_mask="auto")
    with pytest.raises(EnvError, match=r"the info of step\(\) has 'action_mask', and that of reset\(\) has none"):
        examine(factory)
    assert not examine(EnvFactory(factory.name, factory.kwargs)).info_action_mask


class LivingMasked(CountingParallel):  # type: ignore[misc]
    """Gives masks in the infos of agents that act next alone; if it is ``forgetful``, none in each tenth step."""

    masked: ClassVar[dict[str, Any]] = {"action_mask": np.ones(7, np.int8)}

    def __init__(self, forgetful: bool) -> None:
        super().__init__(agents=2, max_length=20)
        self._forgetful, self._count = forgetful, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        shown, _ = super().reset(seed=seed)
        return shown, dict.fromkeys(self.agents, self.masked)

    def step(self, actions: Any) -> Any:
        self._count += 1
        *others, _ = super().step(dict.fromkeys(actions, 0))
        given = {} if self._forgetful and self._count % 10 == 0 else self.masked
        return *others, dict.fromkeys(self.agents, given)


LACKS = r"the info of agent 'counter_\d' has no 'action_mask', as an earlier one had.*: correct the env, or ignore its"


def test_an_agent_that_gets_no_mask_any_more_is_a_fault() -> None:
    factory = EnvFactory(f"{__name__}:LivingMasked", {"forgetful": True}, info_action_mask="auto")

    with pytest.raises(EnvError, match=LACKS):
        examine(factory)
    report = inspect_env(factory, 20)

    assert any(re.search(LACKS, finding.text) for finding in report.of_kind("violation"))
    assert not examine(dataclasses.replace(factory, info_action_mask="off")).info_action_mask


def test_agents_that_sleep_or_are_over_need_no_mask() -> None:
    factory = EnvFactory(f"{__name__}:LivingMasked", {"forgetful": False}, info_action_mask="auto")

    assert examine(factory).info_action_mask
    report = inspect_env(factory, 100)

    assert report.steps == 100
    assert not [finding for finding in report.findings if "action_mask" in finding.text]


class GameOfTurns:
    """Two agents of PettingZoo's interface of turns; infos have a mask for the one that moves alone.

    spared: the second has no masks.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "game", "is_parallelizable": True}
    render_mode = None

    def __init__(self, spared: bool) -> None:
        self.possible_agents = ["a", "b"]
        self._spared = spared

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (3,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4)

    def observe(self, agent: str) -> Any:
        return np.zeros(3, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self._turns = list(self.possible_agents), "a", 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self._give_masks()

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        self.agent_selection = "b" if mover == "a" else "a"
        if action is None:
            self.agents.remove(mover)
            return
        self._turns += 1
        self.terminations = dict.fromkeys(self.agents, self._turns == 20)
        self._give_masks()

    def close(self) -> None: ...

    def _give_masks(self) -> None:
        masked = "a" if self.agent_selection == "a" else "" if self._spared else "b"
        self.infos: dict[str, Any] = {
            agent: {"action_mask": np.ones(4, np.int8)} if agent == masked else {} for agent in self.agents
        }


def parallel_game(spared: bool) -> Any:
    return pytest.importorskip("pettingzoo.utils.conversions").turn_based_aec_to_parallel(GameOfTurns(spared))


@pytest.mark.parametrize("spared", [False, True])
def test_agents_that_wait_in_the_parallel_form_of_a_game_of_turns_need_no_mask(spared: bool) -> None:
    pytest.importorskip("pettingzoo")
    assert examine(
        EnvFactory(f"{__name__}:parallel_game", {"spared": spared}, info_action_mask="auto")
    ).info_action_mask

    env = InfoMaskAgentsEnv(parallel_game(spared))
    env.reset()
    for _ in range(3):
        shown = env.step({"a": 0, "b": 0})[0]  # type: ignore[index]

    assert env.env.aec_env.agent_selection == "b"
    assert shown["b"]["action_mask"].all()
    assert not shown["a"]["action_mask"].any()
    shown = env.step({"a": 0, "b": 0})[0]  # type: ignore[index]
    assert shown["a"]["action_mask"].all()
    assert shown["b"]["action_mask"].all() == spared


class MaskedLists(CountingLists):  # type: ignore[misc]
    """Gives masks in the infos of one of its methods, or of the step that ends an episode alone."""

    def __init__(self, masked: str) -> None:
        super().__init__(agents=2, max_length=5)
        self._masked = masked

    def reset(self, seed: int | None = None) -> Any:
        shown, infos = super().reset(seed=seed)
        return shown, self._marked(infos, "reset")

    def step(self, actions: Any) -> Any:
        *others, infos = super().step(actions)
        return *others, self._marked(infos, "end" if any(others[2] + others[3]) else "step")

    def _marked(self, infos: Any, method: str) -> Any:
        return [{**info, "action_mask": np.ones(7, np.int8)} if method == self._masked else info for info in infos]


@pytest.mark.parametrize("masked", ["reset", "step", "end"])
def test_masks_in_infos_of_lists_are_refused(masked: str) -> None:
    name, kwargs = f"{__name__}:MaskedLists", {"masked": masked}
    with pytest.raises(EnvError, match=r"'action_mask'.*--info_action_mask=off"):
        examine(EnvFactory(name, kwargs, info_action_mask="auto"))
    with pytest.raises(EnvError, match="--info_action_mask=on: "):
        EnvFactory(name, kwargs, info_action_mask="on").either()
    assert not examine(EnvFactory(name, kwargs)).info_action_mask


def test_check_env_says_that_masks_in_infos_of_lists_are_not_read() -> None:
    report = inspect_env(EnvFactory(f"{__name__}:MaskedLists", {"masked": "reset"}, info_action_mask="auto"), 10)

    assert "--info_action_mask=off" in report.refusal


class SteeredAgents(HalfMaskedAgents):
    """Has no choices, and gives masks in the infos of steps alone."""

    def __init__(self) -> None:
        super().__init__(equal=True)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,))


class SteeredLists(MaskedLists):
    """The same in lists."""

    def __init__(self) -> None:
        super().__init__("step")
        self.action_space = spaces.Box(-1, 1, (2,))

    def step(self, actions: Any) -> Any:
        return super().step([0 for _ in actions])


@pytest.mark.parametrize("name", ["SteeredAgents", "SteeredLists"])
def test_masks_in_infos_of_many_agents_without_choices_are_none(name: str) -> None:
    factory = EnvFactory(f"{__name__}:{name}", info_action_mask="auto")

    assert not examine(factory).info_action_mask
    assert not [finding for finding in inspect_env(factory, 10).findings if "action_mask" in finding.text]


class LateMasks(gymnasium.Env[Any, Any]):
    """Gives a mask in one step of each episode of 10 steps."""

    observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        info = {"action_mask": np.ones(3, np.int8)} if self._steps == 5 else {}
        return self.np_random.random(2, np.float32), 0.0, False, self._steps == 10, info


@pytest.mark.parametrize(("flag", "found"), [("auto", ["masks"]), ("off", [])])
def test_check_env_finds_masks_that_come_late(flag: Literal["auto", "off"], found: list[str]) -> None:
    report = inspect_env(EnvFactory(f"{__name__}:LateMasks", info_action_mask=flag), 40)

    assert [finding.code for finding in report.findings] == found
    assert all("step 5: the info has 'action_mask', which" in finding.text for finding in report.findings)


def test_the_flag_is_refused_for_an_env_of_our_own_interface() -> None:
    with pytest.raises(EnvError, match="--info_action_mask=on: "):
        EnvFactory("tests.support.scripted_agents:ScriptedAgents", info_action_mask="on").either()
