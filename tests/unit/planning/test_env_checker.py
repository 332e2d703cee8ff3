"""An env that breaks its interface is refused before anything starts, and the error names the flaw."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
import pytest
import torch

from sfactory.env.factory import EnvFactory
from sfactory.errors import EnvError
from sfactory.planning.env_probe import examine
from sfactory_envs.synthetic.counting_agents import CountingLists, CountingParallel
from tests.support.scripted_agents import Changes, ScriptedAgents
from tests.support.scripted_env import ScriptedEnv

HERE = "tests.unit.planning.test_env_checker"
PARALLEL = "sfactory_envs.synthetic.counting_agents:CountingParallel"
LISTS = "sfactory_envs.synthetic.counting_agents:CountingLists"
NAN = np.full(8, np.nan, np.float32)


class OddEnv(ScriptedEnv):
    """Breaks one promise: ``what`` names it."""

    def __init__(self, what: str) -> None:
        super().__init__([])
        self._what = what
        if what == "text space":
            self.observation_space = spaces.Text(3)  # type: ignore[assignment]
        if what == "many":
            self.num_agents = 5  # of its own kind, as of a simulation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = super().reset(seed=seed)
        return {"reset alone": obs, "reset shape": (np.zeros(3, np.float32), {})}.get(self._what, (obs, info))

    def step(self, action: int) -> Any:
        step = super().step(action)
        return {
            "four": step[:4],
            "step dtype": (step[0].astype(complex), *step[1:]),
            "gradient": (torch.zeros(1, requires_grad=True), *step[1:]),
            "reward": (step[0], "much", *step[2:]),
            "two rewards": (step[0], torch.zeros(2, requires_grad=True), *step[2:]),
        }.get(self._what, step)


class OldEnv(ScriptedEnv):
    """As an env of the old gym."""

    def __init__(self, what: str) -> None:
        super().__init__([])

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]


class SeededEnv(OldEnv):
    """As an env of the last old gym."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset()


class LimitedEnv(gymnasium.wrappers.TimeLimit[Any, Any]):
    """Passes options on."""

    def __init__(self, what: str) -> None:
        super().__init__(SeededEnv(what), 5)


class OddParallel(CountingParallel):  # type: ignore[misc]
    """Breaks one promise: ``what`` names it."""

    def __init__(self, what: str) -> None:
        super().__init__(agents=2, max_length=5)
        self._what, self._count = what, 0
        if what == "empty":
            self.possible_agents: list[str] = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        shown, infos = super().reset(5 if seed is None else seed)
        if self._what == "no agents":
            self.agents: list[str] = []
        odd = {
            "reset alone": shown,
            "reset list": (list(shown.values()), infos),
            "stranger at reset": ({**shown, "stranger": NAN}, infos),
            "missing at reset": ({name: obs for name, obs in shown.items() if name != "counter_1"}, infos),
            "short at reset": ({**shown, "counter_1": NAN[:3]}, infos),
            "nan at reset": ({**shown, "counter_1": NAN}, infos),
        }
        return odd.get(self._what, (shown, infos))

    def step(self, actions: dict[str, Any]) -> Any:
        self._count += 1
        shown, rewards, *rest = step = super().step(actions)
        odd: dict[str, Any] = {
            "four": step[:4],
            "lists": tuple(list(part) for part in step),
            "stranger in rewards": (shown, {**rewards, "stranger": 1.0}, *rest),
        }
        if self._count > 4:
            odd |= {
                "late nan": (dict.fromkeys(shown, NAN), rewards, *rest),
                "text": (shown, dict.fromkeys(rewards, "much"), *rest),
                "inf": (shown, dict.fromkeys(rewards, np.inf), *rest),
            }
            if self._what == "stranger in agents":
                self.agents = [*self.agents, "stranger"]
        return odd.get(self._what, step)


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
        if self._what == "active" and change is not None:
            change = change._replace(active=[*change.active, True])
        odd = {
            "observations": ([*shown, shown[0]], rewards, change),
            "rewards": (shown, [*rewards, 0.0], change),
        }
        return odd.get(self._what, (shown, rewards, change))


