"""Makes the tasks of Isaac Lab as vector envs, named ``isaaclab:ID``.

It simulates all envs of a process at once on a GPU; here their tensors are copied to host memory with every step.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..registered import PrefixedFamily

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

# One simulation of 512 envs, and PPO with the network and the passes that the package has for walking robots.
_DEFAULTS: Mapping[str, object] = {
    "num_workers": 1,
    "num_envs_per_worker": 512,
    "worker_num_splits": 1,
    "actor_worker_gpus": (0,),
    "rollout": 16,
    "batch_size": 2_048,
    "num_batches_per_epoch": 4,
    "num_epochs": 5,
    "num_batches_to_accumulate": 0,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "ppo_clip_ratio": 0.2,
    "encoder_mlp_layers": (256, 128, 64),
    "learning_rate": 3e-4,
    "max_grad_norm": 1.0,
    "exploration_loss_coeff": 0.0,
    "train_for_env_steps": 20_000_000,
}


@dataclass(frozen=True)
class IsaacLab(PrefixedFamily):
    """The env family of what Isaac Lab registers with Gymnasium."""

    one_per_process: str = "worker_num_splits"
    code_kwargs: tuple[str, ...] = ("experience", "kitargs")  # of the launcher: extensions and scripts

    def make(
        self,
        env_name: str,
        *,
        num_envs: int,
        seed: int = 0,
        device: str = "cuda:0",
        launcher: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> VectorEnv[Any, Any, Any]:
        """``num_envs`` of them in one simulation. launcher: more arguments of AppLauncher, such as enable_cameras."""
        import gymnasium

        options = {"headless": True, "device": device, **(launcher or {})}
        _launched(json.dumps(options, sort_keys=True))
        importlib.import_module("isaaclab_tasks")
        parse: Any = importlib.import_module("isaaclab_tasks.utils").parse_env_cfg
        from .isaac_envs import IsaacLabEnv

        env_id = env_name.removeprefix(self.prefix)
        cfg = parse(env_id, device=device, num_envs=num_envs)
        cfg.seed = seed
        return IsaacLabEnv(gymnasium.make(env_id, cfg=cfg, **kwargs).unwrapped)


@functools.cache
def _launched(options: str) -> object:
    """The simulator, started once in a process, before anything of Isaac Lab is imported; it ends with the process."""
    launcher: Any = importlib.import_module("isaaclab.app").AppLauncher
    return launcher(json.loads(options))


_TASKS = ("Cartpole-v0", "Ant-v0", "Humanoid-v0", "Velocity-Flat-Anymal-C-v0", "Reach-Franka-v0")
FAMILY = IsaacLab(
    "isaaclab",
    "isaaclab:",
    tuple(f"Isaac-{task}" for task in _TASKS),
    _DEFAULTS,
    modules=("isaaclab", "isaaclab_tasks"),
    page="https://isaac-sim.github.io/IsaacLab",
)
