"""Makes scenarios of Megaverse as vector envs, named ``megaverse:`` and a scenario, with defaults of flags for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfactory.errors import EnvError

from ..registered import PrefixedFamily

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

# The eight of the paper.
_SCENARIOS = (
    "TowerBuilding",
    "ObstaclesEasy",
    "ObstaclesHard",
    "Collect",
    "Sokoban",
    "HexMemory",
    "HexExplore",
    "Rearrange",
)
# Envs, dataset, discount and losses of the runs of Petrenko et al. 2021; their memory has two layers.
_DEFAULTS: Mapping[str, object] = {
    "num_workers": 1,
    "num_envs_per_worker": 72,
    "worker_num_splits": 2,
    "actor_worker_gpus": (0,),
    "rollout": 32,
    "batch_size": 2304,
    "num_epochs": 1,
    "gamma": 0.997,
    "encoder_conv_architecture": "convnet_simple",
    "obs_scale": 255.0,
    "normalize_input": False,
    "use_rnn": True,
    "exploration_loss": "symmetric_kl",
    "exploration_loss_coeff": 0.001,
    "reward_clip": 30.0,
    "train_for_env_steps": 100_000_000,
}


@dataclass(frozen=True)
class Megaverse(PrefixedFamily):
    """The env family of Megaverse."""

    def make(
        self,
        env_name: str,
        *,
        num_envs: int,
        num_simulation_threads: int = 1,
        use_vulkan: bool = False,
        params: Mapping[str, float] | None = None,
        **others: object,
    ) -> VectorEnv[Any, Any, Any]:
        """``num_envs`` of them, each with one agent. params: those of the scenario, as episodeLengthSec.

        Raises EnvError for other arguments, such as more agents.
        """
        if others:
            known = "num_simulation_threads, use_vulkan and params"
            raise EnvError(f"--env={env_name}: --env_kwargs may have {known}; leave out {', '.join(others)}")
        from .megaverse_env import MegaverseVectors

        numbers = {name: float(value) for name, value in (params or {}).items()}  # it refuses integers
        scenario = env_name.removeprefix(self.prefix)
        return MegaverseVectors(scenario, num_envs, num_simulation_threads, use_vulkan, numbers)


FAMILY = Megaverse(
    "megaverse",
    "megaverse:",
    _SCENARIOS,
    _DEFAULTS,
    modules=("megaverse",),
    page="https://github.com/alex-petrenko/megaverse",
)
