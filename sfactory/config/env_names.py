"""Translates what is given as ``--env``: Sample Factory's names of envs, and files of modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

# Gymnasium's ids, by the names of Sample Factory's examples.
GYMNASIUM_IDS: Mapping[str, str] = MappingProxyType(
    {
        "mujoco_ant": "Ant-v5",
        "mujoco_doublependulum": "InvertedDoublePendulum-v5",
        "mujoco_halfcheetah": "HalfCheetah-v5",
        "mujoco_hopper": "Hopper-v5",
        "mujoco_humanoid": "Humanoid-v5",
        "mujoco_pendulum": "InvertedPendulum-v5",
        "mujoco_pusher": "Pusher-v5",
        "mujoco_reacher": "Reacher-v5",
        "mujoco_standup": "HumanoidStandup-v5",
        "mujoco_swimmer": "Swimmer-v5",
        "mujoco_walker": "Walker2d-v5",
    }
)


def env_name_of(given: str) -> str:
    """The name that makes the env: ``Ant-v5`` for ``mujoco_ant``, ``my_envs:Grid`` for ``my_envs.py:Grid``."""
    file, colon, name = given.partition(":")
    if colon and file.endswith(".py"):
        module = os.path.normpath(file.removesuffix(".py")).replace(os.sep, ".")
        return f"{module}:{name}"
    return GYMNASIUM_IDS.get(given, given)
