"""Runs all that needs a GPU, in one command: facts, tests, training, benchmarks.

Each step is a command with a time limit of its own, at which all of its processes are killed. The JSON file is
replaced, atomically, after each step; it also names the steps that no time was left for.

    python scripts/gpu_check.py --out gpu.json --seconds 560
    python scripts/gpu_check.py --out cpu.json --seconds 180 --device=cpu --quick    # tries all steps on a CPU

A bare machine needs Python 3.11 or newer, a torch with CUDA (2.10 or newer), numpy, opencv-python-headless, pyyaml,
threadpoolctl, packaging, protobuf, cloudpickle, psutil, pytest, pytest-timeout and hypothesis; with the versions of
constraints.txt faster-fifo, ale-py, gymnasium, Farama-Notifications, tensorboardX and pytorch_optimizer; and a wheel of
sfactory, whose entry points name the families of environments (pip wheel --no-deps --no-build-isolation .). Python
takes the modules of sfactory itself from the folder above this script.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

# Python adds the folder of a script, not the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.command import ROOT, TRAIN, Command, benchmark, shown
from scripts.record import machine
from sfactory.atomic import replacing
from sfactory.system.cores import Cores

CORES = Cores.available().count
PLAIN = "--rollout=32 --normalize_input=False --normalize_returns=False --num_epochs=1 --with_vtrace=True"
NATURE = "--encoder_conv_architecture=convnet_atari --encoder_conv_mlp_layers 512 --nonlinearity=relu --obs_scale=255"
CENTRAL = "--inference=central"
EAGER, GRAPHS = f"{CENTRAL} --cuda_graphs=False", f"{CENTRAL} --cuda_graphs=True"
FAST = f"{GRAPHS} --amp=auto"
BESIDE = "--num_batches_to_accumulate=2 --shuffle_minibatches=False"  # as it was first measured
BREAKOUT = f"--env=atari_breakout {NATURE} {PLAIN} {BESIDE} --num_batches_per_epoch=1 --num_envs_per_worker=16"
SMALL = "--encoder_mlp_layers 64 64 --nonlinearity=tanh --num_envs_per_worker=256"
FREE = f"--env=sfactory_envs.synthetic.costfree:CostFree {SMALL} {PLAIN}"
CARTPOLE = f"--env=CartPole-v1 --seed=1 {GRAPHS} --with_tensorboard=False"
TESTS = (
    *(f"tests/gpu/test_{name}.py" for name in ("updates", "acting", "runs")),
    "tests/unit/inference",
    "tests/unit/learner",
    "tests/unit/model",
)
QUICK_TESTS = "MLP or replaced or goes_from or new_actions or publishes"
# With --quick numbers are divided by the first, and are at least the second.
SMALLER = {"--batch_size": (32, 128), "--num_envs_per_worker": (4, 4)}
_BOUND_BY = re.compile(r"bound by .*")
_TAIL = 40_000  # characters of a failed step's output
_TEST_S = 100.0  # for one test, so that one that hangs leaves time for others
_SPARE_S = 3.0  # for the end of a step


class Step(NamedTuple):
    """A command. least: seconds without which it is not started. limit: seconds after which it is killed.

    family: benchmarks of one family are compared with its last measurement of pure simulation.
    """

    name: str
    argv: list[str]
    least: float
    limit: float
    family: str = ""


def facts(name: str, device: str) -> Step:
    """A function of gpu_facts.py."""
    return Step(name, [sys.executable, str(ROOT / "scripts" / "gpu_facts.py"), name, device], 5.0, 90.0)


def tests(quick: bool) -> Step:
    """The tests that need a GPU, in one process, each named as it ends: what has hung or was killed is known."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        f"--timeout={_TEST_S:g}",
        "-m",
        "gpu",
        "--durations=15",
        *TESTS,
    ]
    return Step("tests", [*argv, *(("-k", QUICK_TESTS) if quick else ())], 30.0, 240.0)


def train(name: str, device: str, steps: int, experiment: str) -> Step:
    """A training run of CartPole-v1."""
    flags = f"{CARTPOLE} --device={device} --train_for_env_steps={steps} --experiment={experiment}"
    return Step(name, [*TRAIN, *flags.split()], 15.0, 90.0)


