"""Side by side with Sample Factory and Stable-Baselines3 on the same environment code, in alternating rounds.

The bench folder holds ``envs.py`` (the environments), ``peer_sf.py`` and ``peer_sb3.py`` (the peers' runners);
the peers folder holds their virtual environments, ``sf`` and ``sb``. Rounds alternate between the systems, so
that a machine whose speed drifts treats all alike; what counts is the ratio of the medians of one call.

    python scripts/compare_peers.py --bench BENCH --peers PEERS --rounds 3 --out docs/performance/cartpole_peers.json
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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

COMMON = "--env=envs:CartPole --device=cpu --num_workers=2 --rollout=32 --encoder_mlp_layers 64 64 --nonlinearity=tanh"
OURS = {
    "sfactory local": f"{COMMON} --inference=local --num_envs_per_worker=512 --batch_size=16384",
    "sfactory central": f"{COMMON} --num_envs_per_worker=512 --batch_size=16384",
}
# Each peer's best of the settings tried for it on two cores.
SAMPLE_FACTORY = (
    "cartpole 1300000 --use_rnn=False --num_workers=2 --rollout=32 --recurrence=1 --normalize_input=False "
    "--encoder_mlp_layers 64 64 --num_envs_per_worker=256 --batch_size=16384"
)
SB3 = "cartpole 1200000 1024 16 16384 mlp dummy"
RUN_LIMIT_S = 600


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


def run_sample_factory(bench: Path, peers: Path) -> float:
    """Sample Factory's own 10-second figure, its best line (its last line counts start-up in)."""
    text = _output([str(peers / "sf/bin/python"), "peer_sf.py", *SAMPLE_FACTORY.split()], bench)
    rates = [float(rate) for rate in re.findall(r"10 sec: ([0-9.]+)", text)]
    if not rates:
        raise SystemExit(f"Sample Factory printed no rate:\n{text[-2000:]}")
    return max(rates)


def run_sb3(bench: Path, peers: Path) -> float:
    """SB3's rate after a warm-up pass."""
    text = _output([str(peers / "sb/bin/python"), "peer_sb3.py", *SB3.split()], bench)
    return float(re.findall(r"fps=([0-9.]+)", text)[-1])


def main() -> None:
    """Run the rounds, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each of our measurements")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()

    systems: dict[str, Callable[[], float]] = {
        name: lambda flags=flags: run_sfactory(flags, given.seconds, given.bench) for name, flags in OURS.items()
    }
    systems["Sample Factory 2.1.1"] = lambda: run_sample_factory(given.bench, given.peers)
    systems["SB3"] = lambda: run_sb3(given.bench, given.peers)
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for round_ in range(given.rounds):
        for name, run in systems.items():
            rates[name].append(run())
            print(f"round {round_ + 1}: {name}: {rates[name][-1]:,.0f} env steps/s", flush=True)

    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max(OURS, key=lambda name: medians[name])
    ratios = {name: medians[best] / median for name, median in medians.items() if name not in OURS}
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "env_steps_per_second": rates,
        "medians": medians,
        "ratios_of_best": ratios,
        "commands": {**OURS, "Sample Factory 2.1.1": f"peer_sf.py {SAMPLE_FACTORY}", "SB3": f"peer_sb3.py {SB3}"},
    }
    print(json.dumps({"medians": medians, "ratios": ratios}, indent=1))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
