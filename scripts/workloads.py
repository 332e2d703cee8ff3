"""Flags of the workloads: each has an environment, a network and sizes that suit them.

It has no command of its own. Everything that a family of environments would set by itself and that matters for speed
is given, so that the same flags mean the same with every environment; but workloads of FAMILIES have a family's flags.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sfactory.config.env_families import find_family, lack_of_family

INFERENCES = ("local", "central")

PLAIN = "--device=cpu --rollout=32 --normalize_input=False --normalize_returns=False"
SMALL = "--encoder_mlp_layers 64 64 --nonlinearity=tanh"
WIDE = "--num_envs_per_worker=512 --batch_size=16384"
CART_POLE_IN_BENCH = "--env=envs:CartPole"

_COMMON = f"{PLAIN} --num_epochs=1 --with_vtrace=True --worker_num_splits=2"
_ONE_BATCH = "--num_batches_per_epoch=1"
_SMALL_RELU = SMALL.replace("tanh", "relu")
_NATURE = (
    "--encoder_conv_architecture=convnet_atari --encoder_conv_mlp_layers 512 --nonlinearity=relu --obs_scale=255 "
    "--num_envs_per_worker=32 --batch_size=256 --num_batches_per_epoch=4"
)
_BESIDE = "--num_batches_to_accumulate=2 --shuffle_minibatches=False"  # as it was first measured
_WIDEST = "--num_envs_per_worker=8192 --batch_size=262144"
_MEMORY = "--use_rnn=True --rnn_size=64"
_ZERO_COST = "--env=sfactory_envs.synthetic.costfree:CostFree"
_PIXELS = '--env_kwargs={"obs_shape":[4,84,84],"obs_dtype":"uint8"}'
# An env of each family, and of parts of families with envs of another kind.
FAMILIES: Mapping[str, str] = {
    "atari": "atari_breakout",
    "box2d": "LunarLander-v3",
    "box2d, images": "CarRacing-v3",
    "classic_control": "CartPole-v1",
    "crafter": "crafter_reward",
    "dm_control": "dm_control/cheetah-run-v0",
    "doom": "doom_basic",
    "envpool": "envpool:HalfCheetah-v5",
    "highway": "highway-fast-v0",
    "minatar": "MinAtar/Breakout-v1",
    "minigrid": "MiniGrid-DoorKey-5x5-v0",
    "minigrid, BabyAI": "BabyAI-GoToLocal-v0",
    "mujoco": "HalfCheetah-v5",
    "nethack": "NetHackScore-v0",
    "pettingzoo": "pettingzoo:mpe2.simple_spread_v3",
    "pettingzoo, in turn": "pettingzoo:classic.connect_four_v3",
    "procgen": "envpool:CoinrunEasy-v0",
    "retro": "retro:Airstriker-Genesis-v0",
    "robotics": "FetchReachDense-v4",
    "toy_text": "FrozenLake-v1",
    "vector": "vector:CartPole-v1",
}
# 128 envs in each split: local inference has one, central inference two.
_SPLITS_OF_128 = {"local": "--num_envs_per_worker=128", "central": "--num_envs_per_worker=256"}


@dataclass(frozen=True)
class Workload:
    """Flags without those of the layout. ``peers``: what peers.py calls it, if peers can run it, too.

    common: flags of all workloads but those of families.
    """

    about: str
    flags: str
    of_inference: Mapping[str, str] = field(default_factory=dict)
    peers: str | None = None
    in_bench: bool = False  # its env lies in the bench folder
    common: str = _COMMON

    def arguments(self, inference: str, workers: int) -> list[str]:
        """All flags for one kind of inference with so many actors."""
        layout = f"--num_workers={workers} --inference={inference} {self.of_inference.get(inference, '')}"
        return [*self.flags.split(), *self.common.split(), *layout.split()]


def workloads(bench: Path | None) -> dict[str, Workload]:
    """All workloads (EnvPool's where that is installed); with the bench folder, on the environments of the peers."""
    plain = bench is not None
    pole = CART_POLE_IN_BENCH if plain else "--env=CartPole-v1"
    breakout = "--env=envs:Atari" if plain else f"--env=atari_breakout {_BESIDE}"
    known = {
        "cartpole": Workload("CartPole-v1, MLP 64x64", f"--env=CartPole-v1 {SMALL} {_ONE_BATCH} {WIDE}"),
        "breakout": Workload("Breakout, Nature CNN", f"{breakout} {_NATURE}", peers="breakout", in_bench=plain),
        "breakout_bf16": Workload(
            "Breakout, Nature CNN in bfloat16", f"{breakout} {_NATURE} --amp=bf16", in_bench=plain
        ),
        "recurrent": Workload(
            "CartPole, MLP 64x64 and GRU 64",
            f"{pole} {SMALL} {_MEMORY} {_ONE_BATCH} {WIDE}",
            peers="cartpole_gru",
            in_bench=plain,
        ),
        "zero_cost": Workload(
            "steps for nothing, MLP 64x64",
            f"{_ZERO_COST} {SMALL} {_ONE_BATCH} --batch_size=8192",
            _SPLITS_OF_128,
        ),
        "breakout_vector": Workload(
            "Breakout by ale-py's vector env", f"--env=vector:ALE/Breakout-v5 {_NATURE} {_BESIDE}"
        ),
        "zero_cost_pixels": Workload("images for nothing, Nature CNN", f"{_ZERO_COST} {_PIXELS} {_NATURE}"),
    }
    if importlib.util.find_spec("envpool") is not None:
        known["cartpole_envpool"] = Workload(
            "CartPole by EnvPool, MLP 64x64 with ReLU",
            f"--env=envpool:CartPole-v1 {_SMALL_RELU} {_ONE_BATCH} {_WIDEST}",
        )
    if plain:
        about = "cart and pole in plain floats, MLP 64x64"
        flags = f"{pole} {SMALL} {_ONE_BATCH} {WIDE}"
        known["cartpole_plain"] = Workload(about, flags, peers="cartpole", in_bench=True)
    return known


def of_families() -> dict[str, Workload]:
    """The workloads of FAMILIES for which nothing is missing here."""
    families = {name: find_family(env) for name, env in FAMILIES.items()}
    return {
        name: Workload(FAMILIES[name], f"--env={FAMILIES[name]} --device=cpu", common="")
        for name, family in families.items()
        if family is not None and not lack_of_family(family)
    }


def compared_with_peers(name: str, bench: Path) -> Workload:
    """The workload that peers.py calls ``name``."""
    return next(workload for workload in workloads(bench).values() if workload.peers == name)
