"""Counting envs as a TensorEnv: what each env shows and pays is computed before, and lies on the device as a tape."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as spaces
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from sfactory.env.tensor_env import TensorEnv, TensorStep
from sfactory.env.tensor_vector import TensorVectorEnv

from .counting import FIELD_LIMIT, HEADER, IDENTITY_LIMIT, SEALS, CountingRules, Position, encode

OBS_SIZE = HEADER + SEALS


class CountingTensors(TensorEnv):
    """N Counting envs (see counting.py). Env i of a reset with seed s has the identity s + i.

    steps: how many the tape is long; a step beyond raises IndexError. final_obs: whether SAME_STEP steps return final
    observations. The other arguments are those of ``CountingRules`` and AutoresetMode.
    """

    def __init__(
        self,
        num_envs: int,
        device: str,
        steps: int = 2000,
        autoreset_mode: str = "NextStep",
        final_obs: bool = False,
        **rules: Any,
    ) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.single_observation_space = spaces.Box(0, FIELD_LIMIT, (OBS_SIZE,), np.float32)
        self.rules = CountingRules(**rules)
        self.single_action_space = spaces.Discrete(self.rules.num_actions)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._steps, self._gives_final = steps, final_obs
        self._at = 0

    def reset(self, seed: int) -> Tensor:
        """See TensorEnv."""
        shape = self._steps + 1, self.num_envs
        obs, final = (np.zeros((*shape, OBS_SIZE), np.float32) for _ in range(2))
        pays, rewards = np.zeros(shape, bool), np.zeros(shape, np.float32)
        terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        ends_at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        for env in range(self.num_envs):
            at = Position((seed + env) % IDENTITY_LIMIT, 0, 0)
            for step in range(self._steps + 1):
                obs[step, env] = encode(at, OBS_SIZE)
                length, ending = self.rules.length(*at[:2]), self.rules.ending(*at[:2])
                if at.step == length:  # the row that shows the end of an episode in NEXT_STEP mode
                    at = Position(at.identity, at.episode + 1, 0)
                    continue
                pays[step, env], rewards[step, env] = True, self.rules.reward(at, 0)
                at = at._replace(step=at.step + 1)
                if at.step == length:
                    terminated[step, env], truncated[step, env] = ending != "truncated", ending != "terminated"
                final[step, env] = encode(at, OBS_SIZE)
                if at.step == length and ends_at_once:
                    at = Position(at.identity, at.episode + 1, 0)
        tapes = obs, final, pays, rewards, terminated, truncated
        self._obs, self._final, self._pays, self._rewards, self._terminated, self._truncated = (
            torch.from_numpy(tape).to(self.device) for tape in tapes
        )
        self._at = 0
        return self._obs[0]

    def step(self, actions: Tensor) -> TensorStep:
        """See TensorEnv."""
        at = self._at
        self._at += 1
        return TensorStep(
            obs=self._obs[at + 1],
            rewards=torch.where(self._pays[at], self._rewards[at] + actions, 0.0),
            terminated=self._terminated[at],
            truncated=self._truncated[at],
            final_obs=self._final[at] if self._gives_final else None,
            stats={"action": actions},
        )


def counting_tensor_vector(num_envs: int, **kwargs: Any) -> TensorVectorEnv:
    """The same behind Gymnasium's vector interface, with arrays in host memory."""
    return TensorVectorEnv(CountingTensors(num_envs, "cpu", **kwargs))
