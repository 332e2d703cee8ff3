"""Translates what is given as ``--env``: Sample Factory's names of envs, files of modules, ids without a version."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from types import MappingProxyType

from sfactory.config.env_families import find_family, versions_of
from sfactory.config.import_strings import module_of

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
    """The name that makes the env: ``Ant-v5`` for ``mujoco_ant`` and ``Ant``, ``my_envs:Grid`` for ``my_envs.py:Grid``.

    An id without a version gets the highest one that families suggest or else Gymnasium knows, so that it is the same
    env with the same defaults as the full id. A file that does not exist keeps its name, for the error.
    """
    file, colon, name = given.partition(":")
    if colon and file.endswith(".py") and not (module := module_of(file)).startswith("."):
        exists = any(os.path.isfile(os.path.join(folder, file)) for folder in ("", *sys.path))
        return f"{module}:{name}" if exists else given
    return _with_version(GYMNASIUM_IDS.get(given, given))


def _with_version(name: str) -> str:
    if versions := versions_of(name):
        return versions[max(versions)]
    family = find_family(name)
    prefix: str = getattr(family, "prefix", "")
    if prefix and name.startswith(prefix):
        return prefix + _with_version(name.removeprefix(prefix))
    if family is not None or ":" in name or re.search(r"-v\d+$", name):
        return name
    # Imported late: it takes half a second.
    from gymnasium import error
    from gymnasium.envs.registration import find_highest_version, parse_env_id, registry

    try:
        namespace, bare, _ = parse_env_id(name)
    except error.Error:  # a name of no id, which the check of names reports
        return name
    highest = None if name in registry else find_highest_version(namespace, bare)
    return name if highest is None else f"{name}-v{highest}"
