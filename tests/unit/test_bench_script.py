"""What the scripts that measure speed do with what they have measured."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import Records, measurements_of, thread_counts
from scripts.ceilings import Subject
from scripts.compare_peers import SAMPLE_FACTORY, SB3, WORKLOADS, peers_of
from scripts.draw_throughput import bars_of, draw, short
from scripts.figures import Rate, ceiling, cheapest, summary
from scripts.measuring import ROOT, alternating, cpu_model, json_line, medians, run, shown
from scripts.process_times import Snapshot, cores_busy, cpu_us_per_step, kind_of, parse_stat
from scripts.score_settings import SETTINGS
from scripts.time_to_score import Attempt, Score, System, Tail, attempt, median_seconds, read_row, read_told
from scripts.workloads import workloads
from sfactory.config.argv import scan
from sfactory.config.cli import read_command_line
from sfactory.config.flags import all_flags

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
        {"measurement": name, "env_steps_per_second": rate, "cpu_us_per_step": {"actors": 1e6 / rate}}
        for name, values in rates.items()
        for rate in values
    ]


def test_medians_leave_out_what_has_no_numbers() -> None:
    assert medians({"a": [3.0, 1.0, 2.0], "b": [1.0, 4.0], "c": []}) == {"a": 2.0, "b": 2.5}


def test_a_cost_counts_all_threads() -> None:
    assert Rate(threads=2, steps_per_second=500_000.0).core_us == 4.0


def test_the_cheapest_rate_is_not_the_highest_one() -> None:
    one, two = Rate(1, 1_000_000.0), Rate(2, 1_500_000.0)

    assert cheapest([one, two]) is one


def test_the_ceiling_gives_all_cores_to_the_sum_of_the_costs() -> None:
    assert ceiling(2, {"simulation": 4.0, "forward": 1.0, "train": 5.0}) == 200_000.0


def test_a_summary_sets_training_against_the_ceiling() -> None:
    result = summary(runs_of(RATES), cores=2, processes=2)

    # 2 processes at 500,000; 1 thread at 1,000,000; 2 threads at 510,000.
    expected = 2e6 / (4.0 + 1.0 + 2e6 / 510_000)
    assert result["medians"]["full local"] == 175_000.0
    assert result["ceiling"]["env_steps_per_second"] == pytest.approx(expected, abs=0.1)
    assert result["ceiling"]["threads"] == {"simulation": 2, "forward": 1, "train": 2}
    assert result["ceiling"]["share_reached"] == {"full local": pytest.approx(175_000 / expected, abs=1e-4)}
    assert result["cpu_us_per_step"]["env"] == {"actors": 2.0}


def test_more_processes_than_cores_cost_no_more_than_the_cores() -> None:
    result = summary(runs_of(RATES), cores=2, processes=8)

    assert result["ceiling"]["core_us_per_step"]["simulation"] == 4.0


@pytest.mark.parametrize("missing", ["env", "forward x", "train x"])
def test_there_is_no_ceiling_while_a_part_of_it_is_not_measured(missing: str) -> None:
    result = summary(runs_of({name: rates for name, rates in RATES.items() if not name.startswith(missing)}), 2, 2)

    assert "ceiling" not in result


def test_the_last_json_line_of_an_output_is_its_result() -> None:
    assert json_line('{"a": 1}\nnoise\n{"a": 2}\n') == {"a": 2}


def test_an_output_without_json_is_shown() -> None:
    with pytest.raises(SystemExit, match="nothing here"):
        json_line("nothing here")


def test_a_failed_command_is_shown_with_the_end_of_its_stderr() -> None:
    script = "import sys; print('x' * 50 + '\\n' * 100 + 'why it failed', file=sys.stderr); sys.exit(3)"

    with pytest.raises(SystemExit, match="why it failed") as caught:
        run([sys.executable, "-c", script])

    text = str(caught.value)
    assert "ended with 3" in text
    assert sys.executable in text
    assert "x" * 50 not in text.partition("stderr:")[2]


def test_a_command_runs_in_a_session_of_its_own_with_the_given_environment() -> None:
    script = "import os; print(os.getsid(0) == os.getpid(), os.environ['NUMBER'])"

    output = run([sys.executable, "-c", script], environment={"NUMBER": "7"})

    assert output.stdout.split() == ["True", "7"]


def test_rounds_alternate_between_systems() -> None:
    count = itertools.count(1)

    results = alternating({"a": lambda: next(count), "b": lambda: next(count)}, rounds=2)

    assert results == {"a": [1, 3], "b": [2, 4]}


def test_a_command_is_shown_without_the_places_of_this_machine() -> None:
    ours, theirs = [sys.executable, f"{ROOT}/scripts/x.py", "--y={1}"], ["/some/peers/sb/bin/python", "x.py"]

    assert shown(ours) == "python scripts/x.py '--y={1}'"
    assert shown(ours, Path("/some/bench")) == "cd BENCH && python REPOSITORY/scripts/x.py '--y={1}'"
    assert shown(theirs, Path("/some/bench"), Path("/some/peers")) == "cd BENCH && PEERS/sb/bin/python x.py"


def test_the_model_of_the_cpu_is_read() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: Some CPU\ncpu MHz\t: 1\nmodel name\t: Other\n") == "Some CPU"


def test_a_stat_line_is_read_whatever_the_name() -> None:
    line = "123 (sf-actor-0 ) x) S 1 2 77 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1 0 0 0"

    stat = parse_stat(line)

    assert stat.name == "sf-actor-0 ) x"
    assert stat.session == 77
    assert stat.cpu_s == pytest.approx(2.0)  # 200 ticks of a hundredth


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


def test_a_workload_with_a_memory_has_no_peer_in_sb3() -> None:
    assert list(peers_of(WORKLOADS["cartpole_gru"], Path("b"), Path("p"))) == [SAMPLE_FACTORY]
    assert list(peers_of(WORKLOADS["cartpole"], Path("b"), Path("p"))) == [SAMPLE_FACTORY, SB3]


def test_the_chart_is_drawn_from_the_json_of_a_bench(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    peer = {"measurement": SB3, "env_steps_per_second": 90_000.0}
    workload = workloads(None)["cartpole"]
    record = Records(workload, measurements_of(workload, 2, 1.0, None), [*runs_of(RATES), peer])
    measured = {"cpu": "Some CPU", "cores": 2, "date": "2026-01-01", "workloads": {"cartpole": record.to_json(2, 2)}}
    target = tmp_path / "chart.svg"

    draw(json.loads(json.dumps(measured)), target)

    text = target.read_text()
    for words in ("cartpole: CartPole-v1", "pure simulation", "training, local", "ceiling: 224 k", "SB3", "Some CPU"):
        assert words in text


def test_bars_are_stages_and_peers_but_not_the_parts_of_the_ceiling() -> None:
    result = summary([*runs_of(RATES), {"measurement": SB3, "env_steps_per_second": 90_000.0}], 2, 2)

    bars = bars_of(result)

    assert [bar.label for bar in bars] == ["pure simulation", "training, local", SB3]
    assert bars[1].share == pytest.approx(0.7806, abs=1e-4)


@pytest.mark.parametrize(
    ("rate", "text"), [(6_130_000.0, "6.13 M"), (613_405.0, "613 k"), (1_089.4, "1.09 k"), (9.5, "9.5")]
)
def test_rates_are_written_with_three_figures(rate: float, text: str) -> None:
    assert short(rate) == text


def test_a_row_of_metrics_is_a_score_once_there_are_enough_episodes() -> None:
    row = {"env_steps": 5, "train/episodes": 99, "train/episode_return_mean": 480.0, "perf/train_seconds": 2.5}

    assert read_row(json.dumps(row)) is None
    assert read_row(json.dumps({**row, "train/episodes": 100})) == Score(480.0, 2.5, 5)


def test_scores_are_found_among_what_a_peer_prints() -> None:
    assert read_told("[10:00:00] Fps is 12") is None
    assert read_told('SCORE {"mean": 20.5, "train_s": 1.0, "env_steps": 7}') == Score(20.5, 1.0, 7)


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tail = Tail(path)

    assert tail.lines() == []
    path.write_text("a\nb")
    assert tail.lines() == ["a"]
    path.write_text("a\nbc\nd\n")
    assert tail.lines() == ["bc", "d"]
    assert tail.lines() == []


def telling(*means: float, then: str = "sleep 60") -> System:
    lines = [f'echo \'SCORE {{"mean": {mean}, "train_s": 1.5, "env_steps": 10}}\'' for mean in means]
    return System(lambda seed, folder: ["sh", "-c", "; ".join([*lines, then])], read_told)


def test_a_run_ends_when_it_reaches_the_bar(tmp_path: Path) -> None:
    result = attempt(telling(20.0, 480.0), 1, tmp_path, bar=475.0, limit_s=60.0)

    assert (result.reached, result.train_s, result.env_steps, result.best_mean) == (True, 1.5, 10, 480.0)


def test_a_run_that_does_not_reach_the_bar_in_time_tells_its_best(tmp_path: Path) -> None:
    result = attempt(telling(20.0, 300.0, 200.0), 1, tmp_path, bar=475.0, limit_s=2.0)

    assert result == Attempt(False, None, None, None, 300.0)


def test_a_run_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        attempt(telling(20.0, then="echo no such thing >&2; exit 1"), 1, tmp_path, bar=475.0, limit_s=60.0)


def test_the_median_of_seconds_is_unknown_if_most_were_not_reached() -> None:
    fast, slow = Attempt(True, 10.0, 5.0, 1, 480.0), Attempt(True, 30.0, 20.0, 1, 480.0)
    never = Attempt(False, None, None, None, 100.0)

    assert median_seconds([slow, fast, never], "wall_s") == 30.0
    assert median_seconds([slow, fast], "train_s") == 12.5
    assert median_seconds([never, fast, never], "wall_s") is None


def test_settings_of_ours_are_read_without_problems() -> None:
    problems = [scan(settings.ours.split(), all_flags()).problems for settings in SETTINGS.values()]

    assert problems == [[] for _ in SETTINGS]
