"""Measures the speed of sfactory stage by stage, against pure simulation and the limit of the machine.

In each round every workload is measured once: the environments alone, sampling and full training with both kinds of
inference, learning alone; the model's forward passes and training alone, from which follows a ceiling (see figures.py);
and, with ``--peers``, what compare_peers.py compares with. The bench folder holds plain environments and the peers'
runners; without it the installed environments are measured.

    python scripts/bench.py --out docs/performance/bench.json
    python scripts/bench.py --bench BENCH --peers PEERS --out docs/performance/bench.json
    python scripts/bench.py --workloads cartpole zero_cost --rounds 1 --seconds 5 --out bench.json
    python scripts/bench.py --workloads cartpole_envpool --only "sample local" "sample central" --out bench.json
    python scripts/bench.py --families --rounds 3 --seconds 20 --out docs/performance/families.json
    python scripts/bench.py --summarise docs/performance/bench.json    # measures nothing
    python scripts/bench.py --summarise one.json other.json --out both.json

The JSON is written again after each workload of each round, and holds every run, so that all else in it can be computed
from these, and from those of several files together. Draw it with scripts/draw_throughput.py. With ``--families``, an
env of each family of environments is measured with the family's own flags, and one table has them all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

# Python adds the folder of a script, not the one above it.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from scripts.bench_files import families_text, joined, report_text, summarised
from scripts.command import ROOT, benchmark, folder, json_line, run, shown
from scripts.figures import ENV, FORWARD, FULLS, LEARN, SAMPLES, TRAIN, ceiling_name
from scripts.peers import Peer, peers_of
from scripts.process_facts import ProcessTimes, cores_busy, cpu_us_per_step
from scripts.record import machine, write_json
from scripts.workloads import INFERENCES, Workload, of_families, workloads
from sfactory.system.cores import NATIVE, Cores

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
    """All results of a workload so far."""

    workload: Workload
    measurements: list[Measurement]
    runs: list[Result] = field(default_factory=list)

    def to_json(self, cores: int) -> Result:
        """Figures, commands, and every run, on a machine of so many cores."""
        commands = {measurement.name: measurement.command for measurement in self.measurements}
        return summarised({"about": self.workload.about, "commands": commands, "runs": self.runs}, cores)


def stage(name: str, of_stage: str, arguments: Sequence[str], seconds: float, cwd: Path | None) -> Measurement:
    """sfactory's own benchmark of one stage."""
    command = benchmark(arguments, seconds, of_stage)

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
        return json_line(run(command, cwd, environment=NATIVE).stdout)

    return Measurement(ceiling_name(what, threads), shown(command, cwd), measure)


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    return sorted({1 << power for power in range(cores.bit_length())} | {cores})


def measurements_of(workload: Workload, cores: int, seconds: float, bench: Path | None) -> list[Measurement]:
    """The measurements of sfactory, in the order of a round."""
    cwd = bench if workload.in_bench else None
    of = {inference: workload.arguments(inference, cores) for inference in INFERENCES}
    local = of["local"]
    return [
        stage(ENV, "env", local, seconds, cwd),
        *(stage(f"sample {name}", "sample", arguments, seconds, cwd) for name, arguments in of.items()),
        stage(LEARN, "learn", local, seconds, cwd),
        *(stage(f"full {name}", "full", arguments, seconds, cwd) for name, arguments in of.items()),
        *(alone(what, threads, local, seconds, cwd) for what in (FORWARD, TRAIN) for threads in thread_counts(cores)),
    ]


def measurements_of_peers(workload: Workload, bench: Path | None, peers: Path | None) -> list[Measurement]:
    """The peers that can run the workload, if they are wanted."""
    if bench is None or peers is None or workload.peers is None:
        return []
    found = peers_of(workload.peers, peers)
    return [
        Measurement(name, shown(peer.command, bench, peers), partial(_rate_alone, peer, bench))
        for name, peer in found.items()
    ]


def _rate_alone(peer: Peer, bench: Path) -> Result:
    return {"env_steps_per_second": peer.rate(bench)}


def chosen(measurements: list[Measurement], only: Sequence[str] | None) -> list[Measurement]:
    """The named ones, or all; exits if a name is unknown."""
    names = [measurement.name for measurement in measurements]
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise SystemExit(f"--only: unknown measurement {', '.join(unknown)}; there are {', '.join(names)}")
    return [measurement for measurement in measurements if not only or measurement.name in only]


def command_line() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", help="all by default", metavar="NAME")
    parser.add_argument("--families", action="store_true", help="an env of each family, sampled and trained")
    parser.add_argument("--only", nargs="+", help="measure these alone, of each workload", metavar="MEASUREMENT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each measurement of ours")
    parser.add_argument("--bench", type=folder)
    parser.add_argument("--peers", type=folder)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--summarise", type=Path, nargs="+", metavar="FILE", help="compute figures again from the runs of these files"
    )
    given = parser.parse_args()
    if given.out is None and len(given.summarise or ()) == 1:
        given.out = given.summarise[0]
    if given.out is None:
        parser.error("--out is needed, unless one file is summarised")
    known = _known(given)
    if given.families:
        given.only = given.only or [ENV, *SAMPLES, *FULLS]
    given.workloads = given.workloads or list(known)
    unknown = [name for name in given.workloads if name not in known]
    if unknown:
        parser.error(f"unknown workload {', '.join(unknown)}; there are {', '.join(known)} (some need --bench)")
    if given.peers is not None and given.bench is None:
        parser.error("--peers needs --bench, which holds their runners")
    return given


def _known(given: argparse.Namespace) -> dict[str, Workload]:
    return of_families() if given.families else workloads(given.bench)


def measured(given: argparse.Namespace) -> Result:
    """Run the rounds, write the JSON after each workload; what it holds in the end."""
    known = _known(given)
    cores = Cores.available().count
    records: dict[str, Records] = {}
    for name in given.workloads:
        workload = known[name]
        ours = measurements_of(workload, cores, given.seconds, given.bench)
        all_of_it = [*ours, *measurements_of_peers(workload, given.bench, given.peers)]
        records[name] = Records(workload, chosen(all_of_it, given.only))
    facts = {**machine(), "rounds": given.rounds, "seconds": given.seconds}
    result: Result = {}
    for round_ in range(1, given.rounds + 1):
        for name, record in records.items():
            for measurement in record.measurements:
                try:
                    found = measurement.measure()
                except SystemExit as failure:
                    if not given.families or not isinstance(failure.code, str):
                        raise
                    print(f"round {round_}: {name}: {measurement.name}: {failure.code}", flush=True)
                    continue  # the other families are measured all the same
                record.runs.append({"round": round_, "measurement": measurement.name, **found})
                rate = found["env_steps_per_second"]
                print(f"round {round_}: {name}: {measurement.name}: {rate:,.0f} env steps/s", flush=True)
            result = {**facts, "workloads": {key: each.to_json(cores) for key, each in records.items() if each.runs}}
            write_json(given.out, result)
    return result


def main() -> None:
    """Measure or read files; write the JSON and print a summary."""
    given = command_line()
    if given.summarise is None:
        result = measured(given)
    else:
        result = joined([json.loads(file.read_text()) for file in given.summarise])
        write_json(given.out, result)
    if given.families:
        print(families_text(result["workloads"], result["cores"]))
    else:
        print("\n\n".join(report_text(name, workload) for name, workload in result["workloads"].items()))


if __name__ == "__main__":
    main()