def measured(stage: str, name: str, flags: str, family: str = "breakout", seconds: float = 6.0) -> Step:
    """A benchmark with an actor for each core."""
    argv = benchmark([*flags.split(), f"--num_workers={CORES}", "--experiment=measured"], seconds, stage)
    return Step(f"{stage}: {name}", argv, 14.0 + seconds, 50.0 + seconds, family)


def benchmarks() -> list[Step]:
    """Those that say most come first."""
    large, small = f"{BREAKOUT} --batch_size=4096", f"{BREAKOUT} --batch_size=1024"
    resnet = large.replace("convnet_atari", "resnet_impala")
    free, shipped = "free steps", "--env=atari_breakout --num_envs_per_worker=16"
    gru = f"{FREE} --batch_size=8192 --use_rnn=True --rnn_size=128"
    learners = [
        measured("learn", f"Nature CNN, batch {rows}, {dtype}, {how}", f"{flags} {amp} {graphs}", seconds=4.0)
        for rows, flags in (("1,024", small), ("4,096", large))
        for dtype, amp in (("float32", "--amp=off"), ("bfloat16", "--amp=auto"))
        for how, graphs in (("eager", EAGER), ("graphs", GRAPHS))
    ]
    # Pure simulation comes first, so that each family measures it once.
    return [
        measured("env", "Breakout", f"{large} {CENTRAL}"),
        *learners,
        measured("env", "free steps", f"{FREE} {CENTRAL}", free, 2.0),
        measured("full", "free steps, MLP, graphs", f"{FREE} {GRAPHS} --batch_size=32768", free),
        measured("learn", "free steps, GRU, eager", f"{gru} {EAGER}", free, 4.0),
        measured("learn", "free steps, GRU, graphs", f"{gru} {GRAPHS}", free, 4.0),
        measured("full", "Breakout, 4 policies, graphs, bfloat16", f"{large} {FAST} --num_policies=4"),
        measured("sample", "Breakout, Nature CNN, graphs, bfloat16", f"{large} {FAST}"),
        measured("full", "Breakout, flags as shipped", f"{shipped} {CENTRAL}"),
        measured("full", "Breakout, Nature CNN, eager", f"{large} {EAGER}"),
        measured("full", "Breakout, Nature CNN, graphs", f"{large} {GRAPHS}"),
        measured("full", "Breakout, Nature CNN, graphs, bfloat16", f"{large} {FAST}"),
        measured("full", "Breakout, Nature CNN, local inference", f"{large} --inference=local --amp=auto"),
        measured("full", "Breakout, ResNet of IMPALA, graphs, bfloat16", f"{resnet} {FAST}"),
        # Simulation varies from one minute to the next, so shares are of what was measured before and after.
        measured("env", "Breakout, at the end", f"{large} {CENTRAL} --seed=2"),
    ]


def all_steps(device: str, quick: bool) -> list[Step]:
    """In the order in which they run. Of commands that do the same one is enough: on a CPU graphs make no difference,
    and ``quick`` makes sizes equal."""
    sessions = (("cpu", 10_000), (device, 20_000), ("cpu", 30_000))
    compared: dict[tuple[str, ...], Step] = {}
    for step in benchmarks():
        ignored = "--cuda_graphs" if device == "cpu" else "nothing"
        words = map(smaller, step.argv) if quick else step.argv
        compared.setdefault(tuple(word for word in words if not word.startswith(ignored)), step)
    return [
        facts("facts", device),
        tests(quick),
        train("CartPole-v1 is learned", device, 20_000 if quick else 300_000, "learned"),
        *(train(f"resumed on {on} up to {steps:,} steps", on, steps, "resumed") for on, steps in sessions),
        facts("publication", device),
        *compared.values(),
    ]


