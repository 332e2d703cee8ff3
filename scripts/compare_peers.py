"""Side by side with Sample Factory and Stable-Baselines3 on the same environment code, in alternating rounds.

The bench folder holds ``envs.py`` (the environments), ``peer_sf.py`` and ``peer_sb3.py`` (the peers' runners);
the peers folder holds their virtual environments, ``sf`` and ``sb``. Rounds alternate between the systems, so
that a machine whose speed drifts treats all alike; what counts is the ratio of the medians of one call.

    python scripts/compare_peers.py cartpole --bench BENCH --peers PEERS --out docs/performance/cartpole_peers.json
    python scripts/compare_peers.py breakout --bench BENCH --peers PEERS --out docs/performance/breakout_peers.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

RUN_LIMIT_S = 600


@dataclass(frozen=True)
class Workload:
    """Arguments of one environment: ours by name, and each peer's best of the settings tried for it on two cores.

    The network is the same for all, and so is what is normalized: nothing but the advantages and, in Sample Factory,
    its returns (its default).
    """

    ours: Mapping[str, str]
    sample_factory: str
    sb3: str


CARTPOLE = (
    "--env=envs:CartPole --device=cpu --num_workers=2 --rollout=32 --normalize_input=False --normalize_returns=False "
    "--encoder_mlp_layers 64 64 --nonlinearity=tanh --num_envs_per_worker=512 --batch_size=16384"
)
BREAKOUT = (
    "--env=envs:Atari --device=cpu --num_workers=2 --rollout=32 "
    "--normalize_input=False --normalize_returns=False --encoder_conv_architecture=convnet_atari --obs_scale=255 "
    "--nonlinearity=relu --num_envs_per_worker=32 --batch_size=256 --num_batches_per_epoch=4"
)
PEERS = "--use_rnn=False --num_workers=2 --rollout=32 --recurrence=1 --normalize_input=False"
WORKLOADS = {
    "cartpole": Workload(
        ours={"sfactory local": f"{CARTPOLE} --inference=local", "sfactory central": CARTPOLE},
        sample_factory=f"cartpole 1300000 {PEERS} --encoder_mlp_layers 64 64 --num_envs_per_worker=256 "
        "--batch_size=16384",
        sb3="cartpole 1200000 1024 16 16384 mlp dummy",
    ),
    "breakout": Workload(
        ours={"sfactory local": f"{BREAKOUT} --inference=local", "sfactory central": BREAKOUT},
        sample_factory=f"atari_breakout 60000 {PEERS} --encoder_conv_architecture=convnet_atari --obs_scale=255 "
        "--num_envs_per_worker=16 --batch_size=1024",
        sb3="atari_breakout 16000 32 32 1024 cnn dummy",
    ),
}


def _output(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def run_sfactory(flags: str, seconds: float, bench: Path) -> float:
    """Trained env steps per second of sfactory's benchmark mode."""
    benchmark = ["--benchmark=True", f"--benchmark_seconds={seconds}"]
    text = _output([sys.executable, "-m", "sfactory.train", *flags.split(), *benchmark], bench)
    result = next(line for line in text.splitlines() if line.startswith("{"))
    return float(json.loads(result)["env_steps_per_second"])


def run_sample_factory(arguments: str, bench: Path, peers: Path) -> float:
    """Sample Factory's own 10-second figure, its best line (its last line counts start-up in)."""
    text = _output([str(peers / "sf/bin/python"), "peer_sf.py", *arguments.split()], bench)
    rates = [float(rate) for rate in re.findall(r"10 sec: ([0-9.]+)", text)]
    if not rates:
        raise SystemExit(f"Sample Factory printed no rate:\n{text[-2000:]}")
    return max(rates)


def run_sb3(arguments: str, bench: Path, peers: Path) -> float:
    """SB3's rate after a warm-up pass."""
    text = _output([str(peers / "sb/bin/python"), "peer_sb3.py", *arguments.split()], bench)
    return float(re.findall(r"fps=([0-9.]+)", text)[-1])


def main() -> None:
    """Run the rounds, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=tuple(WORKLOADS))
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each of our measurements")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    workload = WORKLOADS[given.workload]
    ours = workload.ours
    systems: dict[str, Callable[[], float]] = {
        name: lambda flags=flags: run_sfactory(flags, given.seconds, given.bench) for name, flags in ours.items()
    }
    systems["Sample Factory 2.1.1"] = lambda: run_sample_factory(workload.sample_factory, given.bench, given.peers)
    systems["SB3"] = lambda: run_sb3(workload.sb3, given.bench, given.peers)
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for round_ in range(given.rounds):
        for name, run in systems.items():
            rates[name].append(run())
            print(f"round {round_ + 1}: {name}: {rates[name][-1]:,.0f} env steps/s", flush=True)

    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max(ours, key=lambda name: medians[name])
    ratios = {name: medians[best] / median for name, median in medians.items() if name not in ours}
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "env_steps_per_second": rates,
        "medians": medians,
        "ratios_of_best": ratios,
        "commands": {
            **ours,
            "Sample Factory 2.1.1": f"peer_sf.py {workload.sample_factory}",
            "SB3": f"peer_sb3.py {workload.sb3}",
        },
    }
    print(json.dumps({"medians": medians, "ratios": ratios}, indent=1))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
