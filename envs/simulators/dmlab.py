"""Makes levels of DeepMind Lab, named ``dmlab_`` and a level, and gives defaults of flags for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..registered import PrefixedFamily

if TYPE_CHECKING:
    import gymnasium

_LEVELS_30 = "contributed/dmlab30/"
# Sample Factory's names of levels less ``dmlab_``, and the settings that one of them adds. Others are levels by their
# paths.
_LEVELS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "benchmark": (f"{_LEVELS_30}rooms_collect_good_objects_train", {}),
    "benchmark_slow_reset": (f"{_LEVELS_30}rooms_keys_doors_puzzle", {}),
    "collect_good_objects": (f"{_LEVELS_30}rooms_collect_good_objects_train", {}),
    "nonmatch": (f"{_LEVELS_30}rooms_select_nonmatching_object", {}),
    "sparse": (f"{_LEVELS_30}explore_goal_locations_large", {}),
    "sparse_doors": (f"{_LEVELS_30}explore_obstructed_goals_large", {}),
    "very_sparse": (f"{_LEVELS_30}explore_goal_locations_large", {"minGoalDistance": "10"}),
    "watermaze": (f"{_LEVELS_30}rooms_watermaze", {}),
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
class DmLab(PrefixedFamily):
    """The env family of DeepMind Lab."""

    # Folders of levels, which are scripts in Lua, and of maps; commands of the console.
    code_kwargs: tuple[str, ...] = ("directory", "script", "command", "cache")

    def make(self, env_name: str, *, env_frameskip: int = 4, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """The level, with actions held for ``env_frameskip`` frames; ``kwargs``: those of DmLabEnv."""
        from .dmlab_env import DmLabEnv

        name = env_name.removeprefix(self.prefix)
        level, config = _LEVELS.get(name, (name, {}))
        kwargs["config"] = {**config, **(kwargs.get("config") or {})}
        return DmLabEnv(level, env_frameskip, **kwargs)


FAMILY = DmLab(
    "dmlab",
    "dmlab_",
    tuple(_LEVELS),
    _DEFAULTS,
    modules=("deepmind_lab",),
    page="https://github.com/google-deepmind/lab",
)
