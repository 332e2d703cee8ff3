"""Families of ids that a package registers when it is imported: highway-env, Gymnasium-Robotics, DeepMind Control."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .registered import PPO, RegisteredFamily

if TYPE_CHECKING:
    import gymnasium

Flags = Mapping[str, object]
_NOTHING: Flags = {}


@dataclass(frozen=True)
class ImportedFamily(RegisteredFamily):
    """The env family of all ids with certain beginnings, which the module ``registers`` has registered when imported.

    Names to suggest are those of ``tasks``. common, beginnings: flags of all, and of ids that begin so (the longest
    beginning counts); flags of ``tasks`` come on top.
    """

    registers: str = ""
    code_kwargs: tuple[str, ...] = ()
    common: Flags = field(default_factory=dict)
    beginnings: Mapping[str, Flags] = field(default_factory=dict)

    def matches(self, env_name: str) -> bool:
        """Whether ``env_name`` begins so."""
        return env_name.startswith(tuple(self.beginnings))

    def make(self, env_name: str, **kwargs: object) -> gymnasium.Env[Any, Any]:
        """The environment as the package registers it."""
        importlib.import_module(self.registers)
        return super().make(env_name, **kwargs)

    def defaults(self, env_name: str) -> Flags:
        """Flags with which ``--env=env_name`` alone learns."""
        beginning = max((start for start in self.beginnings if env_name.startswith(start)), key=len)
        return {**self.common, **self.beginnings[beginning], **self.tasks.get(env_name, {})}


# A dataset of 768 steps in 12 minibatches, 10 passes, a short horizon: highway-env's own example with SB3's PPO.
_ROADS: Flags = {
    **PPO,
    "num_envs_per_worker": 4,
    "rollout": 32,
    "batch_size": 64,
    "num_batches_per_epoch": 12,
    "num_epochs": 10,
    "gamma": 0.8,
    "encoder_mlp_layers": (256, 256),
    "exploration_loss_coeff": 0.0,
    "train_for_env_steps": 100_000,
}
# Cars that are steered themselves, for longer than a second or two.
_STEERED: Flags = {"gamma": 0.95, "train_for_env_steps": 500_000}

HIGHWAY = ImportedFamily(
    "highway",
    {
        "highway-fast-v0": {},
        "highway-v0": {},
        "merge-v1": {},
        "roundabout-v1": {},
        "intersection-v0": {},
        "two-way-v0": {},
        "u-turn-v1": {},
        "exit-v1": {},
        "lane-keeping-v0": {},
        "racetrack-v1": {},
        "parking-v0": {},
    },
    modules=("highway_env",),
    extra="highway",
    registers="highway_env",
    code_kwargs=("vehiclestype", "vehicletype", "classpath"),  # module.Class, which is imported
    common=_ROADS,
    beginnings={
        **dict.fromkeys(
            ("highway-", "merge-", "roundabout-", "intersection-", "two-way-", "u-turn-", "exit-"), _NOTHING
        ),
        **dict.fromkeys(("intersection-v1", "lane-keeping-", "racetrack-", "parking-"), _STEERED),
    },
)

_CONTINUOUS: Flags = {
    **PPO,
    "encoder_mlp_layers": (256, 256),
    "exploration_loss_coeff": 0.0,
    "lr_schedule": "linear_decay",
    "train_for_env_steps": 5_000_000,
}

ROBOTICS = ImportedFamily(
    "robotics",
    {
        "FetchReachDense-v4": {"train_for_env_steps": 500_000},
        "FetchReach-v4": {"train_for_env_steps": 1_000_000},
        "FetchPushDense-v4": {},
        "FetchSlideDense-v4": {},
        "FetchPickAndPlaceDense-v4": {},
        "HandReachDense-v3": {},
        "HandManipulateBlockRotateZDense-v1": {},
        "PointMaze_UMazeDense-v3": {"train_for_env_steps": 1_000_000},
        "PointMaze_UMaze-v3": {"train_for_env_steps": 1_000_000},
        "AntMaze_UMazeDense-v5": {},
        "AdroitHandDoor-v1": {},
        "AdroitHandPen-v1": {},
        "FrankaKitchen-v1": {},
    },
    modules=("gymnasium_robotics",),
    extra="robotics",
    registers="gymnasium_robotics",
    common=_CONTINUOUS,
    beginnings={
        # Episodes are 50 to 100 steps long.
        "Fetch": {"gamma": 0.95},
        "Hand": {"gamma": 0.98},
        **dict.fromkeys(("AntMaze_", "PointMaze_", "AdroitHand", "FrankaKitchen-"), _NOTHING),
    },
)

DM_CONTROL = ImportedFamily(
    "dm_control",
    {
        f"dm_control/{task}-v0": {}
        for task in (
            "acrobot-swingup",
            "ball_in_cup-catch",
            "cartpole-balance",
            "cartpole-swingup",
            "cheetah-run",
            "finger-spin",
            "fish-swim",
            "hopper-hop",
            "hopper-stand",
            "humanoid-walk",
            "manipulator-bring_ball",
            "pendulum-swingup",
            "point_mass-easy",
            "quadruped-walk",
            "reacher-easy",
            "swimmer-swimmer6",
            "walker-walk",
        )
    },
    modules=("shimmy", "dm_control"),
    extra="dm-control",
    registers="shimmy",
    common=_CONTINUOUS,
    # A step pays at most 1 of the 1000 of an episode.
    beginnings={"dm_control/": {"gamma": 0.99}},
)
