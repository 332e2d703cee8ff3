"""MiniGrid and BabyAI: grids of rooms, doors and keys of which the agent sees a part.

Names are Gymnasium's, ``MiniGrid-DoorKey-5x5-v0`` and ``BabyAI-GoToLocal-v0``, with or without ``minigrid:``. The steps
of most tasks are those of rl-baselines3-zoo; the rest is what learned most by kind of task in docs/task_defaults.md,
with a higher rate that falls to 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from .registered import PPO, Rows

if TYPE_CHECKING:
    import gymnasium

_PREFIX = "minigrid:"
_STARTS = ("MiniGrid-", "BabyAI-")

_COMMON: Mapping[str, object] = MappingProxyType(
    {
        **PPO,
        "encoder_mlp_layers": (128, 128),
        "learning_rate": 1e-3,
        "lr_schedule": "linear_decay",
        "exploration_loss_coeff": 0.01,
        "train_for_env_steps": 1_000_000,
    }
)
_NO_MISSION = {"ignore_obs_keys": ("mission",)}
_MEMORY = {"use_rnn": True, "rnn_type": "gru", "rnn_size": 128}
# Random actions seldom open two doors in their order, or find the key of one. Without a bonus for new observations,
# chance decides whether that is learned: two of three seeds had 0 after 1M steps of RedBlueDoors, and of DoorKey-5x5
# two of five had less than 0.5 after 100,000, though once three of three had 0.96.
_BONUS = {"rnd": True, "rnd_coeff": 1.0}
_TWO_DOORS = {**_MEMORY, **_BONUS, "batch_size": 1024, "num_batches_per_epoch": 2}
# What each has of its own.
_OWN: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "MiniGrid-Empty-5x5-v0": {"train_for_env_steps": 50_000},
        "MiniGrid-Empty-8x8-v0": {"train_for_env_steps": 100_000},
        "MiniGrid-Empty-Random-5x5-v0": {"train_for_env_steps": 100_000},
        "MiniGrid-DoorKey-5x5-v0": {**_BONUS, "train_for_env_steps": 100_000},
        "MiniGrid-DoorKey-6x6-v0": _BONUS,
        "MiniGrid-DoorKey-8x8-v0": _BONUS,
        "MiniGrid-DoorKey-16x16-v0": {**_BONUS, "train_for_env_steps": 5_000_000},
        "MiniGrid-Unlock-v0": {"train_for_env_steps": 200_000},
        "MiniGrid-KeyCorridorS3R1-v0": {"train_for_env_steps": 500_000},
        "MiniGrid-LavaGapS5-v0": {"train_for_env_steps": 500_000},
        "MiniGrid-FourRooms-v0": {"train_for_env_steps": 4_000_000},
        "MiniGrid-MultiRoom-N2-S4-v0": {},
        "MiniGrid-RedBlueDoors-6x6-v0": _TWO_DOORS,
        "MiniGrid-RedBlueDoors-8x8-v0": {**_TWO_DOORS, "train_for_env_steps": 5_000_000},
        "MiniGrid-MemoryS7-v0": _MEMORY,
        "MiniGrid-MemoryS9-v0": _MEMORY,
        "MiniGrid-MemoryS11-v0": {**_MEMORY, "train_for_env_steps": 5_000_000},
        "MiniGrid-MemoryS13-v0": {**_MEMORY, "train_for_env_steps": 5_000_000},
        "MiniGrid-MemoryS13Random-v0": {**_MEMORY, "train_for_env_steps": 5_000_000},
        "MiniGrid-MemoryS17Random-v0": {**_MEMORY, "train_for_env_steps": 5_000_000},
        "BabyAI-GoToRedBallGrey-v0": {},
        "BabyAI-GoToRedBall-v0": {},
        "BabyAI-GoToObj-v0": {},
        "BabyAI-GoToLocal-v0": {"train_for_env_steps": 5_000_000},
        "BabyAI-PickupLoc-v0": {"train_for_env_steps": 5_000_000},
    }
)
_ROWS: Rows = MappingProxyType(
    {
        "MiniGrid-Empty-5x5-v0": ("empty",),
        "MiniGrid-DoorKey-5x5-v0": ("doorkey",),
        "MiniGrid-KeyCorridorS3R1-v0": ("keycorridor",),
        "MiniGrid-RedBlueDoors-6x6-v0": ("redbluedoors",),
        "MiniGrid-MemoryS7-v0": ("memory", "memoryless"),
    }
)
# Missions of these say what is to be done; of the others nothing that the agent cannot see, or always the same.
_ASKING = ("MiniGrid-Fetch-", "MiniGrid-GoTo", "MiniGrid-PutNear-", "BabyAI-")


@dataclass(frozen=True)
class MiniGrid:
    """The env family of what the package minigrid registers."""

    name: str = "minigrid"
    extra: str = "minigrid"
    modules: tuple[str, ...] = ("minigrid",)
    prefix: str = _PREFIX
    rows: ClassVar[Rows] = _ROWS

    def names(self) -> Sequence[str]:
        """Those with steps of their own, out of some 170."""
        return tuple(_OWN)

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` begins as the package's ids do."""
        return env_name.removeprefix(_PREFIX).startswith(_STARTS)

    def make(self, env_name: str, *, minigrid_obs: str = "flat", **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The environment with what GridView shows of it. Raises EnvError for an id that is not registered."""
        from sfactory.env.registered import make_gymnasium_env

        env_id = env_name.removeprefix(_PREFIX)
        env = make_gymnasium_env(f"{_PREFIX}{env_id}", env_name, **kwargs)
        from .grid_view import GridView

        return GridView(env, minigrid_obs)

    def defaults(self, env_name: str) -> Mapping[str, object]:
        """Flags with which ``--env=env_name`` alone learns; missions are read where they are needed."""
        env_id = env_name.removeprefix(_PREFIX)
        unread = {} if env_id.startswith(_ASKING) else _NO_MISSION
        return {**_COMMON, **unread, **_OWN.get(env_id, {})}


FAMILY = MiniGrid()
