"""Envs and wrappers for tests of the flags that wrap envs."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import gymnasium
import gymnasium.spaces as spaces
import numpy as np
from gymnasium.wrappers import AddRenderObservation

from sfactory.env.factory import SPANS_FRAMES

Step = tuple[Any, float, bool, bool, dict[str, Any]]
SCREEN = (24, 20)
PICTURES = np.random.default_rng(0).integers(0, 256, (11, *SCREEN, 3)).astype(np.uint8)


class Sights(gymnasium.Env[Any, Any]):
    """Shows images in three layouts, the action and number of the last step, and a mask.

    All observations are in memory that the next step writes over. Rewards are the numbers of the steps; an episode
    terminates with step 10. Seeds are for nothing: ``reset`` does not pass them on.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 - the attribute of gymnasium.Env
    action_space = spaces.Discrete(3)

    def __init__(self, masks: bool = False, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        leaves: dict[str, spaces.Space[Any]] = {
            "front": spaces.Box(0, 255, (*SCREEN, 3), np.uint8),
            "back": spaces.Dict(planes=spaces.Box(0, 255, (3, *SCREEN), np.uint8)),
            "depth": spaces.Box(0, 255, SCREEN, np.uint8),
            "seen": spaces.Box(-1, 10, (2,), np.float32),
            "level": spaces.Discrete(4),
        }
        if masks:
            leaves["action_mask"] = spaces.Box(0, 1, (3,), np.uint8)
        self.observation_space: Any = spaces.Dict(leaves)
        self._shown = self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._show(-1), {}

    def step(self, action: Any) -> Step:
        self._step += 1
        return (
            self._show(int(action)),
            float(self._step),
            self._step == 10,
            False,
            {"step": self._step, "action": action},
        )

    def render(self) -> Any:
        return self._shown["front"]

    def _show(self, action: int) -> dict[str, Any]:
        shown = self._shown
        shown["front"][:] = PICTURES[self._step]
        shown["back"]["planes"][:] = np.moveaxis(shown["front"], -1, 0)
        shown["depth"][:] = shown["front"][..., 0]
        shown["seen"][:] = action, self._step
        shown["level"] = np.int64(self._step % 4)
        if "action_mask" in shown:
            shown["action_mask"][:] = 1
        return dict(shown)


def pictured_cart_pole() -> gymnasium.Env[Any, Any]:
    """CartPole-v1 that shows its picture alone, [400, 600, 3] uint8."""
    return AddRenderObservation(gymnasium.make("CartPole-v1", render_mode="rgb_array"))


class Noting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds its name to ``info["wrappers"]`` of each step."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        names = [*info.get("wrappers", ()), type(self).__name__]
        return obs, reward, terminated, truncated, {**info, "wrappers": names}


class NotingToo(Noting):
    """Another one."""


class HalfReward(gymnasium.RewardWrapper[Any, Any]):
    """Halves rewards."""

    def reward(self, reward: Any) -> float:
        return 0.5 * float(reward)


def half_of_all(env: Any) -> gymnasium.vector.VectorRewardWrapper:
    """Halves the rewards of a vector env."""

    class Half(gymnasium.vector.VectorRewardWrapper):
        def rewards(self, reward: Any) -> Any:
            return 0.5 * reward

    return Half(env)


def renamed_agents(env: Any) -> Any:
    """A parallel env of PettingZoo that says that it was here."""
    env.was_wrapped = True
    return env


class Lookouts:
    """A parallel env of PettingZoo; the images of two agents have the values 10 and 20, and one more in each step."""

    possible_agents = ("near", "far")
    metadata = MappingProxyType[str, Any]({})

    def __init__(self) -> None:
        self._spaces = spaces.Box(0, 255, (24, 20, 3), np.uint8), spaces.Discrete(2)

    def observation_space(self, agent: str) -> spaces.Box:
        return self._spaces[0]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self._spaces[1]

    def _seen(self) -> dict[str, Any]:
        levels = zip(self.agents, (10, 20), strict=True)
        return {agent: np.full((24, 20, 3), level + self._steps, np.uint8) for agent, level in levels}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._steps = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        self._steps += 1
        flags = dict.fromkeys(self.agents, False)
        return self._seen(), dict.fromkeys(self.agents, 0.0), flags, flags, {agent: {} for agent in self.agents}

    def close(self) -> None:
        """Nothing to free."""


class BriefLookouts(Lookouts):
    """Its steps return four dicts instead of five."""

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        return super().step(actions)[:4]


def forgets(env: Any) -> None:
    """Returns nothing."""


def raises(env: Any) -> None:
    """Cannot wrap anything."""
    raise ValueError("no room")


def stacked() -> gymnasium.Env[Any, Any]:
    """An env that says that it stacks frames."""
    env = Sights()
    env.metadata = {**env.metadata, SPANS_FRAMES: True}
    return env


class Worded(Sights):
    """Has a text among its observations."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({**dict(self.observation_space), "text": spaces.Text(5)})


class Unseeing(Sights):
    """Shows nothing but its mask."""

    def __init__(self) -> None:
        super().__init__(masks=True)
        self.observation_space = spaces.Dict(action_mask=self.observation_space["action_mask"])
