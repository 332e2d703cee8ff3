"""docs/metrics.md names every number that a run writes, and no run writes another; each tells where time is spent."""

from __future__ import annotations

import re

import pytest

from tests.support.long import long
from tests.support.source import ROOT
from tests.support.trainer import UNHURRIED, RunTrainer, TrainerRun

_NAME = re.compile(r"`([a-z_]+/[\w/<>-]+)`")
BOTTLENECKS = ("actor", "policy", "learner", "cores", "none")


def documented() -> list[re.Pattern[str]]:
    """Each name of the page, as a pattern."""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    names = {name for line in page.splitlines() if line.startswith("| `") for name in _NAME.findall(line)}
    return [re.compile(re.sub(r"<\w+>", r"[\\w/-]+", name)) for name in sorted(names)]


def assert_bottleneck_and_shares(run: TrainerRun, inference: str) -> None:
    """The run has reported shares of time, depths of rings and its bottleneck."""
    advice = re.search(r"bound by (\w+): .*", run.stderr)
    assert advice is not None, run.report("no bottleneck is reported")
    assert advice[1] in BOTTLENECKS
    assert re.search(r"busy=actor:\d\.\d\d.* bound_by=\w+ ", run.stderr)
    rows = run.metrics()[:-1]  # in the last one everything has come to its end
    for kind in ("actor", "policy", "learner") if inference == "central" else ("actor", "learner"):
        shares = [(row[f"load/{kind}_busy"], row[f"load/{kind}_waiting"]) for row in rows]
        seen = [(busy, waiting) for busy, waiting in shares if busy is not None]
        assert max(busy for busy, _ in seen) > 0, kind
        assert [busy + waiting for busy, waiting in seen] == pytest.approx([1.0] * len(seen)), kind
    # A row of a busy machine may have had no trajectory in its second.
    fullest = max(rows, key=lambda row: row["ring/trajectories_count"] or 0)
    assert fullest["ring/trajectories_count"] > 0
    assert ("ring/requests_count" in fullest) == (inference == "central")
    if inference == "central":
        assert 1 <= fullest["ring/requests_min"] <= fullest["ring/requests_p50"] <= fullest["ring/requests_max"]


@pytest.mark.parametrize("flags", [{"inference": "central"}, long({"inference": "local"}), long({"serial_mode": True})])
def test_page_names_what_runs_write(run_trainer: RunTrainer, flags: dict[str, object]) -> None:
    often = {"report_interval_sec": 1, "experiment_summaries_interval": 1}
    run = run_trainer(env=UNHURRIED, train_for_seconds=4, **often, **flags).done()

    rows, patterns = run.metrics(), documented()
    written = {name for row in rows for name in row} - {"time", "env_steps"}
    assert [name for name in sorted(written) if not any(p.fullmatch(name) for p in patterns)] == []
    last = rows[-1]
    assert last["perf/trained_env_steps"] == last["env_steps"] == 256 * last["perf/datasets"] > 0
    assert last["perf/publications"] == last["perf/datasets"] + 1
    assert last["perf/grad_ms"] > 0
    if "serial_mode" in flags:
        assert not [name for name in written if name.startswith(("load/", "ring/"))]
        assert "bound by" not in run.stderr
    else:
        assert last["perf/dequeue_ms"] > 0
        assert last["perf/load_wait_ms"] >= 0
        assert max(row["ring/datasets_count"] or 0 for row in rows) > 0
        assert_bottleneck_and_shares(run, str(flags["inference"]))
    if flags == {"inference": "central"}:
        unseen = [p.pattern for p in patterns if not any(p.fullmatch(name) for name in written)]
        assert [name for name in unseen if not name.startswith(("eval/", "match/"))] == []


@pytest.mark.parametrize(
    ("stage", "mode"),
    [long("env", "env"), long("sample", "sampler_only"), long("learn", "learn"), long("full", "train")],
)
def test_each_stage_of_a_run_can_be_measured_alone(run_trainer: RunTrainer, stage: str, mode: str) -> None:
    # A benchmark calls no observer and no hook: these would fail.
    own = {"observers": "tests.support.hooks:FailsAtStop", "after_train_step": "tests.support.hooks:fail"}
    if stage == "learn":
        own["benchmark_pure_simulation"] = "12345"
    run = run_trainer(benchmark=True, benchmark_stage=stage, benchmark_seconds=1, **own).done()
    result = run.result()

    assert result["mode"] == mode
    assert ("pure simulation: " in run.stderr) == (stage != "learn")
    assert (result["pure_simulation_steps_per_second"] == 12345.0) == (stage == "learn")
    assert result["env_steps_per_second"] > 0
    assert result["bound_by"] in BOTTLENECKS
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