FLAWS = {
    "OddEnv": {
        "text space": "observation space 'obs' is a Text",
        "reset alone": "reset() must return (observation, info dict)",
        "reset shape": "reset(): observation 'obs' has shape (3,)",
        "four": "step() must return (observation, reward, terminated, truncated, info); it returns four, as in the old",
        "many": "it must be a list of one for each agent, as num_agents is 5; if it is an env of one agent, set is_mul",
        "step dtype": "step(): observation 'obs' has shape (1,) and dtype complex",
        "gradient": "step(): observation 'obs' is missing or no array: the env gave a Tensor (RuntimeError: Can't call",
        "reward": "the reward 'much', which is no number",
        "two rewards": "the reward tensor([0., 0.], requires_grad=True), which is no number",
    },
    "OldEnv": {
        "no seed": "'seed', as in the old gym; Gymnasium's interface is reset(self, *, seed=None, options=None)"
    },
    "SeededEnv": {"no info": "reset() must return (observation, info dict), as Gymnasium's interface has it"},
    "LimitedEnv": {"no options": "'options', as in the old gym; Gymnasium's interface is reset(self, *, seed=None"},
    "OddParallel": {
        "empty": "the env's possible_agents is empty",
        "reset alone": "reset() must return (dict of observations, dict of infos), as PettingZoo's parallel interface",
        "reset list": "reset() must return (dict of observations, dict of infos)",
        "stranger at reset": "reset() gave an observation of 'stranger', who is not among possible_agents",
        "missing at reset": "reset() gave no observation of agent 'counter_1', who is among the env's agents",
        "short at reset": "reset(), agent 'counter_1': observation 'obs' has shape (3,)",
        "nan at reset": "reset(), agent 'counter_1': observation 'obs' holds NaN or infinity",
        "no agents": "no agent is in the env's agents after reset()",
        "four": "step() must return dicts of observations, rewards, terminations, truncations and infos",
        "lists": "step() must return dicts of observations, rewards, terminations, truncations and infos",
        "stranger in rewards": "step() gave a reward of 'stranger', who is not among possible_agents",
        "stranger in agents": "'stranger' among the env's agents, but not in its possible_agents",
        "late nan": "observation 'obs' holds NaN or infinity; observations must be finite",
        "text": "got the reward 'much', which is no number",
        "inf": "got the reward inf; rewards must be finite",
    },
    "OddLists": {
        "reset alone": "reset() must return (list of observations, list of infos)",
        "reset dict": "reset() gave observations as a dict; it must be a list of one for each agent",
        "three": "reset() gave 3 observations for 2 agents",
        "one info": "reset() gave infos as a dict; it must be a list of one for each agent",
        "four": "step() must return five lists",
        "one reward": "step() gave rewards as a float; it must be a list of one for each agent",
        "three flags": "step() gave 3 terminated for 2 agents",
        "no infos": "step() gave infos that are not dicts",
    },
    "OddAgents": {
        "reset": "gave 3 observations for 2 agents",
        "observations": "gave 3 observations for 2 agents",
        "rewards": "gave 3 rewards for 2 agents",
        "active": "gave 3 active for 2 agents",
    },
}


@pytest.mark.parametrize(("env", "what"), [(env, what) for env, flaws in FLAWS.items() for what in flaws])
def test_the_flaw_of_an_env_is_named(env: str, what: str) -> None:
    with pytest.raises(EnvError, match=f"^--env={HERE}:{env}.*{re.escape(FLAWS[env][what])}"):
        examine(EnvFactory(f"{HERE}:{env}", {"what": what}))


@pytest.mark.parametrize(("name", "base"), [(PARALLEL, "counter"), (LISTS, "agent")])
def test_the_spec_names_all_agents(name: str, base: str) -> None:
    probed = examine(EnvFactory(name, {"agents": 3}), timed=True)

    assert probed.spec.agents == tuple(f"{base}_{agent}" for agent in range(3))
    assert [key for key, _ in probed.spec.obs] == ["obs"]
    assert probed.step_us is not None
    assert probed.step_us > 0


def vector_of_agents(num_envs: int) -> CountingParallel:
    return CountingParallel()


def test_one_agent_many_agents_and_vectors_are_not_mixed_up() -> None:
    with pytest.raises(EnvError, match="takes num_envs, and returned an env of many agents"):
        examine(EnvFactory(f"{HERE}:vector_of_agents"))
    with pytest.raises(EnvError, match="has 3 agents, where one of one agent is needed"):
        EnvFactory(PARALLEL)()
    with pytest.raises(EnvError, match="made an env of one agent where it had made one of many"):
        EnvFactory("CartPole-v1").agents()


class EmptyMask(gymnasium.Env[Any, Any]):
    """Its mask allows nothing after two steps; it raises on what is not allowed."""

    observation_space = spaces.Dict(x=spaces.Discrete(2), action_mask=spaces.MultiBinary(2))
    action_space = spaces.Discrete(2)

    def _observed(self) -> dict[str, Any]:
        return {"x": 0, "action_mask": np.full(2, self._steps < 2, np.int8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observed(), {}

    def step(self, action: int) -> Any:
        assert self._steps < 2, "an illegal action"
        self._steps += 1
        return self._observed(), 0.0, False, False, {}


def test_an_env_that_allows_nothing_within_an_episode_is_refused() -> None:
    with pytest.raises(EnvError, match=rf"^--env={HERE}:EmptyMask: observation 'action_mask' allows no action, and"):
        examine(EnvFactory(f"{HERE}:EmptyMask"), timed=True)
