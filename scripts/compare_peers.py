"""Side by side with Sample Factory and Stable-Baselines3 on the same environment code, in alternating rounds.

The bench folder holds ``envs.py`` (the environments), ``peer_sf.py`` and ``peer_sb3.py`` (the peers' runners);
the peers folder holds their virtual environments, ``sf`` and ``sb``. Rounds alternate between the systems, so
that a machine whose speed drifts treats all alike; what counts is the ratio of the medians of one call.

    python scripts/compare_peers.py cartpole --bench BENCH --peers PEERS --out docs/performance/cartpole_peers.json
    python scripts/compare_peers.py cartpole_gru --bench BENCH --peers PEERS --out docs/performance/gru_peers.json
    python scripts/compare_peers.py breakout --bench BENCH --peers PEERS --out docs/performance/breakout_peers.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.measuring import alternating, folder, json_line, machine, medians, run, write_json

SAMPLE_FACTORY, SB3 = "Sample Factory 2.1.1", "SB3"


@dataclass(frozen=True)
class Workload:
    """Arguments of one environment: ours by name, and each peer's best of the settings tried for it on two cores.

    The network is the same for all, and so is what is normalized: nothing but the advantages and, in Sample Factory,
    its returns (its default). ``sb3`` is None where SB3 has nothing like it.
    """

    ours: Mapping[str, str]
    sample_factory: str
    sb3: str | None


CARTPOLE = (
    "--env=envs:CartPole --device=cpu --num_workers=2 --rollout=32 --normalize_input=False --normalize_returns=False "
    "--encoder_mlp_layers 64 64 --nonlinearity=tanh --num_envs_per_worker=512 --batch_size=16384"
)
BREAKOUT = (
    "--env=envs:Atari --device=cpu --num_workers=2 --rollout=32 "
    "--normalize_input=False --normalize_returns=False --encoder_conv_architecture=convnet_atari --obs_scale=255 "
    "--nonlinearity=relu --num_envs_per_worker=32 --batch_size=256 --num_batches_per_epoch=4"
)
_FEED_FORWARD = "--use_rnn=False --recurrence=1"
_GRU = "--use_rnn=True --rnn_size=64"
PEERS = "--num_workers=2 --rollout=32 --normalize_input=False"
_PEERS_CARTPOLE = f"cartpole 1300000 {PEERS} --encoder_mlp_layers 64 64 --num_envs_per_worker=256 --batch_size=16384"


def _ours(flags: str) -> dict[str, str]:
    return {"sfactory local": f"{flags} --inference=local", "sfactory central": flags}


WORKLOADS = {
    "cartpole": Workload(
        ours=_ours(CARTPOLE),
        sample_factory=f"{_PEERS_CARTPOLE} {_FEED_FORWARD}",
        sb3="cartpole 1200000 1024 16 16384 mlp dummy",
    ),
    "cartpole_gru": Workload(
        ours=_ours(f"{CARTPOLE} {_GRU}"),
        sample_factory=f"{_PEERS_CARTPOLE} {_GRU} --rnn_type=gru --recurrence=32",
        sb3=None,
    ),
    "breakout": Workload(
        ours=_ours(BREAKOUT),
        sample_factory=f"atari_breakout 60000 {PEERS} {_FEED_FORWARD} --encoder_conv_architecture=convnet_atari "
        "--obs_scale=255 --num_envs_per_worker=16 --batch_size=1024",
        sb3="atari_breakout 16000 32 32 1024 cnn dummy",
    ),
}


def run_sfactory(flags: str, seconds: float, bench: Path) -> float:
    """Trained env steps per second of sfactory's benchmark mode."""
    benchmark = ["--benchmark=True", f"--benchmark_seconds={seconds}"]
    output = run([sys.executable, "-m", "sfactory.train", *flags.split(), *benchmark], bench)
    return float(json_line(output.stdout)["env_steps_per_second"])


def run_sample_factory(arguments: str, bench: Path, peers: Path) -> float:
    """Sample Factory's own 10-second figure, its best line (its last line counts start-up in)."""
    text = "".join(run([str(peers / "sf/bin/python"), "peer_sf.py", *arguments.split()], bench))
    rates = [float(rate) for rate in re.findall(r"10 sec: ([0-9.]+)", text)]
    if not rates:
        raise SystemExit(f"Sample Factory printed no rate:\n{text[-2000:]}")
    return max(rates)


def run_sb3(arguments: str, bench: Path, peers: Path) -> float:
    """SB3's rate after a warm-up pass."""
    text = "".join(run([str(peers / "sb/bin/python"), "peer_sb3.py", *arguments.split()], bench))
    rates = re.findall(r"fps=([0-9.]+)", text)
    if not rates:
        raise SystemExit(f"SB3 printed no rate:\n{text[-2000:]}")
    return float(rates[-1])


def peers_of(workload: Workload, bench: Path, peers: Path) -> dict[str, tuple[str, Callable[[], float]]]:
    """By name, the command of each peer that can run the workload, and what runs it."""
    found: dict[str, tuple[str, Callable[[], float]]] = {}
    sample_factory, sb3 = workload.sample_factory, workload.sb3
    found[SAMPLE_FACTORY] = f"peer_sf.py {sample_factory}", partial(run_sample_factory, sample_factory, bench, peers)
    if sb3 is not None:
        found[SB3] = f"peer_sb3.py {sb3}", partial(run_sb3, sb3, bench, peers)
    return found


def main() -> None:
    """Run the rounds, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=tuple(WORKLOADS))
    parser.add_argument("--bench", type=folder, required=True)
    parser.add_argument("--peers", type=folder, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each of our measurements")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    workload = WORKLOADS[given.workload]
    ours = workload.ours
    peers = peers_of(workload, given.bench, given.peers)
    systems: dict[str, Callable[[], float]] = {
        name: partial(run_sfactory, flags, given.seconds, given.bench) for name, flags in ours.items()
    }
    systems |= {name: measure for name, (_, measure) in peers.items()}
    rates = alternating(systems, given.rounds, lambda rate: f"{rate:,.0f} env steps/s")

    middle = medians(rates)
    best = max(ours, key=lambda name: middle[name])
    ratios = {name: middle[best] / middle[name] for name in peers}
    result = {
        **machine(),
        "env_steps_per_second": rates,
        "medians": middle,
        "ratios_of_best": ratios,
        "commands": {**ours, **{name: command for name, (command, _) in peers.items()}},
    }
    print(json.dumps({"medians": middle, "ratios": ratios}, indent=1))
    if given.out is not None:
        write_json(given.out, result)


if __name__ == "__main__":
    main()
