"""Envs of any spaces whose observations, rewards and ends are random, for one agent, for several, and for unequal ones.

``random_env`` and ``random_vector`` are named by --env.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import gymnasium.spaces as spaces
import numpy as np

from sfactory.action_heads import DiscreteHead
from sfactory.env.multi_agent import AgentsEnv, AgentsStep, Change
from sfactory.spec import EnvSpec
from sfactory.tensor_spec import MASK_KEY

NUMBERS = spaces.Box(-2.0, 2.0, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)
OBS: dict[str, dict[str, spaces.Space[Any]]] = {
    "numbers": {"x": NUMBERS},
    "choices": {"x": spaces.MultiDiscrete([3, 5])},
    "image": {"camera": IMAGE},
    "entities": {"units": spaces.Box(-1.0, 1.0, (5, 3), np.float32), "units_mask": spaces.MultiBinary(5)},
    "several": {"x": NUMBERS, "place": spaces.Discrete(4), "camera": IMAGE, "units": spaces.Box(-1.0, 1.0, (2, 3))},
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "multi": spaces.MultiDiscrete([3, 4]),
    "box": spaces.Box(-1.0, 3.0, (2,), np.float32),
    "mixed": spaces.Dict(arm=spaces.Box(-1.0, 1.0, (2,), np.float32), fire=spaces.Discrete(3)),
}


def random_env(obs: str, actions: str, masked: bool, agents: str) -> Any:
    """agents: "one", "three" equal ones, or three of which one is "unequal"."""
    make: Any = {"one": RandomEnv, "three": RandomAgents, "unequal": RandomUnequal}[agents]
    return make(OBS[obs], ACTIONS[actions], masked)


def wide_env() -> Any:
    """Of one agent, whose observations are numbers of 64 and 32 bits far from zero."""
    wide: dict[str, spaces.Space[Any]] = {
        "x": spaces.Box(1e3, 1e3 + 4.0, (3,), np.float64),
        "count": spaces.Box(0, 10**6, (2,), np.int32),
    }
    return RandomEnv(wide, ACTIONS["discrete"], masked=False)


def odd_env() -> Any:
    """Of one agent, whose observations are of dtypes with which torch computes only in part."""
    odd: dict[str, spaces.Space[Any]] = {
        "depth": spaces.Box(0, 60_000, (3,), np.uint16),
        "half": spaces.Box(-2.0, 2.0, (3,), np.float16),
        "kind": spaces.MultiDiscrete([3, 4], np.uint16),
        "long": spaces.Box(0, 2**40, (2,), np.uint64),
        "word": spaces.Box(0, 2**32 - 1, (2,), np.uint32),
    }
    return RandomEnv(odd, ACTIONS["discrete"], masked=False)


def tuple_env() -> Any:
    """Of one agent, whose observations and actions are tuples."""
    return TupleEnv()


def nested_env() -> Any:
    """Of one agent, whose actions are nested three deep, with masks in the same structure."""
    return NestedEnv()


def random_vector(num_envs: int, **kwargs: Any) -> gymnasium.vector.SyncVectorEnv:
    """Of envs of one agent."""
    return gymnasium.vector.SyncVectorEnv([lambda: random_env(**kwargs)] * num_envs)


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
        if not self.action_space.contains(action) or not self._is_legal(action):
            raise ValueError(f"{action} is no legal action")
        return self.wait()

    def wait(self) -> Any:
        """A step without an action."""
        reward, end = float(self._random.normal()), self._random.random()
        return self._shown(), reward, bool(end < 0.1), bool(end > 0.9), {}

    def _is_legal(self, action: Any) -> bool:
        if not self._masked:
            return True
        chosen = action["fire"] if isinstance(action, dict) else action  # the Box of the mixed actions has no mask
        firsts = np.cumsum([0, *self._choices[:-1]])
        return bool(self._mask[firsts + np.atleast_1d(chosen)].all())

    def _shown(self) -> dict[str, Any]:
        obs = self.observation_space.sample()
        if self._masked:
            masks = [self._random.integers(2, size=n) for n in self._choices]
            for mask in masks:
                mask[self._random.integers(len(mask))] = 1
            self._mask = obs[MASK_KEY] = np.concatenate(masks).astype(np.int8)
        return dict(obs)


class TupleEnv(RandomEnv):
    """Its observation is a tuple of numbers, a choice and a Dict; its action one of a box and of choices."""

    def __init__(self) -> None:
        box, multi, discrete = ACTIONS["box"], ACTIONS["multi"], ACTIONS["discrete"]
        super().__init__({"x": NUMBERS}, spaces.Tuple((box, multi, discrete)), masked=False)
        parts = NUMBERS, spaces.Discrete(4), spaces.Dict(place=spaces.MultiDiscrete([2, 3]))
        self.observation_space = spaces.Tuple(parts)

    def _shown(self) -> Any:
        return self.observation_space.sample()


class NestedEnv(RandomEnv):
    """Its masks allow the first choice of each head alone, and all of the elements of the MultiBinary."""

    def __init__(self) -> None:
        discrete = spaces.Discrete(5, start=2)
        pair = spaces.Tuple(
            (discrete, spaces.Dict(action=spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])), on=discrete))
        )
        actions = spaces.Dict(action=spaces.Discrete(3), hand=pair, keys=spaces.MultiBinary((2, 2)), none=spaces.Dict())
        super().__init__({"x": NUMBERS}, actions, masked=False)
        below = spaces.Dict(action=spaces.Box(0, 1, (11,), np.int8))
        masks: dict[str, spaces.Space[Any]] = {"hand": spaces.Tuple((spaces.MultiBinary(5), below))}
        self.observation_space = spaces.Dict({"x": NUMBERS, MASK_KEY: spaces.Dict(masks)})

    def step(self, action: Any) -> Any:
        first, below = action["hand"]
        if first != 2 or below["action"].any():
            raise ValueError(f"{action} is not legal")
        return super().step(action)

    def _shown(self) -> Any:
        flags = np.array([1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0], np.int8)  # of 2, 3, 4 and 2 choices
        return {"x": NUMBERS.sample(), MASK_KEY: {"hand": (np.eye(5, dtype=np.int8)[0], {"action": flags})}}


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
        steps = [env.step(action) if acts else env.wait() for env, action, acts in pairs]
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


class InformedAgents(RandomAgents):
    """Keeps the env steps that training is said to have made. shown: of all such envs, without repetitions."""

    shown: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__(OBS["numbers"], ACTIONS["discrete"], False)

    def set_training_info(self, info: dict[str, int]) -> None:
        """See ``sfactory.env.training_info``."""
        if self.shown[-1:] != [info["env_steps"]]:
            self.shown.append(info["env_steps"])


class RandomUnequal:
    """RandomAgents with PettingZoo's parallel interface, where agent b sees two numbers and has two choices."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    render_mode = None

    def __init__(self, seen: dict[str, spaces.Space[Any]], action_space: spaces.Space[Any], masked: bool) -> None:
        self._envs = {agent: RandomEnv(seen, action_space, masked) for agent in ("a", "b", "c")}
        self._envs["b"] = RandomEnv({"y": spaces.Box(-1.0, 1.0, (2,), np.float32)}, spaces.Discrete(2), masked)
        self.possible_agents, self.agents = list(self._envs), list[str]()
        self._random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._envs[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._envs[agent].action_space

    def reset(self, seed: int | None = None, options: object = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        return {agent: env.reset(seed=seed)[0] for agent, env in self._envs.items()}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        steps = {agent: self._envs[agent].step(action) for agent, action in actions.items()}
        observations, rewards = ({agent: step[place] for agent, step in steps.items()} for place in range(2))
        over, cut = steps["a"][2:4]
        awake = ["a", "b", "c"] if self._random.random() < 0.7 else ["a", "b"]  # c sleeps at times
        self.agents = [] if over or cut else awake
        observations |= {agent: self._envs[agent]._shown() for agent in awake}
        terminated, truncated = (dict.fromkeys(self.possible_agents, bool(flag)) for flag in (over, cut))
        return observations, rewards, terminated, truncated, {agent: {} for agent in observations}

    def close(self) -> None: ...
