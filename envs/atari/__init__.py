"""Makes Atari 2600 games, named ``atari_breakout`` and so on, and gives defaults of flags for them.

Importing this needs neither the emulator nor OpenCV; only making a game does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from sfactory.errors import EnvError

from ..registered import Rows, require_frameskip
from .games import GAMES, lacks_sticky_actions, rom_of

if TYPE_CHECKING:
    import gymnasium

_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "num_workers": 2,
        # Wide enough that one forward pass serves many games, small enough that a dataset is one round of all.
        "num_envs_per_worker": 16,
        "worker_num_splits": 2,
        "rollout": 64,
        # Games are learned from many small updates (Schulman et al. 2017 take 12 of 256 steps for 1024 sampled).
        "batch_size": 256,
        "num_batches_per_epoch": 8,
        "num_epochs": 4,
        "shuffle_minibatches": True,
        # On CPUs as fast as learning beside collection, and a step teaches more: Pong has -20.2 after 0.24 instead of
        # 0.7 million steps.
        "num_batches_to_accumulate": 0,
        # Shorter traces than V-trace's: Breakout scores 10 after 0.7 instead of 0.9 million steps.
        "with_vtrace": False,
        "ppo_clip_ratio": 0.1,
        "env_frameskip": 4,
        # The network of Mnih et al. 2013: on CPUs 1.8 times as fast as that of 2015 (convnet_atari and 512 units).
        "encoder_conv_architecture": "convnet_impala",
        "encoder_conv_mlp_layers": (256,),
        "nonlinearity": "relu",
        # Bytes become numbers from 0 to 1 by a division, and clipped rewards need no further scale.
        "obs_scale": 255.0,
        "normalize_input": False,
        "normalize_returns": False,
        "gamma": 0.99,
        # Game scores differ by orders of magnitude: for learning only their sign counts (Mnih et al. 2015).
        "reward_clip": 1.0,
        "learning_rate": 5e-4,
        "lr_schedule": "linear_decay",
        "adam_eps": 1e-5,
        "max_grad_norm": 1.0,
        "exploration_loss_coeff": 0.01,
        "train_for_env_steps": 10_000_000,
    }
)


@dataclass(frozen=True)
class Atari:
    """The env family of the 57 games that are the usual benchmark.

    ``atari_<rom>`` (atari_breakout, atari_montezuma_revenge) and the Gymnasium ids of the same games
    (ALE/Breakout-v5, Breakout-v4, BreakoutDeterministic-v4, BreakoutNoFrameskip-v4) all make the same environment
    with the same defaults: those of ``Preprocessing``, not those that Gymnasium has for the id (ALE/Breakout-v5
    there repeats actions at random, and none of them preprocesses). ``--env_frameskip`` sets for how many frames an
    action is held, ``--env_kwargs`` every other field of ``Preprocessing``. Ids of RAM observations
    (Breakout-ram-v4) are made by Gymnasium.
    """

    name: str = "atari"
    extra: str = "atari"
    modules: tuple[str, ...] = ("ale_py", "cv2")
    rows: ClassVar[Rows] = MappingProxyType({"atari_breakout": ("breakout", "breakout_2m"), "atari_pong": ("pong",)})
    own_wrappers: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "env_framestack": "framestack",
            "obs_grey": "grayscale",
            "obs_resize": "size",
            "sticky_actions": "repeat_action_probability",
            "max_episode_steps": "max_episode_steps",
        }
    )

    def names(self) -> Sequence[str]:
        """``atari_<rom>`` of every game."""
        return tuple(f"atari_{rom}" for rom in GAMES)

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` is such a name or id."""
        return rom_of(env_name) is not None

    def make(
        self, env_name: str, *, env_frameskip: int = 4, max_episode_steps: int | None = None, **kwargs: object
    ) -> gymnasium.Env[Any, Any]:
        """The game, preprocessed, with actions held for ``env_frameskip`` frames.

        max_episode_steps: a limit in steps beside max_episode_frames. Raises EnvError if an option is out of range or
        contradicts env_frameskip.
        """
        rom = rom_of(env_name)
        if rom is None:
            raise EnvError(f"--env={env_name}: no Atari game of this name; for example --env=atari_breakout")
        from .preprocessing import AtariEnv, Preprocessing

        require_frameskip(env_name, env_frameskip, "frameskip", kwargs)
        options: dict[str, Any] = {"frameskip": env_frameskip, **kwargs}
        render_mode = options.pop("render_mode", None)
        preprocessing = Preprocessing(**options)
        if max_episode_steps is not None:
            frames = min(preprocessing.max_episode_frames, max_episode_steps * env_frameskip)
            preprocessing = dataclasses.replace(preprocessing, max_episode_frames=frames)
        return AtariEnv(rom, preprocessing, render_mode)

    def flag_warnings(self, env_name: str, flags: Mapping[str, object]) -> Sequence[str]:
        """Says that this env has no sticky actions, where those of Gymnasium with its id have."""
        if not lacks_sticky_actions(env_name, flags):
            return ()
        return (
            f"--env={env_name}: made as atari_{rom_of(env_name)}, without the sticky actions (0.25) that Gymnasium has "
            "for this id; --sticky_actions=0.25 has them",
        )

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags with which ``--env=env_name`` alone learns."""
        return _DEFAULTS


FAMILY = Atari()
