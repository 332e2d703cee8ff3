"""Commands and rates of the peers, Sample Factory and Stable-Baselines3.

It has no command of its own. The bench folder holds ``peer_sf.py`` and ``peer_sb3.py`` (the peers' runners); the peers
folder holds their virtual environments, ``sf`` and ``sb``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from scripts.command import run

SAMPLE_FACTORY, SB3 = "Sample Factory 2.1.1", "SB3"
SAMPLE_FACTORY_FLAGS = "--num_workers=2 --rollout=32 --normalize_input=False"
FEED_FORWARD = "--use_rnn=False --recurrence=1"

_CARTPOLE = (
    f"cartpole 1300000 {SAMPLE_FACTORY_FLAGS} --encoder_mlp_layers 64 64 --num_envs_per_worker=256 --batch_size=16384"
)


@dataclass(frozen=True)
class Settings:
    """Arguments of the peers' runners: the best of the settings tried for each on two cores.

    The network is the same as ours, and so is what is normalized: nothing but the advantages and, in Sample Factory,
    its returns (its default). ``sb3`` is None where SB3 has nothing like it.
    """

    sample_factory: str
    sb3: str | None


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "cartpole": Settings(
            sample_factory=f"{_CARTPOLE} {FEED_FORWARD}", sb3="cartpole 1200000 1024 16 16384 mlp dummy"
        ),
        "cartpole_gru": Settings(
            sample_factory=f"{_CARTPOLE} --use_rnn=True --rnn_size=64 --rnn_type=gru --recurrence=32", sb3=None
        ),
        "breakout": Settings(
            sample_factory=f"atari_breakout 60000 {SAMPLE_FACTORY_FLAGS} {FEED_FORWARD} "
            "--encoder_conv_architecture=convnet_atari --obs_scale=255 --num_envs_per_worker=16 --batch_size=1024",
            sb3="atari_breakout 16000 32 32 1024 cnn dummy",
        ),
    }
)


@dataclass(frozen=True)
class Peer:
    """A peer on one workload. ``read``: its env steps per second, out of all that it prints."""

    command: list[str]
    read: Callable[[str], float]

    def rate(self, bench: Path) -> float:
        """Run it in the bench folder; env steps per second."""
        return self.read("".join(run(self.command, bench)))


def peers_of(workload: str, peers: Path) -> dict[str, Peer]:
    """By name, the peers that can run the workload, a key of SETTINGS."""
    settings = SETTINGS[workload]
    sample_factory = [str(peers / "sf/bin/python"), "peer_sf.py", *settings.sample_factory.split()]
    found = {SAMPLE_FACTORY: Peer(sample_factory, sample_factory_rate)}
    if settings.sb3 is not None:
        found[SB3] = Peer([str(peers / "sb/bin/python"), "peer_sb3.py", *settings.sb3.split()], sb3_rate)
    return found


def sample_factory_rate(text: str) -> float:
    """Sample Factory's own 10-second figure, its best line (its last line counts start-up in)."""
    rates = [float(rate) for rate in re.findall(r"10 sec: ([0-9.]+)", text)]
    if not rates:
        raise SystemExit(f"error: Sample Factory printed no rate:\n{text[-2000:]}")
    return max(rates)


def sb3_rate(text: str) -> float:
    """SB3's rate after a warm-up pass."""
    rates = re.findall(r"fps=([0-9.]+)", text)
    if not rates:
        raise SystemExit(f"error: SB3 printed no rate:\n{text[-2000:]}")
    return float(rates[-1])
