"""Says what to type in this installation where a package is missing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

# The extra of sfactory that installs a module.
EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        "ale_py": "atari",
        "Box2D": "box2d",
        "cv2": "atari",
        "envpool": "envpool",
        "imageio_ffmpeg": "video",
        "minigrid": "minigrid",
        "mpe2": "pettingzoo",
        "mujoco": "mujoco",
        "pettingzoo": "pettingzoo",
        "pygame": "video",
        "vizdoom": "vizdoom",
    }
)

# What pip calls packages of envs for which there is no extra, by their modules.
_OTHERS: Mapping[str, str] = MappingProxyType({"highway_env": "highway-env", "minatar": "minatar"})
_ROADS = ("exit", "highway", "intersection", "lane-keeping", "merge", "parking", "racetrack", "roundabout", "two-way")
# The module that registers ids with this beginning when it is imported; MinAtar has an entry point for that.
_REGISTERING: Mapping[str, str] = MappingProxyType(
    {
        "BabyAI-": "minigrid",
        "MinAtar/": "minatar",
        "MiniGrid-": "minigrid",
        "Vizdoom": "vizdoom.gymnasium_wrapper",
        **dict.fromkeys((f"{road}-" for road in _ROADS), "highway_env"),
    }
)


def registering_module(env_id: str) -> str:
    """The module that registers an id of a known package; "" for other ids."""
    return next((module for start, module in _REGISTERING.items() if env_id.startswith(start)), "")


def install_command(extra: str) -> str:
    """``pip install`` with this extra: of the folder that sfactory runs from, or of the installed package."""
    folder = _source_folder()
    if folder is None:
        return f"pip install {shlex.quote(f'sfactory[{extra}]')}"
    return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"


def install_advice(module: str) -> str:
    """``; run: pip install ...`` if the package of ``module`` is known, else ""."""
    package = module.partition(".")[0]
    if package in EXTRAS:
        return f"; run: {install_command(EXTRAS[package])}"
    return f"; run: pip install {_OTHERS[package]}" if package in _OTHERS else ""


def env_plugin(namespace: str | None) -> metadata.EntryPoint | None:
    """The function by which an installed package registers its ids, ``namespace/Id``; Gymnasium no longer calls it."""
    return next(iter(metadata.entry_points(group="gymnasium.envs", name=namespace or "")), None)


def missing_module(error: BaseException) -> str:
    """The module that ``error`` did not find; "" if it says something else, such as a library that is missing."""
    return error.name or "" if isinstance(error, ModuleNotFoundError) else ""


def _source_folder() -> Path | None:
    """The folder of an editable installation, or of a checkout that is not installed; None for a wheel."""
    try:
        origin = json.loads(metadata.distribution("sfactory").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return Path(__file__).parents[1]
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path))