class Check:
    """Runs steps within ``seconds``, and keeps what they say in the file ``out``."""

    def __init__(self, out: Path, seconds: float, device: str, quick: bool) -> None:
        self._out, self._end, self._device, self._quick = out, time.monotonic() + seconds, device, quick
        self._rates: dict[str, float] = {}  # of pure simulation, by family
        self._result: dict[str, Any] = {"machine": machine(), "device": device, "left_out": [], "steps": []}

    def run(self, steps: list[Step], folder: Path) -> bool:
        """Run all for which there is time; whether all of these succeeded. ``folder``: for runs and outputs."""
        for step in steps:
            left = self._end - time.monotonic() - _SPARE_S
            if left < (5.0 if self._quick else step.least):
                self._result["left_out"].append(step.name)
            else:
                self._result["steps"].append(self._run(step, min(step.limit, left), folder))
            self._write()
        return all(row["exit_code"] == 0 for row in self._result["steps"])

    def _run(self, step: Step, limit: float, folder: Path) -> dict[str, Any]:
        argv = self.completed(step, folder)
        busy: list[str] = []
        environment = {"SFACTORY_GPU_TESTS_ON": "cpu" if self._device == "cpu" else "cuda"}
        with Command(argv, folder, ROOT, environment) as command:
            while command.runs_on(2.0) and time.monotonic() - command.started < limit:
                busy += gpu_use()
            seconds, killed = time.monotonic() - command.started, command.exit_code is None
            if killed:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(command.session, signal.SIGKILL)
            command.runs_on(_SPARE_S)
            row: dict[str, Any] = {
                "name": step.name,
                "exit_code": command.exit_code,
                "killed": killed,
                "seconds": round(seconds, 1),
            }
            row |= {"result": last_json(command.stdout), "gpu": busy, "command": shown(argv)}
            row["bound_by"] = next(iter(_BOUND_BY.findall(command.stderr)), None)
            if command.exit_code or row["result"] is None:
                row |= {"stdout": command.stdout[-_TAIL:], "stderr": command.stderr[-_TAIL:]}
        if "--benchmark_stage=env" in step.argv:
            self._rates[step.family] = (row["result"] or {}).get("env_steps_per_second", 0.0)
        print(f"{step.name}: exit code {row['exit_code']} after {seconds:.1f} s: {row['result']}", flush=True)
        return row

    def completed(self, step: Step, folder: Path) -> list[str]:
        """Its command with what is known only now."""
        argv = list(step.argv)
        if argv[:3] == list(TRAIN):
            argv.append(f"--train_dir={folder}")
            argv += [] if any(word.startswith("--device=") for word in argv) else [f"--device={self._device}"]
            if rate := self._rates.get(step.family):
                argv.append(f"--benchmark_pure_simulation={rate:g}")
            if self._quick:
                passes = [] if any(word.startswith("--num_epochs=") for word in argv) else ["--num_epochs=1"]
                argv = [*map(smaller, argv), *passes]
        return argv

    def _write(self) -> None:
        with replacing(self._out) as file:
            file.write(json.dumps(self._result, indent=1).encode())


def smaller(word: str) -> str:
    """A flag, for a quick try on few cores."""
    name, _, value = word.partition("=")
    if name in SMALLER:
        divisor, least = SMALLER[name]
        return f"{name}={max(least, int(value) // divisor)}"
    return f"{name}=1" if name == "--benchmark_seconds" else word


def gpu_use() -> list[str]:
    """Share of time in which the GPU is busy, and its memory in use; [] without one."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.split("\n")[:1]
    return []


def last_json(text: str) -> dict[str, Any] | None:
    """The last line, if it is a JSON object."""
    with contextlib.suppress(ValueError, IndexError):
        value = json.loads(text.strip().splitlines()[-1])
        return value if isinstance(value, dict) else None
    return None


def main() -> int:
    """Run all steps; the exit code says whether each that was run has succeeded."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--seconds", type=float, default=560.0, help="limit of all steps together")
    parser.add_argument("--device", default="gpu", help="gpu, or cpu to try the script")
    parser.add_argument("--only", default="", help="a regular expression: the steps in whose names it is found")
    parser.add_argument("--quick", action="store_true", help="small batches and short measurements")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check = Check(options.out, options.seconds, options.device, options.quick)
        chosen = [step for step in all_steps(options.device, options.quick) if re.search(options.only, step.name)]
        return 0 if check.run(chosen, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
