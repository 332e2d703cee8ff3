"""Envs around those of each interface, which check what is returned, and mend it as far as is needed to continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from sfactory.config.import_strings import described
from sfactory.env.multi_agent import AgentsEnv, AgentsStep, AgentsWrapper, blank
from sfactory.env.multi_agent_adapters import acts_in_turns
from sfactory.env.vector import (
    SAY_RESETS,
    UNSAID_RESETS,
    VectorEnv,
    VectorWrapper,
    says_when_it_resets,
    single_spaces,
)
from sfactory.errors import EnvError
from sfactory.planning.env_findings import Broken, Inspector, ObsChecks
from sfactory.spec import EnvSpec

_FLAGS = ("terminated", "truncated")
_PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


def spec_of(observation_space: Any, action_space: Any, obs_layout: tuple[str, ...]) -> EnvSpec | None:
    """The spec of one agent; None if its spaces are not supported. obs_layout: the flag, which may name masks."""
    try:
        return EnvSpec.of_spaces(observation_space, action_space).masked_by(obs_layout)
    except EnvError:
        return None


def checked(env: Any, inspector: Inspector) -> Any:
    """``env``, which the factory has made, in an env of the same interface that checks it."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return CheckedVector(env, inspector)
    if isinstance(env, gymnasium.Env):
        return CheckedEnv(env, inspector)
    if isinstance(env, AgentsEnv):
        return CheckedAgents(env, inspector)
    if hasattr(env, "possible_agents"):
        return CheckedTurns(env, inspector) if acts_in_turns(env) else CheckedParallel(env, inspector)
    return CheckedLists(env, inspector)


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Of an env of one agent."""

    def __init__(self, env: gymnasium.Env[Any, Any], inspector: Inspector) -> None:
        super().__init__(env)
        inspector.take_seeds(env.unwrapped)
        self._inspector = inspector
        spec = spec_of(env.observation_space, env.action_space, inspector.obs_layout)
        self.checks = {"": ObsChecks(inspector, env.observation_space, spec)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        given = self._inspector.call("reset", self.env.reset, seed=seed)
        obs, info = self._inspector.parts(given, 2, "reset", "(observation, info dict)") or (given, {})
        self.checks[""].look(obs)
        return obs, self._inspector.info(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        given, inspector = self._inspector.call("step", self.env.step, action), self._inspector
        parts = inspector.parts(given, 5, "step", "(observation, reward, terminated, truncated, info dict)")
        if parts is None and isinstance(given, tuple) and len(given) == 4:
            parts = (*given[:3], False, given[3])
        if parts is None:
            raise Broken("step() did not return its five values")
        over = [inspector.flag(name, value) for name, value in zip(_FLAGS, parts[2:4], strict=True)]
        self.checks[""].look(parts[0], final=any(over))
        return parts[0], inspector.reward(parts[1]), over[0], over[1], inspector.info(parts[4])


class CheckedVector(VectorWrapper):
    """Of a vector env."""

    def __init__(self, env: VectorEnv, inspector: Inspector) -> None:
        super().__init__(env)
        inspector.take_seeds(env.unwrapped)
        self._inspector = inspector
        spec = spec_of(*single_spaces(env), inspector.obs_layout)
        self.checks = {"": ObsChecks(inspector, single_spaces(env)[0], spec, env.num_envs)}
        self._resets_unsaid = not says_when_it_resets(env)
        self._ended = np.zeros(env.num_envs, bool)  # with the last step

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        given = self._inspector.call("reset", self.env.reset, seed=seed)
        observations, infos = self._inspector.parts(given, 2, "reset", "(observations, infos dict)") or (given, {})
        self._ended[:] = False
        self.checks[""].look(observations)
        return observations, self._inspector.info(infos, is_batch=True)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        given, inspector = self._inspector.call("step", self.env.step, actions), self._inspector
        parts = inspector.parts(given, 5, "step", "(observations, rewards, terminated, truncated, infos dict)")
        if parts is None:
            raise Broken("step() did not return its five values")
        arrays = []
        for name, values in zip(("rewards", *_FLAGS), parts[1:4], strict=True):
            if (shape := np.shape(values)) != (self.num_envs,):
                text = f"{name} have the shape {shape} for {self.num_envs} envs"
                inspector.violation("batch", text, f"return an array of shape ({self.num_envs},)", name)
                values = np.zeros(self.num_envs)
            arrays.append(np.asarray(values))
        rewards = np.array([inspector.reward(reward) for reward in arrays[0]])
        over = [
            np.array([inspector.flag(name, flag) for flag in flags])
            for name, flags in zip(_FLAGS, arrays[1:], strict=True)
        ]
        ended = over[0] | over[1]
        if self._resets_unsaid and (self._ended & (ended | (rewards != 0))).any():
            text = f"an env that the last step has ended is paid, or ends again; {UNSAID_RESETS}"
            inspector.violation("autoreset", text, SAY_RESETS)
        self._ended = ended
        self.checks[""].look(parts[0], final=bool(np.any(over)))
        infos = inspector.info(parts[4], is_batch=True)
        if ended.any():
            inspector.batch_statistics(infos, self.num_envs, np.flatnonzero(ended).tolist())
        return parts[0], rewards, over[0], over[1], infos


class _Checked:
    """Of an env of many agents that is no class of ours: all but reset and step is the env's own."""

    def __init__(self, env: Any, inspector: Inspector, needed: Sequence[str] = ("seed", "options")) -> None:
        self.env, self._inspector = env, inspector
        inspector.take_seeds(getattr(env, "unwrapped", env), needed)
        self.checks: dict[Any, ObsChecks] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class _CheckedNames(_Checked):
    """Of an env with one of PettingZoo's interfaces."""

    attributes: tuple[str, ...] = ("metadata", "observation_space", "action_space", "reset", "step")

    def __init__(self, env: Any, inspector: Inspector) -> None:
        super().__init__(env, inspector)
        for agent in env.possible_agents:
            space, actions = env.observation_space(agent), env.action_space(agent)
            self.checks[agent] = ObsChecks(inspector, space, spec_of(space, actions, inspector.obs_layout))
            if env.observation_space(agent) is not space or env.action_space(agent) is not actions:
                mend = "decorate both with functools.lru_cache(maxsize=None), or else the seed of a space has no effect"
                inspector.add("warning", "agents.spaces", "spaces of an agent are made at each call", mend)

    def _begin(self, seed: int | None) -> Any:
        """Reset the env; some attributes are there only then."""
        given = self._inspector.call("reset", self.env.reset, seed=seed)
        for name in self.attributes:
            if not hasattr(self.env, name):
                self._inspector.add("violation", "agents.attributes", f"the env has no {name}", f"give it {name}", name)
        return given

    @property
    def agents(self) -> list[Any]:
        """Those of the env that it may have."""
        return self._possible(self.env.agents, "{!r} is among the env's agents")

    def _possible(self, named: Iterable[Any], problem: str) -> list[Any]:
        """Those of ``named`` that there may be; others are violations, with the text ``problem``."""
        found = list(named)
        for agent in found:
            if agent not in self.checks:
                mend = f"name every agent in possible_agents, which is {list(self.checks)}"
                self._inspector.violation("agents.unknown", problem.format(agent), mend, str(agent))
        return [agent for agent in found if agent in self.checks]


