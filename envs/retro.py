"""Makes console games of stable-retro, named ``retro:`` and a game, and gives defaults of flags for them.

The package knows some 1,000 games and has the ROM of one, Airstriker; ``python -m stable_retro.import FOLDER`` imports
ROMs that the user has. A process can hold one emulator.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfactory.errors import EnvError

from .registered import PrefixedFamily

if TYPE_CHECKING:
    import gymnasium

_PREFIX = "retro:"
_ACTIONS = ("filtered", "discrete", "multi_discrete", "all")
# Images, limit of time and PPO as in stable-retro's own example, but for the number of emulators; there only the first
# of four frames may repeat the last action, here each may.
_DEFAULTS: Mapping[str, object] = {
    "num_workers": 4,
    "num_envs_per_worker": 1,
    "worker_num_splits": 1,
    "action_repeat": 4,
    "sticky_actions": 0.25,
    "obs_grey": True,
    "obs_resize": (84, 84),
    "env_framestack": 4,
    "max_episode_steps": 4_500,
    "rollout": 128,
    "batch_size": 128,
    "num_batches_per_epoch": 4,
    "num_epochs": 4,
    "num_batches_to_accumulate": 0,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "ppo_clip_ratio": 0.1,
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": (512,),
    "nonlinearity": "relu",
    "obs_scale": 255.0,
    "normalize_input": False,
    "reward_clip": 1.0,
    "learning_rate": 2.5e-4,
    "lr_schedule": "linear_decay",
    "max_grad_norm": 0.5,
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 10_000_000,
}


@dataclass(frozen=True)
class Retro(PrefixedFamily):
    """The env family of stable-retro."""

    one_per_process: str = "num_envs_per_worker"
    code_kwargs: tuple[str, ...] = ("scenario",)  # it has scripts in Lua

    def make(
        self, env_name: str, *, render_mode: str | None = None, actions: str = "filtered", **kwargs: object
    ) -> gymnasium.Env[Any, Any]:
        """The game; ``actions`` is one of stable-retro's kinds, ``kwargs`` are those of its ``make``, such as state.

        Raises EnvError for a game that the package does not know, or has no ROM of, and for another kind.
        """
        retro: Any = importlib.import_module("stable_retro")
        game = env_name.removeprefix(_PREFIX)
        if actions not in _ACTIONS:
            raise EnvError(f"--env={env_name}: actions={actions!r}: must be one of {', '.join(_ACTIONS)}")
        options = {"use_restricted_actions": retro.Actions[actions.upper()], "render_mode": render_mode, **kwargs}
        try:
            env: gymnasium.Env[Any, Any] = retro.make(game, **options)
        except FileNotFoundError as error:
            raise EnvError(f"--env={env_name}: {_advice(retro, game)}") from error
        return env


def _advice(retro: Any, game: str) -> str:
    known = retro.data.list_games()
    if game in known:
        return f"stable-retro has no ROM of {game}; import yours: python -m stable_retro.import FOLDER"
    near = difflib.get_close_matches(game, known, n=1)
    return f"stable-retro knows no game {game}" + (f"; did you mean {_PREFIX}{near[0]}?" if near else "")


FAMILY = Retro("retro", _PREFIX, ("Airstriker-Genesis-v0",), _DEFAULTS, modules=("stable_retro",), extra="retro")
