"""Other systems are compared with round by round, and run with settings that are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import compare_peers
from scripts.compare_peers import ratios_of, result_of, told
from scripts.peers import SAMPLE_FACTORY, SB3, SETTINGS, peers_of, sample_factory_rate, sb3_rate
from scripts.record import write_json
from scripts.workloads import compared_with_peers
from sfactory.config.argv import scan
from sfactory.config.flags import all_flags

RATES = {
    "sfactory local": [500.0, 300.0, 400.0],
    "sfactory central": [300.0, 270.0, 200.0],
    SAMPLE_FACTORY: [50.0, 10.0, 20.0],
    SB3: [100.0, 100.0, 100.0],
}


def test_ratios_are_those_of_one_round() -> None:
    # Of medians they would be 20 and 4 for local inference.
    assert ratios_of(RATES) == {
        "sfactory local": {
            SAMPLE_FACTORY: {"median": 20.0, "min": 10.0, "max": 30.0},
            SB3: {"median": 4.0, "min": 3.0, "max": 5.0},
        },
        "sfactory central": {
            SAMPLE_FACTORY: {"median": 10.0, "min": 6.0, "max": 27.0},
            SB3: {"median": 2.7, "min": 2.0, "max": 3.0},
        },
    }


def test_the_median_ratio_may_differ_from_the_ratio_of_medians() -> None:
    rates = {"sfactory local": [100.0, 300.0, 200.0], SB3: [100.0, 100.0, 10.0]}

    assert ratios_of(rates)["sfactory local"][SB3] == {"median": 3.0, "min": 1.0, "max": 20.0}


def test_the_table_has_every_round_and_both_ratios() -> None:
    lines = told(result_of(RATES)).splitlines()

    assert lines[0] == "| system | rounds | median | sfactory local is faster by | sfactory central is faster by |"
    assert lines[2] == "| sfactory local | 500 · 300 · 400 | **400** |  |  |"
    assert lines[5] == "| SB3 | 100 · 100 · 100 | **100** | 4 times (3-5) | 2.7 times (2-3) |"


def test_a_file_is_summarised_anew_from_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "peers.json"
    write_json(file, {"cpu": "some", "env_steps_per_second": RATES, "medians": {}, "commands": {"SB3": "x"}})
    monkeypatch.setattr(sys, "argv", ["compare_peers.py", "--summarise", str(file)])

    compare_peers.main()

    assert json.loads(file.read_text()) == {"cpu": "some", **result_of(RATES), "commands": {"SB3": "x"}}


def test_a_workload_with_a_memory_has_no_peer_in_sb3() -> None:
    assert list(peers_of("cartpole_gru", Path("p"))) == [SAMPLE_FACTORY]
    assert list(peers_of("cartpole", Path("p"))) == [SAMPLE_FACTORY, SB3]


def test_peers_run_in_environments_of_their_own() -> None:
    peer = peers_of("breakout", Path("/p"))[SB3]

    assert " ".join(peer.command) == "/p/sb/bin/python peer_sb3.py atari_breakout 16000 32 32 1024 cnn dummy"


@pytest.mark.parametrize("name", SETTINGS)
def test_the_bench_has_a_workload_for_all_that_peers_can_run(name: str) -> None:
    arguments = compared_with_peers(name, Path("bench")).arguments("central", 2)

    line = scan(arguments, all_flags())

    assert line.problems == []
    assert (line.values["num_workers"], line.values["rollout"], line.values["inference"]) == (2, 32, "central")
    assert line.values.get("use_rnn", False) == (name == "cartpole_gru")
    assert str(line.values["env"]).startswith("envs:")


def test_sample_factorys_best_ten_seconds_count() -> None:
    lines = "Fps is (10 sec: 35000.5, 60 sec: 1.0)\nFps is (10 sec: 41000.0, 60 sec: 2.0)\nFPS: 20000.0"

    assert sample_factory_rate(lines) == 41_000.0
    with pytest.raises(SystemExit, match=r"printed no rate:\nnothing"):
        sample_factory_rate("nothing")


def test_sb3s_last_rate_counts() -> None:
    assert sb3_rate("sb3 cartpole envs=8 fps=100\nsb3 cartpole envs=8 fps=120") == 120.0
    with pytest.raises(SystemExit, match=r"printed no rate:\nnothing"):
        sb3_rate("nothing")