class CheckedParallel(_CheckedNames):
    """Of an env whose agents act at the same time."""

    attributes = (*_CheckedNames.attributes, "possible_agents")
    _over: frozenset[Any] = frozenset()

    @property
    def agents(self) -> list[Any]:
        """Those of the env that it may have, without those whose episode is over."""
        named = super().agents
        for agent in self._over.intersection(named):
            mend = "take agents out of agents when they are terminated or truncated"
            text = f"agent {agent!r} is over, and is among the env's agents"
            self._inspector.violation("agents.over", text, mend, str(agent))
        return [agent for agent in named if agent not in self._over]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        given, self._over = self._begin(seed), frozenset()
        form = "(dict of observations, dict of infos)"
        observations, infos = self._inspector.parts(given, 2, "reset", form) or (given, {})
        live = self.agents
        shown = self._observations(observations, live)
        infos = self._by_agent("infos", infos)
        return shown, {agent: self._inspector.info(info, f" of {agent!r}") for agent, info in infos.items()}

    def step(self, actions: Mapping[Any, Any]) -> tuple[Any, ...]:
        acting = list(actions)
        given, inspector = self._inspector.call("step", self.env.step, actions), self._inspector
        parts = inspector.parts(given, 5, "step", f"dicts of {', '.join(_PARTS)}")
        if parts is None:
            raise Broken("step() did not return its five dicts")
        rewards, *ends, infos = (self._by_agent(name, part) for name, part in zip(_PARTS[1:], parts[1:], strict=True))
        for name, part, otherwise in zip(_PARTS[1:4], (rewards, *ends), (0.0, False, False), strict=True):
            for agent in acting:
                if agent not in part:
                    mend = "name each agent that was among agents before the step"
                    inspector.violation("agents.missing", f"{name} lack agent {agent!r}, who has acted", mend, name)
                    part[agent] = otherwise
        rewards = {agent: inspector.reward(reward, f" of {agent!r}") for agent, reward in rewards.items()}
        flags = [
            {agent: inspector.flag(name, flag, f" of {agent!r}") for agent, flag in part.items()}
            for name, part in zip(_PARTS[2:4], ends, strict=True)
        ]
        self._over |= {agent for part in flags for agent, flag in part.items() if flag}
        shown = self._observations(parts[0], self.agents)
        infos = {agent: inspector.info(info, f" of {agent!r}") for agent, info in infos.items()}
        return shown, rewards, *flags, infos

    def _by_agent(self, name: str, part: Any) -> dict[Any, Any]:
        """``part`` without agents that there may not be."""
        if not isinstance(part, Mapping):
            self._inspector.violation("agents.form", f"{name} are {described(part)}", "return a dict by agent", name)
            return {}
        return {agent: part[agent] for agent in self._possible(part, f"{name} name {{!r}}")}

    def _observations(self, part: Any, live: Sequence[Any]) -> dict[Any, Any]:
        """Observations, with a blank one for each live agent that lacks its own."""
        shown = self._by_agent("observations", part)
        for agent, obs in shown.items():  # an agent that may do nothing waits
            self.checks[agent].look(obs, f", agent {agent!r}", final=True)
        for agent in live:
            if agent not in shown:
                mend = "give an observation to each of the env's agents"
                self._inspector.violation("agents.missing", f"agent {agent!r} has no observation", mend, "observations")
                shown[agent] = blank(self.env.observation_space(agent))
        return shown


