"""An env of many agents is checked before anything starts, and what is wrong with it is named."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from sfactory.env.factory import EnvFactory
from sfactory.errors import EnvError
from sfactory.planning.env_probe import examine
from sfactory_envs.synthetic.counting_agents import CountingLists, CountingParallel
from tests.support.scripted_agents import Changes, ScriptedAgents

HERE = "tests.unit.planning.test_env_checker"
PARALLEL = "sfactory_envs.synthetic.counting_agents:CountingParallel"
LISTS = "sfactory_envs.synthetic.counting_agents:CountingLists"
NAN = np.full(8, np.nan, np.float32)


class OddParallel(CountingParallel):  # type: ignore[misc]
    """Breaks one promise: ``what`` names it."""

    def __init__(self, what: str) -> None:
        super().__init__(agents=2, max_length=5)
        self._what, self._count = what, 0
        if what == "empty":
            self.possible_agents: list[str] = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        shown, infos = super().reset(5 if seed is None else seed)
        match self._what:
            case "reset alone":
                return shown
            case "reset list":
                return list(shown.values()), infos
            case "stranger at reset":
                return {**shown, "stranger": NAN}, infos
            case "missing at reset":
                del shown["counter_1"]
            case "short at reset":
                shown["counter_1"] = shown["counter_1"][:3]
            case "nan at reset":
                shown["counter_1"] = NAN
            case "no agents":
                self.agents: list[str] = []
        return shown, infos

    def step(self, actions: dict[str, Any]) -> Any:
        self._count += 1
        shown, rewards, *rest = super().step(actions)
        match self._what:
            case "four":
                return shown, rewards, *rest[:2]
            case "lists":
                return tuple(list(part) for part in (shown, rewards, *rest))
            case "stranger in rewards":
                rewards["stranger"] = 1.0
            case "stranger in agents" if self._count > 4:
                self.agents = [*self.agents, "stranger"]
            case "late nan" if self._count > 4:
                shown = dict.fromkeys(shown, NAN)
            case "text" if self._count > 4:
                rewards = dict.fromkeys(rewards, "much")
            case "inf" if self._count > 4:
                rewards = dict.fromkeys(rewards, np.inf)
        return shown, rewards, *rest


class OddLists(CountingLists):  # type: ignore[misc]
    """Breaks one promise: ``what`` names it."""

    def __init__(self, what: str) -> None:
        super().__init__(agents=2)
        self._what = what

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        shown, infos = super().reset(seed=seed)
        odd = {
            "reset alone": shown,
            "reset dict": (dict(enumerate(shown)), infos),
            "three": ([*shown, shown[0]], infos),
            "one info": (shown, {}),
        }
        return odd.get(self._what, (shown, infos))

    def step(self, actions: Any) -> Any:
        step = super().step(actions)
        odd = {
            "four": step[:4],
            "one reward": (step[0], 1.0, *step[2:]),
            "three flags": (*step[:2], [False] * 3, *step[3:]),
            "no infos": (*step[:4], [None, None]),
        }
        return odd.get(self._what, step)


class OddAgents(ScriptedAgents):
    """Returns one value too many in ``what``."""

    def __init__(self, what: str) -> None:
        super().__init__({3: Changes(terminated=[1])})
        self._what = what

    def reset(self, *, seed: int | None = None) -> list[Any]:
        shown = super().reset(seed=seed)
        return [*shown, shown[0]] if self._what == "reset" else shown

    def step(self, actions: Any) -> Any:
        shown, rewards, change = super().step(actions)
        match self._what:
            case "observations":
                shown = [*shown, shown[0]]
            case "rewards":
                rewards = [*rewards, 0.0]
            case "active" if change is not None:
                change = change._replace(active=[*change.active, True])
        return shown, rewards, change


def many_at_a_time(num_envs: int) -> CountingParallel:
    return CountingParallel()


PARALLEL_FLAWS = {
    "empty": "the env's possible_agents is empty",
    "reset alone": "reset() must return (dict of observations, dict of infos), as PettingZoo's parallel interface",
    "reset list": "reset() must return (dict of observations, dict of infos)",
    "stranger at reset": "reset() gave an observation of 'stranger', who is not among possible_agents",
    "missing at reset": "reset() gave no observation of agent 'counter_1', who is among the env's agents",
    "short at reset": "reset(), agent 'counter_1': observation 'obs' has shape (3,)",
    "nan at reset": "reset(), agent 'counter_1': observation 'obs' holds NaN or infinity; observations must be finite",
    "no agents": "no agent is in the env's agents after reset()",
    "four": "step() must return dicts of observations, rewards, terminations, truncations and infos",
    "lists": "step() must return dicts of observations, rewards, terminations, truncations and infos",
    "stranger in rewards": "step() gave a reward of 'stranger', who is not among possible_agents",
    "stranger in agents": "'stranger' among the env's agents, but not in its possible_agents",
    "late nan": "observation 'obs' holds NaN or infinity; observations must be finite",
    "text": "got the reward 'much', which is no number",
    "inf": "got the reward inf; rewards must be finite",
}
LIST_FLAWS = {
    "reset alone": "reset() must return (list of observations, list of infos)",
    "reset dict": "reset() gave observations as a dict; it must be a list of one for each agent",
    "three": "reset() gave 3 observations for 2 agents",
    "one info": "reset() gave infos as a dict; it must be a list of one for each agent",
    "four": "step() must return five lists",
    "one reward": "step() gave rewards as a float; it must be a list of one for each agent",
    "three flags": "step() gave 3 terminated for 2 agents",
    "no infos": "step() gave infos that are not dicts",
}


@pytest.mark.parametrize("name", [PARALLEL, LISTS])
def test_the_spec_names_all_agents(name: str) -> None:
    probed = examine(EnvFactory(name, {"agents": 3}), timed=True)

    base = "counter" if name == PARALLEL else "agent"
    assert probed.spec.agents == tuple(f"{base}_{agent}" for agent in range(3))
    assert probed.spec.num_agents == 3
    assert [key for key, _ in probed.spec.obs] == ["obs"]
    assert probed.step_us is not None
    assert probed.step_us > 0


AGENT_FLAWS = {
    "reset": "gave 3 observations for 2 agents",
    **{what: f"gave 3 {what} for 2 agents" for what in ("observations", "rewards", "active")},
}


@pytest.mark.parametrize(
    ("env", "what", "words"),
    [
        (env, what, words)
        for env, flaws in {"OddParallel": PARALLEL_FLAWS, "OddLists": LIST_FLAWS, "OddAgents": AGENT_FLAWS}.items()
        for what, words in flaws.items()
    ],
)
def test_a_flaw_of_an_env_of_many_agents_is_named(env: str, what: str, words: str) -> None:
    with pytest.raises(EnvError, match=f"^--env={HERE}:{env}.*{re.escape(words)}"):
        examine(EnvFactory(f"{HERE}:{env}", {"what": what}))


def test_one_agent_many_agents_and_vectors_are_not_mixed_up() -> None:
    with pytest.raises(EnvError, match="takes num_envs, and returned an env of many agents"):
        examine(EnvFactory(f"{HERE}:many_at_a_time"))
    with pytest.raises(EnvError, match="has 3 agents, where one of one agent is needed"):
        EnvFactory(PARALLEL)()
    with pytest.raises(EnvError, match="made an env of one agent where it had made one of many"):
        EnvFactory("CartPole-v1").agents()
