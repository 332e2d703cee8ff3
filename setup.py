"""Packaging of sfactory. envs/ is installed as ``sfactory_envs``, so that a user's own ``envs`` stays importable."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def read_version() -> str:
    """The version as sfactory/__init__.py states it; read as text, because importing needs the dependencies."""
    text = (ROOT / "sfactory" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('sfactory/__init__.py has no line __version__ = "..."')
    return match.group(1)


# Before 0.10 ale-py came without the games and without Gymnasium 1.
ATARI = ["ale-py>=0.10", "opencv-python-headless"]
# A static ffmpeg, and what Gymnasium's classic control tasks draw with.
VIDEO = ["imageio-ffmpeg>=0.5", "gymnasium[classic-control]"]
# PettingZoo, the particle worlds, which are a package of their own, and what makes pistonball's images small.
PETTINGZOO = ["pettingzoo>=1.25", "mpe2>=1.0", "opencv-python-headless"]
# LAMB and Muon.
OPTIMIZERS = ["pytorch_optimizer>=4.1,<5"]
# What sfactory.export writes.
SAFETENSORS = ["safetensors>=0.5"]
# The policy as a function for other programs; onnxscript translates, and onnxruntime runs it.
ONNX = ["onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"]
# What remote actors and their run send each other messages with.
REMOTE = ["pyzmq>=26"]
# What uploads and downloads policies.
HUB = ["huggingface_hub>=1.0"]
# What sfactory.plot draws with.
PLOT = ["matplotlib"]
# What `make site` builds the pages of docs/ with.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.6", "mkdocstrings[python]>=1"]
# A search by an outside tuner, see scripts/optuna_search.py.
OPTUNA = ["optuna>=4"]
# Before 1.4 Gymnasium's Box2D had to be built, with swig.
BOX2D = ["gymnasium[box2d]>=1.4", "opencv-python-headless"]
MINIGRID = ["minigrid>=3"]
ENV_PACKAGES = ["sfactory_envs", *(f"sfactory_envs.{name}" for name in find_packages("envs"))]

setup(
    name="sfactory",
    version=read_version(),
    description="Fast, dependable reinforcement learning on one machine",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="sfactory contributors",
    license="MIT",
    python_requires=">=3.11",
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Operating System :: MacOS",
        "Operating System :: Microsoft :: Windows",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=[*find_packages(include=["sfactory", "sfactory.*"]), *ENV_PACKAGES],
    package_dir={"sfactory_envs": "envs"},
    package_data={
        "sfactory": ["py.typed", "config/*.json", "cli/starter/*", "results/page.html"],
        "sfactory_envs": ["py.typed"],
    },
    install_requires=[
        "torch>=2.10",
        "numpy>=2",
        "gymnasium>=1.1",
        'faster-fifo>=1.5; sys_platform == "linux"',
        "tensorboardX",
        "threadpoolctl",
        "packaging",
        "pyyaml",
    ],
    extras_require={
        "atari": ATARI,
        "optimizers": OPTIMIZERS,
        "pettingzoo": PETTINGZOO,
        "optuna": OPTUNA,
        "safetensors": SAFETENSORS,
        "onnx": ONNX,
        "hub": HUB,
        "remote": REMOTE,
        "video": VIDEO,
        "plot": PLOT,
        "docs": DOCS,
        "wandb": ["wandb>=0.19"],
        "mlflow": ["mlflow>=2.20"],
        "trackio": ["trackio>=0.40"],
        "envpool": ["envpool>=1.2"],
        "brax": ["brax>=0.14", "jax>=0.5"],
        "mujoco": ["gymnasium[mujoco]"],
        "box2d": BOX2D,
        "minatar": ["minatar>=1.0.15"],
        "minigrid": MINIGRID,
        "vizdoom": ["vizdoom>=1.3"],
        "crafter": ["crafter>=1.8"],
        "highway": ["highway-env>=1.10"],
        # Fetch, Hand and FrankaKitchen fail with later versions of MuJoCo.
        "robotics": ["gymnasium-robotics>=1.4", "mujoco<3.4"],
        # dm-control fails with MuJoCo 4.
        "dm-control": ["shimmy[dm-control]>=2", "mujoco<4"],
        # Before 1.3 nle had no fix_moon_phase.
        "nethack": ["nle>=1.3"],
        # Before 1.0 its module was called retro.
        "retro": ["stable-retro>=1.0", "opencv-python-headless"],
        "dev": [
            *ATARI,
            *BOX2D,
            *MINIGRID,
            *OPTIMIZERS,
            *PETTINGZOO,
            *OPTUNA,
            *SAFETENSORS,
            *ONNX,
            *HUB,
            *REMOTE,
            *VIDEO,
            *PLOT,
            *DOCS,
            "coverage",
            "hypothesis",
            "ipykernel",
            "mypy",
            "nbclient",
            "psutil",
            "pyte",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "types-PyYAML",
            "types-psutil",
        ],
    },
    entry_points={
        "console_scripts": ["sfactory = sfactory.__main__:main"],
        "sfactory.envs": [
            "atari = sfactory_envs.atari:FAMILY",
            "box2d = sfactory_envs.box2d:FAMILY",
            "brax = sfactory_envs.brax:FAMILY",
            "classic_control = sfactory_envs.classic_control:FAMILY",
            "crafter = sfactory_envs.crafter:FAMILY",
            "dm_control = sfactory_envs.imported:DM_CONTROL",
            "dmlab = sfactory_envs.simulators.dmlab:FAMILY",
            "doom = sfactory_envs.doom:FAMILY",
            "envpool = sfactory_envs.vector_envs:ENVPOOL",
            "highway = sfactory_envs.imported:HIGHWAY",
            "isaaclab = sfactory_envs.simulators.isaac:FAMILY",
            "megaverse = sfactory_envs.simulators.megaverse:FAMILY",
            "minatar = sfactory_envs.minatar:FAMILY",
            "minigrid = sfactory_envs.minigrid:FAMILY",
            "mujoco = sfactory_envs.mujoco:FAMILY",
            "nethack = sfactory_envs.nethack:FAMILY",
            "pettingzoo = sfactory_envs.pettingzoo:FAMILY",
            "procgen = sfactory_envs.vector_envs:PROCGEN",
            "retro = sfactory_envs.retro:FAMILY",
            "robotics = sfactory_envs.imported:ROBOTICS",
            "toy_text = sfactory_envs.toy_text:FAMILY",
            "vector = sfactory_envs.vector_envs:VECTOR",
        ],
        "sfactory.observers": [
            "mlflow = sfactory.report.trackers:MlflowTracker",
            "trackio = sfactory.report.trackers:TrackioTracker",
            "wandb = sfactory.report.trackers:WandbTracker",
        ],
        "sfactory.models": ["nethack = sfactory_envs.nethack_encoder:NetHackEncoder"],
    },
)