class CheckedTurns(_CheckedNames):
    """Of an env whose agents act in turn (AEC)."""

    attributes = (
        *_CheckedNames.attributes,
        *("agents", "agent_selection", "rewards", "terminations", "truncations", "infos", "observe", "last"),
    )

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._begin(seed)

    def last(self) -> tuple[Any, ...]:
        """What the agent that has a turn sees, has earned and ended with."""
        agent, inspector = self.env.agent_selection, self._inspector
        parts = inspector.parts(self.env.last(), 5, "last", "(observation, reward, termination, truncation, info)")
        if parts is None or agent not in self.checks:
            raise Broken(f"last() did not give five values of a known agent ({agent!r})")
        of = f" of {agent!r}"
        over = [inspector.flag(name, value, of) for name, value in zip(_PARTS[2:4], parts[2:4], strict=True)]
        if not any(over):  # nothing is done with what an agent sees after its end
            self.checks[agent].look(parts[0], f", agent {agent!r}")
        return parts[0], inspector.reward(parts[1], of), *over, inspector.info(parts[4], of)

    def step(self, action: Any) -> None:
        """A turn; ``action`` is None where the agent is over."""
        self._inspector.call("step", self.env.step, action)


class CheckedLists(_Checked):
    """Of an env of lists, see sfactory/env/multi_agent_adapters.py."""

    def __init__(self, env: Any, inspector: Inspector) -> None:
        super().__init__(env, inspector, ("seed",))
        spec = spec_of(env.observation_space, env.action_space, inspector.obs_layout)
        self.checks = {place: ObsChecks(inspector, env.observation_space, spec) for place in range(env.num_agents)}

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        given = self._inspector.call("reset", self.env.reset, seed=seed)
        parts = self._inspector.parts(given, 2, "reset", "(list of observations, list of infos)")
        observations, infos = self._lists(parts, ("observations", "infos"))
        return self._shown(observations), self._infos(infos)

    def step(self, actions: Any) -> tuple[Any, ...]:
        given, inspector = self._inspector.call("step", self.env.step, actions), self._inspector
        names = ("observations", "rewards", *_FLAGS, "infos")
        observations, rewards, *ends, infos = self._lists(inspector.parts(given, 5, "step", "five lists"), names)
        rewards = [inspector.reward(reward, f" of agent {place}") for place, reward in enumerate(rewards)]
        flags = [[inspector.flag(name, flag) for flag in part] for name, part in zip(_FLAGS, ends, strict=True)]
        return self._shown(observations), rewards, *flags, self._infos(infos)

    def _lists(self, parts: tuple[Any, ...] | None, names: Sequence[str]) -> tuple[Any, ...]:
        """``parts`` if each has one entry for each agent."""
        wrong = parts is None
        for name, part in zip(names, parts or (), strict=False):
            if not isinstance(part, Sequence | np.ndarray) or isinstance(part, str) or len(part) != len(self.checks):
                size = f" of {len(part)}" if hasattr(part, "__len__") else ""
                mend = f"return a list of {len(self.checks)}, one for each agent"
                self._inspector.violation("agents.lists", f"{name} are {described(part)}{size}", mend, name)
                wrong = True
        if parts is None or wrong:
            raise Broken(f"no lists of {', '.join(names)}")
        return parts

    def _shown(self, observations: Sequence[Any]) -> Sequence[Any]:
        for place, obs in enumerate(observations):
            if obs is not None:
                self.checks[place].look(obs, f", agent {place}", final=True)
        return observations

    def _infos(self, infos: Sequence[Any]) -> list[Any]:
        return [self._inspector.info(info, f" of agent {place}") for place, info in enumerate(infos)]


