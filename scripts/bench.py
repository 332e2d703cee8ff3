"""How fast sfactory is, stage by stage, against pure simulation and against what the machine allows.

In each round every workload is measured once: the environments alone, sampling and full training with both kinds of
inference, learning alone; the model's forward passes and training alone, from which follows a ceiling (see figures.py);
and, with ``--peers``, what compare_peers.py compares with. The bench folder holds plain environments and the peers'
runners; without it the installed environments are measured.

    python scripts/bench.py --out docs/performance/bench.json
    python scripts/bench.py --bench BENCH --peers PEERS --out docs/performance/bench.json
    python scripts/bench.py --workloads cartpole zero_cost --rounds 1 --seconds 5 --out bench.json

The JSON is written anew after each workload of each round. Draw it with scripts/draw_throughput.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts import compare_peers
from scripts.figures import ENV, FORWARD, TRAIN, ceiling_name, summary
from scripts.measuring import ROOT, folder, json_line, machine, run, shown, write_json
from scripts.process_times import ProcessTimes, cores_busy, cpu_us_per_step
from scripts.workloads import INFERENCES, Workload, workloads
from sfactory import train
from sfactory.cores import Cores

CEILINGS = ROOT / "scripts" / "ceilings.py"
_KEPT = ("pure_simulation_steps_per_second", "percent_of_pure_simulation", "busy", "waiting", "bound_by")

Result = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """One command and how to read its result. ``command``: as one would type it."""

    name: str
    command: str
    measure: Callable[[], Result]


@dataclass
class Records:
    """Everything that is known of a workload so far."""

    workload: Workload
    measurements: list[Measurement]
    runs: list[Result] = field(default_factory=list)

    def to_json(self, cores: int, workers: int) -> Result:
        """Figures, commands, and every run."""
        commands = {measurement.name: measurement.command for measurement in self.measurements}
        figures = summary(self.runs, cores, workers)
        return {"about": self.workload.about, **figures, "commands": commands, "runs": self.runs}


def stage(name: str, of_stage: str, arguments: Sequence[str], seconds: float, cwd: Path | None) -> Measurement:
    """sfactory's own benchmark of one stage."""
    benchmark = ["--benchmark=True", f"--benchmark_stage={of_stage}", f"--benchmark_seconds={seconds:g}"]
    command = [sys.executable, "-m", "sfactory.train", *arguments, *benchmark]

    def measure() -> Result:
        times = ProcessTimes()
        output = run(command, cwd, looking=times.look)
        result = json_line(output.stdout)
        rate = result["env_steps_per_second"]
        busy = cores_busy(times.snapshots, seconds)
        kept = {key: result[key] for key in _KEPT}
        return {"env_steps_per_second": rate, **kept, "cpu_us_per_step": cpu_us_per_step(busy, rate)}

    return Measurement(name, shown(command, cwd), measure)


def alone(what: str, threads: int, arguments: Sequence[str], seconds: float, cwd: Path | None) -> Measurement:
    """The model's forward passes or training alone, with so many threads."""
    own = [what, "--threads", str(threads), "--seconds", f"{seconds:g}"]
    command = [sys.executable, str(CEILINGS), *own, "--", *arguments]

    def measure() -> Result:
        # The heap as processes of a run have it; their one native thread is raised to ``threads`` by the script.
        return json_line(run(command, cwd, environment=train._NATIVE).stdout)

    return Measurement(ceiling_name(what, threads), shown(command, cwd), measure)


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    return sorted({1 << power for power in range(cores.bit_length())} | {cores})


def measurements_of(workload: Workload, cores: int, seconds: float, bench: Path | None) -> list[Measurement]:
    """All that is measured of sfactory, in the order of a round."""
    cwd = bench if workload.in_bench else None
    of = {inference: workload.arguments(inference, cores) for inference in INFERENCES}
    local = of["local"]
    return [
        stage(ENV, "env", local, seconds, cwd),
        *(stage(f"sample {name}", "sample", arguments, seconds, cwd) for name, arguments in of.items()),
        stage("learn", "learn", local, seconds, cwd),
        *(stage(f"full {name}", "full", arguments, seconds, cwd) for name, arguments in of.items()),
        *(alone(what, threads, local, seconds, cwd) for what in (FORWARD, TRAIN) for threads in thread_counts(cores)),
    ]


def peers_of(workload: Workload, bench: Path | None, peers: Path | None) -> list[Measurement]:
    """The peers that can run the workload, if they are wanted."""
    if bench is None or peers is None or workload.peers is None:
        return []
    known = compare_peers.peers_of(compare_peers.WORKLOADS[workload.peers], bench, peers)
    return [Measurement(name, command, partial(_rate_alone, measure)) for name, (command, measure) in known.items()]


def _rate_alone(measure: Callable[[], float]) -> Result:
    return {"env_steps_per_second": measure()}


def command_line() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", help="all by default", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each measurement of ours")
    parser.add_argument("--bench", type=folder)
    parser.add_argument("--peers", type=folder)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    known = workloads(given.bench)
    given.workloads = given.workloads or list(known)
    unknown = [name for name in given.workloads if name not in known]
    if unknown:
        parser.error(f"unknown workload {', '.join(unknown)}; there are {', '.join(known)} (some need --bench)")
    if given.peers is not None and given.bench is None:
        parser.error("--peers needs --bench, which holds their runners")
    return given


def main() -> None:
    """Run the rounds, write the JSON after each workload."""
    given = command_line()
    known = workloads(given.bench)
    cores = Cores.available().count
    records: dict[str, Records] = {}
    for name in given.workloads:
        workload = known[name]
        ours = measurements_of(workload, cores, given.seconds, given.bench)
        records[name] = Records(workload, [*ours, *peers_of(workload, given.bench, given.peers)])
    facts = {**machine(), "rounds": given.rounds, "seconds": given.seconds}
    for round_ in range(1, given.rounds + 1):
        for name, record in records.items():
            for measurement in record.measurements:
                result = measurement.measure()
                record.runs.append({"round": round_, "measurement": measurement.name, **result})
                rate = result["env_steps_per_second"]
                print(f"round {round_}: {name}: {measurement.name}: {rate:,.0f} env steps/s", flush=True)
            measured = {key: each.to_json(cores, cores) for key, each in records.items() if each.runs}
            write_json(given.out, {**facts, "workloads": measured})


if __name__ == "__main__":
    main()
