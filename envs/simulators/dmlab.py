"""Makes levels of DeepMind Lab, named ``dmlab_`` and a level, and gives defaults of flags for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium

_PREFIX = "dmlab_"
_LEVELS_30 = "contributed/dmlab30/"
# Sample Factory's names of levels, and the settings that one of them adds. Others are levels by their paths.
_LEVELS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "dmlab_benchmark": (f"{_LEVELS_30}rooms_collect_good_objects_train", {}),
    "dmlab_benchmark_slow_reset": (f"{_LEVELS_30}rooms_keys_doors_puzzle", {}),
    "dmlab_collect_good_objects": (f"{_LEVELS_30}rooms_collect_good_objects_train", {}),
    "dmlab_nonmatch": (f"{_LEVELS_30}rooms_select_nonmatching_object", {}),
    "dmlab_sparse": (f"{_LEVELS_30}explore_goal_locations_large", {}),
    "dmlab_sparse_doors": (f"{_LEVELS_30}explore_obstructed_goals_large", {}),
    "dmlab_very_sparse": (f"{_LEVELS_30}explore_goal_locations_large", {"minGoalDistance": "10"}),
    "dmlab_watermaze": (f"{_LEVELS_30}rooms_watermaze", {}),
}
# The network and discount of Espeholt et al. 2018, with the datasets that VizDoom has here.
_DEFAULTS: Mapping[str, object] = {
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "worker_num_splits": 2,
    "rollout": 32,
    "batch_size": 256,
    "num_batches_per_epoch": 4,
    "num_epochs": 1,
    "env_frameskip": 4,
    "encoder_conv_architecture": "resnet_impala",
    "encoder_conv_mlp_layers": (256,),
    "nonlinearity": "relu",
    "use_rnn": True,
    "rnn_type": "lstm",
    "rnn_size": 256,
    "obs_scale": 255.0,
    "normalize_input": False,
    "normalize_returns": True,
    "learning_rate": 2e-4,
    "exploration_loss_coeff": 0.003,
    "train_for_env_steps": 100_000_000,
}


@dataclass(frozen=True)
class DmLab:
    """The env family of DeepMind Lab."""

    name: str = "dmlab"
    modules: tuple[str, ...] = ("deepmind_lab",)
    page: str = "https://github.com/google-deepmind/lab"

    def names(self) -> Sequence[str]:
        """Sample Factory's names of single levels."""
        return tuple(_LEVELS)

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` begins with ``dmlab_``."""
        return env_name.startswith(_PREFIX)

    def make(self, env_name: str, *, env_frameskip: int = 4, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """The level, with actions held for ``env_frameskip`` frames; ``kwargs``: those of DmLabEnv."""
        from .dmlab_env import DmLabEnv

        level, config = _LEVELS.get(env_name, (env_name.removeprefix(_PREFIX), {}))
        kwargs["config"] = {**config, **(kwargs.get("config") or {})}
        return DmLabEnv(level, env_frameskip, **kwargs)

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags to begin with, for any level."""
        return _DEFAULTS


FAMILY = DmLab()
