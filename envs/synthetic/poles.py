"""CartPole's poles that are reset when they fall, one agent for each pole.

An agent's step costs the same in an env with one agent or many, so the cost of many agents in an env can be compared.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control import CartPoleEnv

Obs = npt.NDArray[Any]


class Pole(gymnasium.Env[Obs, np.int64]):
    """One pole, which is reset when it falls; that step has no reward. Truncated after ``length``."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, length: int = 500) -> None:
        if length < 1:
            raise ValueError(f"length is {length}; an episode has at least 1 step")
        self._pole: gymnasium.Env[Any, Any] = CartPoleEnv()
        self.observation_space = self._pole.observation_space
        self.action_space: gymnasium.Space[Any] = self._pole.action_space
        self._length = self._left = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode."""
        self._left = self._length
        obs, info = self._pole.reset(seed=seed)
        return obs, info

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Push the cart."""
        self._left -= 1
        obs, reward, fell, _, info = self._pole.step(action)
        if fell:
            obs, reward = self._pole.reset()[0], 0.0
        return obs, float(reward), False, self._left <= 0, info


class Poles:
    """``agents`` poles in PettingZoo's parallel form, each as Pole has it."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as PettingZoo has it
    render_mode = None

    def __init__(self, agents: int = 4, length: int = 500) -> None:
        if agents < 1:
            raise ValueError(f"agents is {agents}; at least 1 is needed")
        self._poles = {f"pole_{agent}": Pole(length) for agent in range(agents)}
        # Looked up once, as they are of single envs.
        self._steps = {agent: pole.step for agent, pole in self._poles.items()}
        self.possible_agents = list(self._poles)
        # Made once, since they are the same in most steps; they must not be written to.
        self._none = dict.fromkeys(self._poles, False)
        self._all = dict.fromkeys(self._poles, True)
        self._nothing_said: dict[str, dict[str, Any]] = {agent: {} for agent in self._poles}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """That of its pole."""
        return self._poles[agent].observation_space

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """That of its pole."""
        return self._poles[agent].action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Obs], dict[str, Any]]:
        """Begin an episode of all."""
        self.agents = list(self.possible_agents)
        # Without a seed, poles continue with their own generators, as single poles do.
        seeds = (
            [None] * len(self._poles)
            if seed is None
            else np.random.SeedSequence(seed).generate_state(len(self._poles)).tolist()
        )
        shown = {agent: pole.reset(seed=s) for (agent, pole), s in zip(self._poles.items(), seeds, strict=True)}
        return {agent: obs for agent, (obs, _) in shown.items()}, {agent: info for agent, (_, info) in shown.items()}

    def step(self, actions: dict[str, np.int64]) -> tuple[dict[str, Any], ...]:
        """Push every cart; after ``length`` steps all are truncated at once."""
        observations, rewards = {}, {}
        cut = False
        for agent, step in self._steps.items():
            observations[agent], rewards[agent], _, cut, _ = step(actions[agent])
        if cut:  # poles count alike, so that it is true of all or of none
            self.agents = []
        return observations, rewards, self._none, self._all if cut else self._none, self._nothing_said

    def close(self) -> None:
        """There is nothing to be freed."""