class CheckedAgents(AgentsWrapper):
    """Of an AgentsEnv of the user."""

    def __init__(self, env: AgentsEnv, inspector: Inspector) -> None:
        super().__init__(env)
        self._inspector = inspector
        self.agents, self.kinds, self.in_turns = env.agents, env.kinds, env.in_turns
        self.observation_space, self.action_space = env.observation_space, env.action_space
        spec = spec_of(env.observation_space, env.action_space, inspector.obs_layout)
        self.checks = {agent: ObsChecks(inspector, env.observation_space, spec) for agent in env.agents}

    def reset(self, *, seed: int | None = None) -> list[Any]:
        observations: list[Any] = self._inspector.call("reset", self.env.reset, seed=seed)
        self._look(observations)
        return observations

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        observations, rewards, change = self._inspector.call("step", self.env.step, actions)
        self._look(observations)
        return observations, [self._inspector.reward(reward) for reward in rewards], change

    def _look(self, observations: Sequence[Any]) -> None:
        if len(observations) != len(self.agents):
            text = f"{self._inspector.where}: {len(observations)} observations for {len(self.agents)} agents"
            self._inspector.add("violation", "agents.lists", text, "give one for each agent, None if it sleeps")
            raise Broken(text)
        for agent, obs in zip(self.agents, observations, strict=True):
            if obs is not None:
                self.checks[agent].look(obs, f", agent {agent!r}", final=True)
