"""What the scripts that measure speed do with what they have measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts import bench
from scripts.bench import Records, measurements_of, measurements_of_peers, thread_counts
from scripts.bench_files import joined
from scripts.bench_table import told
from scripts.ceilings import Subject
from scripts.draw_throughput import bars_of, draw, short
from scripts.figures import Rate, ceiling, cheapest, is_peer, summary
from scripts.peers import SB3
from scripts.process_times import Snapshot, cores_busy, cpu_us_per_step, kind_of
from scripts.record import write_json
from scripts.workloads import workloads
from sfactory.config.argv import scan
from sfactory.config.flags import all_flags
from sfactory.config.resolve import read_command_line

RATES = {
    "env": (400_000.0, 500_000.0, 600_000.0),
    "full local": (200_000.0, 150_000.0, 175_000.0),
    "forward x1": (1_000_000.0, 1_000_000.0, 1_000_000.0),
    "forward x2": (1_500_000.0, 1_500_000.0, 1_500_000.0),
    "train x1": (250_000.0, 240_000.0, 260_000.0),
    "train x2": (500_000.0, 510_000.0, 520_000.0),
}


def runs_of(rates: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    return [
        {"round": round_, "measurement": name, "env_steps_per_second": rate, "cpu_us_per_step": {"actors": 1e6 / rate}}
        for name, values in rates.items()
        for round_, rate in enumerate(values, 1)
    ]


def sampling(percents: Sequence[float]) -> list[dict[str, Any]]:
    """Rounds of sampling at 300,000 steps/s that came to these percents of pure simulation."""
    costs = {"actors": 1234.5, "policy_workers": 1.0, "main": 0.01}
    rate = {"measurement": "sample central", "env_steps_per_second": 300_000.0, "cpu_us_per_step": costs}
    return [{"round": at, **rate, "percent_of_pure_simulation": percent} for at, percent in enumerate(percents, 1)]


PEER_RUNS = runs_of({SB3: (50_000.0, 30_000.0, 25_000.0)})


def test_a_cost_counts_all_threads() -> None:
    assert Rate(threads=2, steps_per_second=500_000.0).core_us == 4.0


def test_the_cheapest_rate_is_not_the_highest_one() -> None:
    one, two = Rate(1, 1_000_000.0), Rate(2, 1_500_000.0)

    assert cheapest([one, two]) is one


def test_the_ceiling_gives_all_cores_to_the_sum_of_the_costs() -> None:
    assert ceiling(2, {"simulation": 4.0, "forward": 1.0, "train": 5.0}) == 200_000.0


def test_a_summary_has_the_ceiling_of_the_middle_round_and_of_each_cost_the_median() -> None:
    result = summary(runs_of(RATES), cores=2, processes=2)

    # 2 processes at 500,000; 1 thread at 1,000,000; 2 threads at 510,000.
    assert result["medians"]["full local"] == 175_000.0
    assert result["ceiling"]["env_steps_per_second"] == pytest.approx(2e6 / (4.0 + 1.0 + 2e6 / 510_000), abs=0.1)
    assert result["ceiling"]["core_us_per_step"] == {"simulation": 4.0, "forward": 1.0, "train": 3.9216}
    assert result["ceiling"]["threads"] == {"simulation": 2, "forward": 1, "train": 2}


def test_training_is_set_against_the_ceiling_of_its_own_round() -> None:
    result = summary(runs_of(RATES), cores=2, processes=2)

    # 200,000 of 200,000, 150,000 of 224,176, 175,000 of 244,514.
    assert result["ceiling"]["share_reached"] == {"full local": {"median": 0.7157, "min": 0.6691, "max": 1.0}}


def test_a_round_without_a_part_of_the_ceiling_has_no_share_of_it() -> None:
    result = summary(runs_of({**RATES, "forward x1": (1_000_000.0,)}), cores=2, processes=2)

    assert result["ceiling"]["env_steps_per_second"] == 200_000.0
    assert result["ceiling"]["share_reached"] == {"full local": {"median": 1.0, "min": 1.0, "max": 1.0}}


def test_the_share_of_pure_simulation_is_that_of_each_run() -> None:
    result = summary([*runs_of(RATES), *sampling([60.0, 82.0, 70.0])], cores=2, processes=2)

    assert result["share_of_pure_simulation"] == {"sample central": {"median": 0.7, "min": 0.6, "max": 0.82}}


def test_cpu_time_is_told_by_kind_and_of_all_processes() -> None:
    result = summary([*runs_of(RATES), *sampling([60.0])], cores=2, processes=2)

    assert result["cpu_us_per_step"]["env"] == {"actors": 2.0, "all": 2.0}
    sample = result["cpu_us_per_step"]["sample central"]
    assert sample == {"actors": 1234.5, "policy_workers": 1.0, "main": 0.01, "all": 1235.51}


def test_peers_are_compared_with_round_by_round() -> None:
    result = summary([*runs_of(RATES), *PEER_RUNS], cores=2, processes=2)

    # 200 over 50, 150 over 30, 175 over 25.
    assert result["times_as_fast"] == {"full local": {SB3: {"median": 5.0, "min": 4.0, "max": 7.0}}}
    assert "times_as_fast" not in summary(runs_of(RATES), cores=2, processes=2)


@pytest.mark.parametrize(
    ("name", "other"),
    [("learn", False), ("full local", False), ("train x2", False), ("forward x16", False), (SB3, True)],
)
def test_peers_are_what_is_neither_a_stage_nor_a_part_of_the_ceiling(name: str, other: bool) -> None:
    assert is_peer(name) == other


def test_more_processes_than_cores_cost_no_more_than_the_cores() -> None:
    result = summary(runs_of(RATES), cores=2, processes=8)

    assert result["ceiling"]["core_us_per_step"]["simulation"] == 4.0


@pytest.mark.parametrize("missing", ["env", "forward x", "train x"])
def test_there_is_no_ceiling_while_a_part_of_it_is_not_measured(missing: str) -> None:
    result = summary(runs_of({name: rates for name, rates in RATES.items() if not name.startswith(missing)}), 2, 2)

    assert "ceiling" not in result


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sf-actor-12", "actors"),
        ("sf-policy-0-1", "policy_workers"),
        ("sf-learner-0", "learner"),
        ("sf-sim-1", "simulation"),
        ("sf-main", "main"),
        ("sf-probe", None),
    ],
)
def test_processes_are_known_by_their_names(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_cpu_time_is_that_of_the_window_in_which_all_processes_were_there() -> None:
    actors = [(1, "sf-actor-0"), (2, "sf-actor-1")]
    learner = (3, "sf-learner-0")
    simulating = [Snapshot(float(at), {actors[0]: 0.0}) for at in range(3)]
    # Two actors with half a core each and a learner with a whole one; its first second was busier.
    measuring = [
        Snapshot(10.0 + at, {actors[0]: 0.5 * at, actors[1]: 5 + 0.5 * at, learner: at + 9.0 * (at > 0)})
        for at in range(11)
    ]
    ending = [Snapshot(21.0, {actors[0]: 99.0})]

    busy = cores_busy([*simulating, *measuring, *ending], seconds=10.0)

    assert busy == {"actors": pytest.approx(1.0), "learner": pytest.approx(1.0)}
    assert cpu_us_per_step(busy, 500_000.0) == {"actors": 2.0, "learner": 2.0}


def test_a_measurement_that_was_not_watched_is_an_error() -> None:
    with pytest.raises(SystemExit, match="too short"):
        cores_busy([Snapshot(0.0, {(1, "sf-actor-0"): 0.0})], seconds=1.0)


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_thread_counts_double_up_to_all_cores(cores: int, counts: list[int]) -> None:
    assert thread_counts(cores) == counts


@pytest.mark.parametrize("bench", [None, Path("bench")])
def test_flags_of_workloads_are_read_without_problems(bench: Path | None) -> None:
    flags = all_flags()
    problems = {
        name: scan([word for word in workload.arguments(inference, 2) if not word.startswith("--amp=")], flags).problems
        for name, workload in workloads(bench).items()
        for inference in ("local", "central")
    }

    assert [found for found in problems.values() if found] == []


def test_a_round_measures_every_stage_and_every_number_of_threads() -> None:
    workload = workloads(None)["zero_cost"]

    measurements = measurements_of(workload, cores=2, seconds=5.0, bench=None)

    commands = {measurement.name: measurement.command for measurement in measurements}
    assert list(commands) == [
        *("env", "sample local", "sample central", "learn", "full local", "full central"),
        *("forward x1", "forward x2", "train x1", "train x2"),
    ]
    assert "--num_envs_per_worker=256 --benchmark=True --benchmark_stage=full" in commands["full central"]
    assert "ceilings.py train --threads 2 --seconds 5 -- --env=" in commands["train x2"]


@pytest.mark.parametrize("name", ["zero_cost", "recurrent"])
def test_what_is_measured_alone_acts_and_learns_for_as_many_steps_as_it_says(name: str) -> None:
    flags = [*workloads(None)[name].arguments("local", 2)]
    sizes = {"num_envs_per_worker": 8, "batch_size": 64, "num_batches_per_epoch": 2}
    flags = [flag for flag in flags if flag.lstrip("-").partition("=")[0] not in sizes]
    subject = Subject(read_command_line([*flags, *(f"--{key}={size}" for key, size in sizes.items())], prog="x").config)

    act, acted = subject.forward()
    train, learned = subject.train()

    assert (acted, learned) == (8, 128)
    act()
    assert train() == 128


def test_peers_are_measured_where_they_can_run_the_workload() -> None:
    there = workloads(Path("b"))

    found = measurements_of_peers(there["cartpole_plain"], Path("b"), Path("p"))

    commands = {measurement.name: measurement.command for measurement in found}
    assert commands[SB3] == "cd BENCH && PEERS/sb/bin/python peer_sb3.py cartpole 1200000 1024 16 16384 mlp dummy"
    assert len(commands) == 2
    assert measurements_of_peers(there["zero_cost"], Path("b"), Path("p")) == []
    assert measurements_of_peers(there["cartpole_plain"], Path("b"), None) == []


def a_bench(*runs: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a bench of one workload."""
    workload = workloads(None)["cartpole"]
    record = Records(workload, measurements_of(workload, 2, 1.0, None), list(runs))
    facts = {"cpu": "Some CPU", "cores": 2, "date": "2026-01-01", "rounds": 3}
    measured = {**facts, "workloads": {"cartpole": record.to_json(2)}}
    copy: dict[str, Any] = json.loads(json.dumps(measured))
    return copy


