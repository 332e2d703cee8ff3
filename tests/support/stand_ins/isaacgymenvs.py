"""Makes one task, whose interface is that of isaacgymenvs.tasks.base.vec_task.VecTask: an end is reset one step later.

The task pays for an action near the observation. Episodes time out after LENGTH steps; that of env 0 fails after two.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

LENGTH = 5


class Point:
    """N points in one simulation."""

    def __init__(self, seed: int, num_envs: int, device: str) -> None:
        self.num_envs, self.device, self.rl_device = num_envs, device, device
        # Spaces of the older package gym.
        ones = np.ones(2, np.float32)
        self.observation_space = SimpleNamespace(low=-np.inf * ones, high=np.inf * ones, shape=(2,))
        self.action_space = SimpleNamespace(low=-ones, high=ones, shape=(2,))
        self.obs_buf, self.rew_buf = torch.zeros(num_envs, 2), torch.zeros(num_envs)
        self.reset_buf = torch.ones(num_envs, dtype=torch.long)
        self.progress_buf = torch.zeros(num_envs, dtype=torch.long)
        self.extras: dict[str, Any] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def reset(self) -> dict[str, torch.Tensor]:
        return {"obs": self.obs_buf}

    def step(self, actions: torch.Tensor) -> Any:
        assert (actions.shape, actions.dtype) == ((self.num_envs, 2), torch.float32)
        self.rew_buf[:] = -(actions - self.obs_buf).abs().sum(1).clamp(max=4.0)
        self.progress_buf += 1
        env_ids = self.reset_buf.nonzero().squeeze(-1)
        self.obs_buf[env_ids] = 2 * torch.rand(len(env_ids), 2, generator=self._generator) - 1
        self.progress_buf[env_ids] = 0
        self.reset_buf[:] = self.progress_buf >= LENGTH - 1
        self.reset_buf[0] = self.progress_buf[0] >= 2
        self.extras["time_outs"] = (self.progress_buf >= LENGTH - 1) & (self.reset_buf != 0)
        return {"obs": self.obs_buf}, self.rew_buf, self.reset_buf, self.extras


def make(
    seed: int,
    task: str,
    num_envs: int,
    sim_device: str,
    rl_device: str,
    graphics_device_id: int = -1,
    headless: bool = False,
    multi_gpu: bool = False,
    virtual_screen_capture: bool = False,
    force_render: bool = True,
    cfg: Any = None,
) -> Point:
    """One simulation."""
    assert (task, headless) == ("Point", True)
    return Point(seed, num_envs, rl_device)
