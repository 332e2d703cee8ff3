"""Makes VizDoom's scenarios, and gives defaults of flags for them.

``doom_basic`` and so on are scenarios of the package vizdoom by the names that Sample Factory gave them; the ids that
the package registers with Gymnasium (``VizdoomBasic-v1``) make the same. ``doom:PATH`` is a scenario of your own, by
the path of its configuration file. All have the same options, see ``Doom.make``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sfactory.errors import EnvError

from .registered import Rows, require_frameskip

if TYPE_CHECKING:
    import gymnasium

_OWN = "doom:"
_IDS: Mapping[str, str] = {
    "doom_basic": "VizdoomBasic-v1",
    "doom_deadly_corridor": "VizdoomDeadlyCorridor-v1",
    "doom_deathmatch": "VizdoomDeathmatch-v1",
    "doom_defend_the_center": "VizdoomDefendCenter-v1",
    "doom_defend_the_line": "VizdoomDefendLine-v1",
    "doom_health_gathering": "VizdoomHealthGathering-v1",
    "doom_health_gathering_supreme": "VizdoomHealthGatheringSupreme-v1",
    "doom_my_way_home": "VizdoomMyWayHome-v1",
    "doom_predict_position": "VizdoomPredictPosition-v1",
    "doom_take_cover": "VizdoomTakeCover-v1",
}
# Sizes in which the game draws, the smallest first, all of them 4:3.
_DRAWN = ((160, 120), (200, 150), (256, 192), (320, 240), (400, 300), (512, 384), (640, 480), (800, 600))

_COMMON: Mapping[str, object] = {
    "num_workers": 2,
    "num_envs_per_worker": 8,
    "worker_num_splits": 2,
    "rollout": 32,
    "batch_size": 256,
    "num_batches_per_epoch": 4,
    "num_epochs": 3,
    "with_vtrace": False,
    "shuffle_minibatches": True,
    "ppo_clip_ratio": 0.1,
    "env_frameskip": 4,
    "encoder_conv_architecture": "convnet_simple",
    "encoder_conv_mlp_layers": (256,),
    "nonlinearity": "relu",
    # Bytes become numbers from 0 to 1, and health and ammunition, which seldom exceed 200, as well.
    "obs_scale": 255.0,
    "normalize_input": False,
    "normalize_returns": True,
    "learning_rate": 3e-4,
    "adam_eps": 1e-5,
    "max_grad_norm": 1.0,
    "exploration_loss_coeff": 0.003,
    "train_for_env_steps": 1_000_000,
}
# Scales bring returns of a scenario near 1; long ways and mazes need a memory.
_MEMORY: Mapping[str, object] = {"use_rnn": True, "rnn_type": "gru", "rnn_size": 256, "shuffle_minibatches": False}
_OWN_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "VizdoomBasic": {"reward_scale": 0.01, "train_for_env_steps": 250_000},
    "VizdoomDeadlyCorridor": {"reward_scale": 0.01, "train_for_env_steps": 10_000_000, **_MEMORY},
    "VizdoomDeathmatch": {"train_for_env_steps": 100_000_000, **_MEMORY},
    "VizdoomHealthGathering": {"reward_scale": 0.01},
    "VizdoomHealthGatheringSupreme": {"reward_scale": 0.01, "train_for_env_steps": 10_000_000, **_MEMORY},
    "VizdoomMyWayHome": {"gamma": 0.995, "train_for_env_steps": 10_000_000, **_MEMORY},
    "VizdoomPredictPosition": {"train_for_env_steps": 5_000_000, **_MEMORY},
    "VizdoomTakeCover": {"reward_scale": 0.01},
}


@dataclass(frozen=True)
class Doom:
    """The env family of VizDoom."""

    name: str = "doom"
    modules: tuple[str, ...] = ("vizdoom",)
    extra: str = "vizdoom"
    # The game is a program with arguments, and reads files with scripts.
    code_kwargs: tuple[str, ...] = ("path", "args", "file")
    rows: ClassVar[Rows] = {"doom_basic": ("doom_basic",), "doom_health_gathering": ("doom_gathering",)}

    def names(self) -> Sequence[str]:
        """Sample Factory's names, and Gymnasium's ids of the same scenarios."""
        return (*_IDS, *_IDS.values())

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` is such a name, any id of the package vizdoom, or a file of one's own."""
        return env_name in _IDS or env_name.startswith(("Vizdoom", _OWN))

    def make(
        self, env_name: str, *, env_frameskip: int = 4, resolution: str = "128x72", **kwargs: object
    ) -> gymnasium.Env[Any, Any]:
        """The scenario, with actions held for ``env_frameskip`` frames and images of ``resolution``, WIDTHxHEIGHT.

        ``kwargs``: those of vizdoom's env, such as max_buttons_pressed, and settings of the game by their names in
        configuration files. Raises EnvError for a file that does not exist, an id that is not registered, a
        resolution that is none, and another frameskip.
        """
        from sfactory.env.registered import make_gymnasium_env

        from .doom_env import DoomEnv

        require_frameskip(env_name, env_frameskip, "frame_skip", kwargs)
        width, height = _size(env_name, resolution)
        columns, rows = next((drawn for drawn in _DRAWN if drawn[0] >= width and drawn[1] >= height), _DRAWN[-1])
        options: dict[str, Any] = {
            "frame_skip": env_frameskip,
            "screen_resolution": f"RES_{columns}X{rows}",
            **kwargs,
            # The game starts in another folder.
            **{name: str(Path(str(value)).absolute()) for name, value in kwargs.items() if _is_file(name, value)},
        }
        own_settings = "doom_config_path" in kwargs
        if env_name.startswith(_OWN):
            from vizdoom.gymnasium_wrapper.base_gymnasium_env import VizdoomEnv

            file = Path(env_name.removeprefix(_OWN))
            if not file.is_file():
                raise EnvError(f"--env={env_name}: there is no file {file.absolute()}; give the path of a .cfg file")
            game = VizdoomEnv(str(file.absolute()), **{"max_buttons_pressed": 1, **options})
            return DoomEnv(game, width, height, own_settings)
        env = make_gymnasium_env(f"vizdoom.gymnasium_wrapper:{_IDS.get(env_name, env_name)}", env_name, **options)
        return DoomEnv(env, width, height, own_settings)

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags with which ``--env=env_name`` alone learns."""
        scenario = _IDS.get(env_name, env_name).partition("-")[0]
        # A notification is text, which no network here reads.
        unread = {"ignore_obs_keys": ("notifications",)} if scenario.endswith("Notifications") else {}
        return {**_COMMON, **_OWN_DEFAULTS.get(scenario, {}), **unread}


def _is_file(name: str, value: object) -> bool:
    return name.lower().endswith("path") and Path(str(value)).is_file()


def _size(env_name: str, resolution: str) -> tuple[int, int]:
    sizes = re.fullmatch(r"(\d+)x(\d+)", str(resolution))
    width, height = map(int, sizes.groups()) if sizes else (0, 0)
    if not (0 < width <= _DRAWN[-1][0] and 0 < height <= _DRAWN[-1][1]):
        most = "x".join(map(str, _DRAWN[-1]))
        raise EnvError(
            f"--env={env_name}: resolution={resolution!r} is no size up to {most}; for example "
            """--env_kwargs='{"resolution": "128x72"}'"""
        )
    return width, height


FAMILY = Doom()
