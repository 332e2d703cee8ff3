"""Registers one task, whose interface is that of isaaclab.envs.DirectRLEnv: buffers are used again with each step.

The task pays for an action near the observation. Episodes are truncated after LENGTH steps; that of env 0 terminates
after two.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from isaaclab.app import AppLauncher

LENGTH = 5
assert AppLauncher.started, "nothing of Isaac Lab may be imported before the simulator is started"


class PointEnv(gymnasium.Env[Any, Any]):
    """N points in one simulation."""

    is_vector_env: ClassVar[bool] = True
    alive = 0

    def __init__(self, cfg: Any, render_mode: str | None = None, **kwargs: Any) -> None:
        assert PointEnv.alive == 0, "Simulation context already exists. Cannot create a new one."
        PointEnv.alive += 1
        self.cfg, self.num_envs, self.device = cfg, cfg.scene.num_envs, cfg.sim.device
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.single_observation_space = gymnasium.spaces.Dict(policy=box, critic=gymnasium.spaces.Box(-1.0, 1.0, (3,)))
        self.single_action_space = box
        self._obs, self._steps = torch.zeros(self.num_envs, 2), torch.zeros(self.num_envs, dtype=torch.long)
        self._rewards = torch.zeros(self.num_envs)
        self._generator = torch.Generator().manual_seed(cfg.seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._generator.manual_seed(seed)
        self._reset_idx(torch.arange(self.num_envs))
        return self._groups(), {}

    def step(self, action: torch.Tensor) -> Any:
        assert (action.shape, action.dtype) == ((self.num_envs, 2), torch.float32)
        self._rewards[:] = -(action - self._obs).abs().sum(1).clamp(max=4.0)
        self._steps += 1
        terminated, truncated = self._steps >= LENGTH + 1, self._steps >= LENGTH
        terminated[0] = self._steps[0] >= 2
        self._reset_idx((terminated | truncated).nonzero().squeeze(-1))
        return self._groups(), self._rewards, terminated, truncated, {"log": {}}

    def close(self) -> None:
        PointEnv.alive -= 1

    def _reset_idx(self, env_ids: torch.Tensor) -> None:
        self._obs[env_ids] = 2 * torch.rand(len(env_ids), 2, generator=self._generator) - 1
        self._steps[env_ids] = 0

    def _groups(self) -> dict[str, torch.Tensor]:
        return {"policy": self._obs, "critic": torch.cat([self._obs, self._steps[:, None] / LENGTH], 1)}


def point_cfg() -> Any:
    """What the id's env_cfg_entry_point names."""
    return SimpleNamespace(seed=None, sim=SimpleNamespace(device="cuda:0"), scene=SimpleNamespace(num_envs=4096))


gymnasium.register(
    "Isaac-Point-v0",
    entry_point="isaaclab_tasks:PointEnv",
    disable_env_checker=True,
    kwargs={"env_cfg_entry_point": point_cfg},
)
