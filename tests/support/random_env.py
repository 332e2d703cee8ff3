"""Envs of any spaces whose observations, rewards and ends are random, for one agent and for several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np

from sfactory.action_heads import DiscreteHead
from sfactory.env.multi_agent import AgentsEnv, AgentsStep, Change
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import MASK_KEY


class RandomEnv(gymnasium.Env[Any, Any]):
    """Of ten steps one terminates and one truncates the episode. masked: an action mask is among the observations, and
    an action that it does not allow raises ValueError."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the attribute of gymnasium.Env

    def __init__(self, seen: dict[str, spaces.Space[Any]], action_space: spaces.Space[Any], masked: bool) -> None:
        self.action_space = action_space
        self._heads = EnvSpec.of_spaces(spaces.Dict(seen), action_space).actions if masked else ()
        self._choices = [head.n for head in self._heads if isinstance(head, DiscreteHead)]
        masks = {MASK_KEY: spaces.MultiBinary(sum(self._choices))} if masked else {}
        self.observation_space = spaces.Dict({**seen, **masks})
        self._masked, self._random = masked, np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._random = np.random.default_rng(seed)
            self.observation_space.seed(seed)
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is no action")
        reward, end = float(self._random.normal()), self._random.random()
        return self._shown(), reward, bool(end < 0.1), bool(end > 0.9), {}

    def _shown(self) -> dict[str, Any]:
        obs = self.observation_space.sample()
        if self._masked:
            masks = [self._random.integers(2, size=n) for n in self._choices]
            for mask in masks:
                mask[self._random.integers(len(mask))] = 1
            obs[MASK_KEY] = np.concatenate(masks).astype(np.int8)
        return dict(obs)


class RandomAgents(AgentsEnv):
    """Three agents, each in a RandomEnv of its own; at times one sleeps. The episodes of all end with the first's."""

    metadata: dict[str, Any] = {}  # noqa: RUF012 - as in Gymnasium
    render_mode = None

    def __init__(self, *spaces_of: Any) -> None:
        self._envs = [RandomEnv(*spaces_of) for _ in range(3)]
        self.agents = ("a", "b", "c")
        self.observation_space, self.action_space = self._envs[0].observation_space, self._envs[0].action_space
        self._random, self._active = np.random.default_rng(0), [True] * 3

    def reset(self, *, seed: int | None = None) -> list[Any]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._active = [True] * 3
        return [env.reset(seed=None if seed is None else seed + place)[0] for place, env in enumerate(self._envs)]

    def step(self, actions: Sequence[Any]) -> AgentsStep:
        pairs = zip(self._envs, actions, self._active, strict=True)
        steps = [env.step(action if acts else env.action_space.sample()) for env, action, acts in pairs]
        observations, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        ends = [terminated[0]] * 3, [truncated[0] and not terminated[0]] * 3
        before, self._active = self._active, [True, True, bool(self._random.random() < 0.7)]
        changes = self._active != before or ends[0][0] or ends[1][0]
        change = Change(*ends, self._active, [{}] * 3) if changes else None
        return list(observations), list(rewards), change

    def render(self) -> None:
        """There is nothing to be seen."""

    def close(self) -> None:
        """There is nothing to close."""
