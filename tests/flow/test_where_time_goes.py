"""Every run tells where its time goes, in its lines and in its rows."""

from __future__ import annotations

import re

import pytest

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.trainer import RunTrainer

KINDS = ("actor", "policy", "learner", "cores", "nobody")


@pytest.mark.parametrize("inference", ["central", long("local")])
def test_run_reports_shares_of_time_depths_of_rings_and_the_bottleneck(run_trainer: RunTrainer, inference: str) -> None:
    run = run_trainer(inference=inference, train_for_seconds=4, report_interval_sec=1, experiment_summaries_interval=1)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    advice = re.search(r"bound by (\w+): .*", run.stderr)
    assert advice is not None, run.report("no bottleneck is reported")
    assert advice[1] in KINDS
    assert re.search(r"busy=actor:\d\.\d\d.* bound_by=\w+ ", run.stderr)
    kinds = ("actor", "policy", "learner") if inference == "central" else ("actor", "learner")
    row = run.metrics()[-2]  # in the last one everything has come to its end
    for kind in kinds:
        assert row[f"load/{kind}_busy"] > 0
        assert row[f"load/{kind}_busy"] + row[f"load/{kind}_waiting"] == pytest.approx(1.0), kind
    assert row["ring/trajectories_count"] > 0
    assert ("ring/requests_count" in row) == (inference == "central")
    if inference == "central":
        assert 1 <= row["ring/requests_min"] <= row["ring/requests_p50"] <= row["ring/requests_max"]
    run.assert_clean()


def test_one_process_has_no_shares_of_time(run_trainer: RunTrainer) -> None:
    run = run_trainer(serial_mode=True, train_for_env_steps=2000)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    assert not [name for name in run.metrics()[-1] if name.startswith(("load/", "ring/"))]
    assert "bound by" not in run.stderr


@pytest.mark.parametrize(
    ("stage", "mode"), [long("env", "env"), ("sample", "sampler_only"), ("learn", "learn"), long("full", "train")]
)
def test_each_stage_of_a_run_can_be_measured_alone(run_trainer: RunTrainer, stage: str, mode: str) -> None:
    run = run_trainer(benchmark=True, benchmark_stage=stage, benchmark_seconds=1)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    result = run.result()
    assert result["mode"] == mode
    assert result["env_steps_per_second"] > 0
    assert result["bound_by"] in KINDS
    for kind, busy in result["busy"].items():
        assert busy + result["waiting"][kind] == pytest.approx(1.0, abs=2e-4), kind
    if stage == "env":
        assert (result["bound_by"], result["busy"]) == ("actor", {"actor": 1.0})
    if stage == "learn":
        # One dataset is learned from again and again; actors and policy workers are idle.
        assert result["busy"]["actor"] < 0.05
        assert result["busy"]["learner"] > 0.95
        assert result["bound_by"] in ("learner", "cores")
    if stage == "sample":
        assert result["busy"]["learner"] < result["busy"]["actor"]
    run.assert_clean()
