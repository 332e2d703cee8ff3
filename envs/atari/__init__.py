"""Room: Atari 2600 games. In: names such as ``atari_breakout``. Out: environments, and flags to learn them with.

Importing this needs neither the emulator nor OpenCV; only making a game does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sfactory.errors import EnvError

from .games import GAMES, rom_of

if TYPE_CHECKING:
    import gymnasium

_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        # One step of a game is worth a forward pass of the network: moderate numbers of envs keep every core busy.
        "num_workers": 2,
        "num_envs_per_worker": 16,
        "worker_num_splits": 2,
        "rollout": 32,
        "batch_size": 1024,
        "env_frameskip": 4,
        "encoder_conv_architecture": "convnet_atari",
        "encoder_conv_mlp_layers": (512,),
        "nonlinearity": "relu",
        "obs_scale": 255.0,
        "gamma": 0.99,
        # Game scores differ by orders of magnitude: for learning only their sign counts (Mnih et al. 2015).
        "reward_clip": 1.0,
        "learning_rate": 2.5e-4,
        "adam_eps": 1e-5,
        "max_grad_norm": 0.5,
        "exploration_loss_coeff": 0.01,
        "train_for_env_steps": 10_000_000,
    }
)


@dataclass(frozen=True)
class Atari:
    """The env family of the 57 games that agents are usually compared on.

    ``atari_<rom>`` (atari_breakout, atari_montezuma_revenge) and the Gymnasium ids of the same games
    (ALE/Breakout-v5, Breakout-v4, BreakoutDeterministic-v4, BreakoutNoFrameskip-v4) all make the same environment
    with the same defaults: those of ``Preprocessing``, not those that Gymnasium has for the id (ALE/Breakout-v5
    there repeats actions at random, and none of them preprocesses). ``--env_kwargs`` sets every field of
    ``Preprocessing``. Ids of RAM observations (Breakout-ram-v4) are left to Gymnasium.
    """

    name: str = "atari"

    def names(self) -> Sequence[str]:
        """``atari_<rom>`` of every game."""
        return tuple(f"atari_{rom}" for rom in GAMES)

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` is such a name or id."""
        return rom_of(env_name) is not None

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The game, preprocessed. Raises EnvError if ale-py or OpenCV is missing, or an option is out of range."""
        rom = rom_of(env_name)
        if rom is None:
            raise EnvError(f"--env={env_name}: no Atari game of this name; for example --env=atari_breakout")
        try:
            from .preprocessing import AtariEnv, Preprocessing
        except ImportError as error:
            raise EnvError(
                f"--env={env_name}: Atari games need ale-py and OpenCV, and {error.name!r} cannot be imported "
                f"({error}); run: pip install sfactory[atari]"
            ) from error
        options: dict[str, Any] = dict(kwargs)
        render_mode = options.pop("render_mode", None)
        return AtariEnv(rom, Preprocessing(**options), render_mode)

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags with which ``--env=env_name`` alone learns."""
        return _DEFAULTS


FAMILY = Atari()