def test_a_bench_is_summarised_anew_from_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = a_bench(*runs_of(RATES), *sampling([60.0, 82.0, 70.0]))
    older = {**measured["workloads"]["cartpole"], "medians": {"env": 1.0}, "of an older script": 2}
    file = tmp_path / "bench.json"
    write_json(file, {**measured, "workloads": {"cartpole": older}})
    monkeypatch.setattr(sys, "argv", ["bench.py", "--summarise", str(file)])

    bench.main()

    assert json.loads(file.read_text()) == measured


def test_the_table_tells_medians_and_paired_shares() -> None:
    workload = a_bench(*runs_of(RATES), *sampling([60.0, 82.0, 70.0]), *PEER_RUNS)["workloads"]["cartpole"]

    text = told("cartpole", workload)

    assert "| sample central | 300,000 | 70% (60-82) |  | 1,236 (actors 1,234) |" in text
    assert "| full local | 175,000 |  | 72% (67-100) | 5.71 (actors 5.71) |" in text
    assert "| ceiling | 224,176 |  |  | simulation 4 (x2), forward 1 (x1), train 3.92 (x2) |" in text
    assert "full local: 5 times (4-7) as fast as SB3" in text
    assert "forward x" not in text


def test_the_chart_is_drawn_from_the_json_of_a_bench(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "chart.svg"

    draw(a_bench(*runs_of(RATES), *PEER_RUNS), target)

    text = target.read_text()
    for words in ("cartpole: CartPole-v1", "pure simulation", "training, local", "ceiling: 224 k", "SB3", "Some CPU"):
        assert words in text


def test_bars_are_stages_and_peers_but_not_the_parts_of_the_ceiling() -> None:
    bars = bars_of(summary([*runs_of(RATES), *sampling([60.0, 82.0, 70.0]), *PEER_RUNS], 2, 2))

    assert [(bar.label, bar.note) for bar in bars] == [
        ("pure simulation", ""),
        ("sampling, central", "70% of pure simulation"),
        ("training, local", "72% of the ceiling"),
        (SB3, ""),
    ]


def test_rounds_of_several_files_follow_each_other() -> None:
    first, second = a_bench(*runs_of({"env": (4.0, 6.0)})), a_bench(*runs_of({"env": (9.0,), "learn": (5.0,)}))
    second["date"] = "2026-01-02"

    both = joined([first, second])

    runs = both["workloads"]["cartpole"]["runs"]
    assert [(run["round"], run["env_steps_per_second"]) for run in runs] == [(1, 4.0), (2, 6.0), (3, 9.0), (3, 5.0)]
    assert both["workloads"]["cartpole"]["medians"] == {"env": 6.0, "learn": 5.0}
    assert (both["date"], both["rounds"]) == ("2026-01-01, 2026-01-02", 3)


def test_workloads_of_several_files_stand_side_by_side() -> None:
    first = a_bench(*runs_of({"env": (4.0,)}))
    second = {**first, "workloads": {"other": first["workloads"]["cartpole"]}}

    assert list(joined([first, second])["workloads"]) == ["cartpole", "other"]


def test_files_of_different_machines_or_flags_are_not_joined() -> None:
    bench_file = a_bench(*runs_of({"env": (4.0,)}))
    workload = bench_file["workloads"]["cartpole"]
    other = {"cartpole": {**workload, "commands": {**workload["commands"], "env": "python x"}}}

    joined([bench_file, {**bench_file, "instructions": ["avx2"]}])  # an older file does not tell its own
    with pytest.raises(SystemExit, match="do not compare: cores is 2 and 4"):
        joined([bench_file, {**bench_file, "cores": 4}])
    with pytest.raises(SystemExit, match="cartpole was measured with other flags"):
        joined([bench_file, {**bench_file, "workloads": other}])


@pytest.mark.parametrize(
    ("rate", "text"), [(6_130_000.0, "6.13 M"), (613_405.0, "613 k"), (1_089.4, "1.09 k"), (9.5, "9.5")]
)
def test_rates_are_written_with_three_figures(rate: float, text: str) -> None:
    assert short(rate) == text
