"""A soak compares the right stretches of training, and says what is wrong."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.command import Command
from scripts.process_facts import SHM, Facts, facts_by_name, facts_of, median_of, shm_left_since, shm_names, total
from scripts.soak import Ending, Sample, compare, cores, document, latest_row, rate, run_flags, whole, window

ACTOR = Facts(rss_mb=160.0, pss_mb=20.0, private_mb=14.0, open_files=30, threads=1, cpu_s=1.0)
MAIN = Facts(rss_mb=240.0, pss_mb=180.0, private_mb=150.0, open_files=40, threads=2, cpu_s=1.0)
TRAINING_S = 1800.0


def sample(second: float, steps: float, actor: Facts = ACTOR) -> Sample:
    return Sample(second + 3, second, int(steps), 0.0, 0, {"sf-main": MAIN, "sf-actor-0": actor})


def a_run(
    steps_at: Callable[[float], float], actor_at: Callable[[float], Facts] = lambda second: ACTOR
) -> list[Sample]:
    """Samples of 30 minutes, one every 10 s."""
    return [sample(second, steps_at(second), actor_at(second)) for second in range(0, int(TRAINING_S) + 1, 10)]


def grown(field: str, by: float, after_s: float) -> Callable[[float], Facts]:
    """An actor of which a field is higher by so much after that second."""
    value = getattr(ACTOR, field) + by
    return lambda second: dataclasses.replace(ACTOR, **{field: value}) if second > after_s else ACTOR


def test_a_steady_run_passes() -> None:
    found = compare(a_run(lambda second: 1000 * second), TRAINING_S)

    assert found.problems() == []
    assert (found.first_rate, found.last_rate, found.throughput_ratio) == (1000.0, 1000.0, 1.0)
    assert (found.second_pss_mb, found.memory_growth, found.open_files_growth) == (200.0, 0.0, 0.0)


def test_the_last_sixth_is_held_against_the_first() -> None:
    # 1000 steps/s for the first 5 minutes, 500 in between, 900 in the last 5.
    def steps_at(second: float) -> float:
        return 1000 * min(second, 300) + 500 * min(max(second - 300, 0), 1200) + 900 * max(second - 1500, 0)

    found = compare(a_run(steps_at), TRAINING_S)

    assert (found.first_rate, found.last_rate) == (1000.0, 900.0)
    assert found.problems() == ["throughput fell to 90.0% of that at the start, at least 95% is wanted"]


def test_the_warm_up_is_no_part_of_the_first_sixth() -> None:
    found = compare(a_run(lambda second: max(0, 1000 * (second - 20))), TRAINING_S)

    assert found.first_rate == 1000.0


def test_memory_that_grows_after_the_first_sixth_fails_and_before_its_end_does_not() -> None:
    early = compare(a_run(lambda second: second, grown("pss_mb", 100, after_s=290)), TRAINING_S)
    late = compare(a_run(lambda second: second, grown("pss_mb", 4, after_s=1000)), TRAINING_S)
    less = compare(a_run(lambda second: second, grown("pss_mb", 3, after_s=1000)), TRAINING_S)

    assert early.problems() == []
    assert late.problems() == ["memory grew by 2.00%, less than 2% is wanted"]
    assert less.problems() == []


def test_more_open_files_or_threads_fail() -> None:
    files = compare(a_run(lambda second: second, grown("open_files", 1, after_s=1000)), TRAINING_S)
    threads = compare(a_run(lambda second: second, grown("threads", 2, after_s=1000)), TRAINING_S)

    assert files.problems() == ["there are 1 more open files than at the start"]
    assert threads.problems() == ["there are 2 more threads than at the start"]


def test_a_file_that_is_open_for_a_moment_does_not_count() -> None:
    samples = a_run(lambda second: second)
    samples[-5] = sample(samples[-5].train_seconds, samples[-5].env_steps, grown("open_files", 1, after_s=0)(1))

    assert compare(samples, TRAINING_S).open_files_growth == 0


def test_what_is_left_and_how_the_run_ended_is_told() -> None:
    ending = Ending(70, left_processes=("sf-actor-1",), left_shm=("sem.x",))

    assert ending.problems() == [
        "the run ended with exit code 70",
        "processes are left: sf-actor-1",
        "shared memory is left in /dev/shm: sem.x",
    ]


def test_start_and_end_of_the_processes_are_left_out_and_processes_that_come_are_not() -> None:
    samples = a_run(lambda second: second)
    samples[0] = dataclasses.replace(samples[0], processes={"python": MAIN})
    samples[-1] = dataclasses.replace(samples[-1], processes={"sf-main": MAIN})
    samples[-2] = dataclasses.replace(samples[-2], processes={**samples[-2].processes, "sf-actor-1": ACTOR})

    assert whole(samples) == samples[1:-1]


def test_a_window_with_one_sample_tells_nothing() -> None:
    with pytest.raises(SystemExit, match="1 samples from 0 s to 5 s"):
        window(a_run(lambda second: second), 0, 5)


def test_rates_are_those_of_training_time() -> None:
    assert rate([sample(10, 100), sample(12, 999), sample(30, 500)]) == 20.0


def test_cores_are_cpu_seconds_per_second_of_the_processes_that_stay() -> None:
    first, last = sample(10, 0), sample(30, 0, dataclasses.replace(ACTOR, cpu_s=31.0))
    last = dataclasses.replace(last, processes={**last.processes, "sf-actor-1": ACTOR})

    assert cores([first, last]) == 1.5


def test_the_latest_whole_row_of_the_metrics_counts(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert latest_row(metrics) == (0.0, 0)

    metrics.write_text('{"env_steps": 0, "perf/train_seconds": null}\n')
    assert latest_row(metrics) == (0.0, 0)

    metrics.write_text(metrics.read_text() + '{"env_steps": 512, "perf/train_seconds": 1.5}\n{"env_st')
    assert latest_row(metrics) == (1.5, 512)


def test_flags_replace_the_default_ones_of_their_name() -> None:
    plain, changed = run_flags([]), run_flags(["--num-workers", "4", "--inference=central"])

    assert "--num_workers=2" in plain
    assert "--inference=local" in plain
    assert "--num_workers=2" not in changed
    assert [flag for flag in changed if "inference" in flag] == ["--inference=central"]
    assert changed[-3:-1] == ["--num-workers", "4"]


def test_another_environment_keeps_its_own_defaults() -> None:
    flags = run_flags(["--env=atari_breakout"])

    assert [flag for flag in flags if "num_envs_per_worker" in flag or "batch_size" in flag] == []
    assert "--train_for_env_steps=1000000000000" in flags


def test_flags_that_are_the_scripts_own_are_refused() -> None:
    with pytest.raises(SystemExit, match="--train_dir is given to the run by this script"):
        run_flags(["--train_dir=here"])


def test_the_document_holds_every_sample_in_a_line_of_its_own() -> None:
    samples = a_run(lambda second: second)[:3]

    text = document({"cpu": "some"}, samples)

    read = json.loads(text)
    assert read["cpu"] == "some"
    assert [row["train_seconds"] for row in read["samples"]] == [0, 10, 20]
    columns = read["columns_of_a_process"]
    assert dict(zip(columns, read["samples"][0]["processes"]["sf-actor-0"], strict=True)) == dataclasses.asdict(ACTOR)
    assert len(text.splitlines()) == 4 + 3 + 2


def test_sums_and_medians_are_over_the_processes_of_that_name() -> None:
    processes = {"sf-main": MAIN, "sf-actor-0": ACTOR, "sf-actor-1": dataclasses.replace(ACTOR, private_mb=16.0)}

    assert total(processes, "pss_mb") == 200.0 + 20.0
    assert median_of(processes, "sf-actor-", "private_mb") == 15.0
    assert median_of(processes, "sf-policy-", "private_mb") is None


def test_facts_are_those_of_the_process() -> None:
    facts = facts_of(os.getpid())

    assert facts is not None
    assert facts.rss_mb >= facts.pss_mb >= facts.private_mb > 5
    assert facts.open_files >= 3
    assert facts.threads >= 1
    assert facts.cpu_s > 0


def test_a_process_whose_name_is_taken_is_told_by_its_pid_too(tmp_path: Path) -> None:
    with Command([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path) as run:
        found = facts_by_name({os.getpid(): "sf-main", run.session: "sf-main", 2**30: "gone"})

    assert sorted(found) == ["sf-main", f"sf-main {max(os.getpid(), run.session)}"]


def test_a_process_whose_name_holds_brackets_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "smaps_rollup").write_text("Rss: 3072 kB\nPss: 2048 kB\nPrivate_Clean: 512 kB\nPrivate_Dirty: 512 kB\n")
    ticks = os.sysconf("SC_CLK_TCK")
    (folder / "stat").write_text(f"7 (a) b () S 1 7 7 0 -1 0 0 0 0 0 {2 * ticks} {ticks} 0 0 20 0 4 0 0 0 0")

    assert facts_of(7, tmp_path) == Facts(3.0, 2.0, 1.0, open_files=0, threads=4, cpu_s=3.0)
    assert facts_of(8, tmp_path) is None


def test_shared_memory_is_left_once_nobody_maps_it() -> None:
    before = shm_names()
    path = SHM / f"sfactory-test-{uuid.uuid4().hex}"
    try:
        with path.open("w+b") as file:
            file.truncate(4096)
            with mmap.mmap(file.fileno(), 4096):
                while_mapped = shm_left_since(before)
        afterwards = shm_left_since(before)
    finally:
        path.unlink()

    assert path.name not in while_mapped
    assert path.name in afterwards
