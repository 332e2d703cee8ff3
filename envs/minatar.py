"""MinAtar: five small games with the rules of Atari's, ``MinAtar/Breakout-v1`` (Young & Tian 2019).

Version 1 has the actions that the game knows, version 0 all six.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from .registered import PPO, RegisteredFamily

if TYPE_CHECKING:
    import gymnasium

_GAMES = ("Breakout", "SpaceInvaders", "Asterix", "Freeway", "Seaquest")
# The network of Young & Tian 2019. Many small games step as fast as one forward pass for all of them.
_FLAGS: Mapping[str, object] = {
    **PPO,
    "num_envs_per_worker": 32,
    "batch_size": 512,
    "num_epochs": 4,
    "obs_layout": ("hwc",),
    "encoder_conv_architecture": "convnet_minatar",
    "encoder_conv_mlp_layers": (128,),
    "nonlinearity": "relu",
    "normalize_input": False,
    "learning_rate": 1e-3,
    "lr_schedule": "linear_decay",
    "exploration_loss_coeff": 0.01,
    "train_for_env_steps": 10_000_000,
}


@dataclass(frozen=True)
class MinAtar(RegisteredFamily):
    """The env family of MinAtar's games.

    Observations: [10, 10, C] bool - what is at each place. ``--env_kwargs``: sticky_action_prob, difficulty_ramping,
    and those of gymnasium.make, such as max_episode_steps (there is no limit by default).
    """

    own_wrappers: ClassVar[Mapping[str, str]] = MappingProxyType({"sticky_actions": "sticky_action_prob"})

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The game, repeatable from a seed."""
        from .minatar_game import MinAtarGame

        return MinAtarGame(super().make(env_name, **kwargs))


FAMILY = MinAtar(
    "minatar",
    {f"MinAtar/{game}-{version}": _FLAGS for version in ("v1", "v0") for game in _GAMES},
    modules=("minatar",),
    extra="minatar",
    rows={"MinAtar/Breakout-v1": ("minatar_breakout",), "MinAtar/SpaceInvaders-v1": ("minatar_space_invaders",)},
)
