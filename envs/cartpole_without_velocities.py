"""CartPole for policies with a memory: observations are position and angle, without velocities.

Balancing the pole depends on both velocities. They can be computed only from two observations, so a policy without
memory gets much lower returns.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[np.float32]
Info = dict[str, Any]

# CartPole observes position, velocity, angle, angular velocity.
_SEEN = slice(0, None, 2)


class CartPoleWithoutVelocities(gymnasium.Wrapper[Obs, Any, Obs, Any], gymnasium.utils.RecordConstructorArgs):
    """A CartPole that shows two of its four numbers.

    Observations: [2] float32 - position of the cart, angle of the pole.
    """

    def __init__(self, env: gymnasium.Env[Obs, Any]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(space.low[_SEEN], space.high[_SEEN], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, Info]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs[_SEEN], info

    def step(self, action: Any) -> tuple[Obs, Any, bool, bool, Info]:
        """Push the cart to the left (0) or to the right (1)."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs[_SEEN], reward, terminated, truncated, info
