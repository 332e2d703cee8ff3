"""Watches a long run: a JSON of samples, a verdict and an exit code.

    python scripts/soak.py --minutes 30 --out docs/performance/soak.json
    python scripts/soak.py --minutes 30 --out central.json -- --inference=central

Flags after ``--`` go to the run, in place of the default ones of that name; with an ``--env`` among them, its own
defaults hold. Sixths of the training time are compared: the throughput of the last with that of the first, without the
warm-up, and memory, open files and threads of the last with those of the second, after the growth of the start. Exits
with 1 and the reason if the run has become slower or bigger, or left processes or shared memory.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this may be started as a file and imported as a module
from scripts.command import ROOT, TRAIN, Command, split_flags
from scripts.process_facts import Facts, facts_by_name, shm_left_since, shm_names, shm_used_mb, total
from scripts.record import machine

EVERY_S = 10.0
WARMUP_S = 20.0
LEAST_THROUGHPUT = 0.95
MOST_GROWTH = 0.02
START_AND_END_S = 180.0
RUN = {
    "env": "CartPole-v1",
    "device": "cpu",
    "inference": "local",
    "num_workers": "2",
    "num_envs_per_worker": "256",
    "rollout": "32",
    "batch_size": "16384",
    "encoder_mlp_layers": "64 64",
}
# No end but the clock's, and a row every second. The file of TensorBoard is opened when it is first written to, which
# must not be later than the second sixth of a short run.
ALWAYS = {
    "train_for_env_steps": "1000000000000",
    "experiment_summaries_interval": "1",
    "flush_summaries_interval": "5",
}
OWN = ("train_dir", "experiment", "train_for_seconds")


@dataclass(frozen=True)
class Sample:
    """The run at one moment: where training stood in the latest row of its metrics, and what its processes took."""

    at_s: float
    train_seconds: float
    env_steps: int
    shm_mb: float
    shm_names: int
    processes: Mapping[str, Facts]


@dataclass(frozen=True)
class Ending:
    """How the run ended, and the processes and shared memory that it left."""

    exit_code: int
    left_processes: tuple[str, ...] = ()
    left_shm: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """Problems, one text each."""
        found = [
            (self.exit_code != 0, f"the run ended with exit code {self.exit_code}"),
            (bool(self.left_processes), f"processes are left: {', '.join(self.left_processes)}"),
            (bool(self.left_shm), f"shared memory is left in /dev/shm: {', '.join(self.left_shm)}"),
        ]
        return [text for wrong, text in found if wrong]


@dataclass(frozen=True)
class Comparison:
    """Sixths of the run. Growth of memory is a share, growth of files and threads a number.

    Cores are those that the run used: if they differ, other programs were busy, and rates cannot be compared.
    """

    first_rate: float
    last_rate: float
    throughput_ratio: float
    first_cores: float
    last_cores: float
    second_pss_mb: float
    last_pss_mb: float
    memory_growth: float
    private_memory_growth: float
    open_files_growth: float
    threads_growth: float

    def problems(self) -> list[str]:
        """Problems, one text each."""
        least, most = LEAST_THROUGHPUT, MOST_GROWTH
        found = [
            (
                self.throughput_ratio < least,
                f"throughput fell to {self.throughput_ratio:.1%} of that at the start, at least {least:.0%} is wanted",
            ),
            (self.memory_growth >= most, f"memory grew by {self.memory_growth:.2%}, less than {most:.0%} is wanted"),
            (self.open_files_growth > 0, f"there are {self.open_files_growth:g} more open files than at the start"),
            (self.threads_growth > 0, f"there are {self.threads_growth:g} more threads than at the start"),
        ]
        return [text for wrong, text in found if wrong]


def run_flags(given: Sequence[str]) -> list[str]:
    """The flags of the run: those given, and the default ones that they do not replace."""
    names = {token[2:].partition("=")[0].replace("-", "_") for token in given if token.startswith("--")}
    for name in OWN:
        if name in names:
            raise SystemExit(f"--{name} is given to the run by this script: leave it out")
    defaults = ALWAYS if "env" in names else RUN | ALWAYS
    return [*(f"--{name}={value}" for name, value in defaults.items() if name not in names), *given]


def latest_row(metrics: Path) -> tuple[float, int]:
    """Training seconds and env steps in the last whole row of a metrics.jsonl; zeros if there is none."""
    try:
        rows = metrics.read_bytes()[-65536:].split(b"\n")
    except OSError:
        return 0.0, 0
    if len(rows) < 2:
        return 0.0, 0
    row = json.loads(rows[-2])  # what follows the last end of a line is a row that is being written, or nothing
    return float(row.get("perf/train_seconds") or 0.0), int(row["env_steps"])


def watch(run: Command, metrics: Path, every_s: float, limit_s: float) -> list[Sample]:
    """Sample the run until it ends."""
    samples: list[Sample] = []
    shm_before = shm_names()
    while run.exit_code is None:
        at_s = time.monotonic() - run.started
        if at_s > limit_s:
            raise run.failure(f"should have ended, but still runs after {at_s:.0f} s")
        if at_s < every_s * len(samples):
            time.sleep(0.05)
            continue
        train_seconds, env_steps = latest_row(metrics)
        new_names = len(shm_names() - shm_before)
        processes = facts_by_name(run.living())
        samples.append(Sample(round(at_s, 2), round(train_seconds, 3), env_steps, shm_used_mb(), new_names, processes))
    return samples


def whole(samples: Sequence[Sample]) -> list[Sample]:
    """The samples in which none of the processes is missing that the run had halfway: neither start nor end."""
    if not samples:
        return []
    wanted = samples[len(samples) // 2].processes.keys()
    return [sample for sample in samples if wanted <= sample.processes.keys()]


def window(samples: Sequence[Sample], begin_s: float, end_s: float) -> list[Sample]:
    """The samples from ``begin_s`` to ``end_s`` of training. Ends the program if there are fewer than two."""
    found = [sample for sample in samples if begin_s <= sample.train_seconds <= end_s]
    if len(found) < 2:
        raise SystemExit(f"{len(found)} samples from {begin_s:.0f} s to {end_s:.0f} s of training: that tells nothing")
    return found


def rate(samples: Sequence[Sample]) -> float:
    """Env steps per second of training from the first to the last of the samples."""
    first, last = samples[0], samples[-1]
    return (last.env_steps - first.env_steps) / (last.train_seconds - first.train_seconds)


def cores(samples: Sequence[Sample]) -> float:
    """CPU seconds per second from the first to the last of the samples, over processes that are in both."""
    first, last = samples[0].processes, samples[-1].processes
    cpu_s = sum(last[name].cpu_s - first[name].cpu_s for name in first.keys() & last.keys())
    return cpu_s / (samples[-1].at_s - samples[0].at_s)


def mean(samples: Sequence[Sample], field: str) -> float:
    """The mean over samples of the sum over processes."""
    return statistics.fmean(total(sample.processes, field) for sample in samples)


def median(samples: Sequence[Sample], field: str) -> float:
    """The median over samples of the sum over processes, so that short-lived files do not count."""
    return statistics.median(total(sample.processes, field) for sample in samples)


def compare(samples: Sequence[Sample], training_s: float) -> Comparison:
    """Compare the sixths of ``training_s`` seconds."""
    sixth = training_s / 6
    samples = whole(samples)
    first = window(samples, min(WARMUP_S, sixth / 2), sixth)
    second = window(samples, sixth, 2 * sixth)
    last = window(samples, 5 * sixth, training_s)
    pss = mean(second, "pss_mb"), mean(last, "pss_mb")
    return Comparison(
        first_rate=round(rate(first), 1),
        last_rate=round(rate(last), 1),
        throughput_ratio=round(rate(last) / rate(first), 4),
        first_cores=round(cores(first), 2),
        last_cores=round(cores(last), 2),
        second_pss_mb=round(pss[0], 2),
        last_pss_mb=round(pss[1], 2),
        memory_growth=round(pss[1] / pss[0] - 1, 5),
        private_memory_growth=round(mean(last, "private_mb") / mean(second, "private_mb") - 1, 5),
        open_files_growth=median(last, "open_files") - median(second, "open_files"),
        threads_growth=median(last, "threads") - median(second, "threads"),
    )


def document(facts: Mapping[str, object], samples: Sequence[Sample]) -> str:
    """JSON with one line for each fact and each sample."""
    columns = [field.name for field in fields(Facts)]
    rows = [
        {
            **{field.name: getattr(sample, field.name) for field in fields(Sample)},
            "processes": {name: astuple(process) for name, process in sample.processes.items()},
        }
        for sample in samples
    ]
    head = [f'"{name}": {json.dumps(value)}' for name, value in {**facts, "columns_of_a_process": columns}.items()]
    body = ",\n  ".join(json.dumps(row) for row in rows)
    return "{\n " + ",\n ".join(head) + ',\n "samples": [\n  ' + body + "\n ]\n}\n"


def soak(minutes: float, flags: Sequence[str]) -> tuple[list[Sample], Ending]:
    """Run and watch."""
    training_s = 60 * minutes
    shm_before = shm_names()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        own = [f"--train_dir={folder}", "--experiment=soak", f"--train_for_seconds={training_s:g}"]
        with Command([*TRAIN, *flags, *own], folder, ROOT) as run:
            every_s = min(EVERY_S, training_s / 30)
            samples = watch(run, folder / "soak" / "metrics.jsonl", every_s, training_s + START_AND_END_S)
            exit_code = run.wait(0)
            left = run.left_over()
            if exit_code:
                print(run.stderr[-2000:], file=sys.stderr)
    return samples, Ending(exit_code, tuple(left), tuple(shm_left_since(shm_before)))


def report_text(minutes: float, found: Comparison) -> str:
    """The comparison in words."""
    return (
        f"{minutes:g} minutes: {found.first_rate:,.0f} env steps/s at the start, {found.last_rate:,.0f} at the end "
        f"({found.throughput_ratio:.1%}), on {found.first_cores:g} and {found.last_cores:g} cores; memory "
        f"{found.second_pss_mb:,.0f} MB, then {found.last_pss_mb:,.0f} MB ({found.memory_growth:+.2%}); open files "
        f"{found.open_files_growth:+g}, threads {found.threads_growth:+g}"
    )


def main() -> int:
    """Read the command line, soak, write the JSON and say how it went."""
    own, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of training")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/performance/soak.json")
    given = parser.parse_args(own)

    flags = run_flags(flags)
    samples, ending = soak(given.minutes, flags)
    command = f"python -m sfactory.train {shlex.join(flags)} --train_for_seconds={60 * given.minutes:g}"
    facts: dict[str, object] = {**machine(), "command": command, **asdict(ending)}
    problems = ending.problems()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(document({**facts, "problems": problems}, samples))  # whatever they may be judged to be
    if not ending.exit_code:  # sixths of a run that was cut short would not be those that are meant
        comparison = compare(samples, 60 * given.minutes)
        facts |= asdict(comparison)
        problems += comparison.problems()
        print(report_text(given.minutes, comparison))
        given.out.write_text(document({**facts, "problems": problems}, samples))
    print(f"failed: {'; '.join(problems)}" if problems else "passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
