"""docs/metrics.md names every number that a run writes, and no run writes another."""

from __future__ import annotations

import re

import pytest

from sfactory.errors import ExitCode
from tests.support.long import long
from tests.support.source import ROOT
from tests.support.trainer import RunTrainer

_NAME = re.compile(r"`([a-z_]+/[\w/<>-]+)`")


def documented() -> list[re.Pattern[str]]:
    """Each name of the page, as a pattern."""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    names = {name for line in page.splitlines() if line.startswith("| `") for name in _NAME.findall(line)}
    return [re.compile(re.sub(r"<\w+>", r"[\\w/-]+", name)) for name in sorted(names)]


@pytest.mark.parametrize("flags", [{"inference": "central"}, long({"inference": "local"}), {"serial_mode": True}])
def test_every_number_that_a_run_writes_stands_on_the_page(run_trainer: RunTrainer, flags: dict[str, object]) -> None:
    run = run_trainer(env="tests.support.envs:Unhurried", train_for_env_steps=4000, **flags)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    rows = run.metrics()
    written = {name for row in rows for name in row} - {"time", "env_steps"}
    patterns = documented()
    assert [name for name in sorted(written) if not any(p.fullmatch(name) for p in patterns)] == []
    last = rows[-1]
    assert last["perf/trained_env_steps"] == last["env_steps"] >= 4000
    assert last["perf/datasets"] * 256 >= 4000  # a dataset is one batch of 256 steps
    assert last["perf/publications"] == last["perf/datasets"] + 1
    assert last["perf/grad_ms"] > 0
    if "serial_mode" not in flags:
        assert last["perf/dequeue_ms"] > 0
        assert last["perf/load_wait_ms"] >= 0
        assert max(row["ring/datasets_count"] or 0 for row in rows) > 0


def test_steps_that_are_trained_and_replayed_add_up_to_what_was_learned_from(run_trainer: RunTrainer) -> None:
    run = run_trainer(env="tests.support.envs:Seesaw", train_for_env_steps=6000, replay_proportion=1.0, replay_slots=64)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    last = run.metrics()[-1]
    # Episodes are never truncated, so that every row of a batch is a step.
    assert last["perf/trained_env_steps"] + last["perf/replayed_steps"] == 256 * last["perf/datasets"]
    assert 0.4 < last["perf/replayed_steps"] / last["perf/trained_env_steps"] <= 1.0
    assert last["perf/sampled_env_steps"] >= last["perf/trained_env_steps"]
    assert last["perf/dropped_steps"] == 0


def test_the_page_names_nothing_that_is_never_written(run_trainer: RunTrainer) -> None:
    run = run_trainer(env="tests.support.envs:Seesaw", train_for_env_steps=4000)

    assert run.wait() == ExitCode.DONE, run.report("failed")
    rows = run.metrics()
    written = {name for row in rows for name in row}
    unseen = [p.pattern for p in documented() if not any(p.fullmatch(name) for name in written)]
    assert [name for name in unseen if not name.startswith("eval/")] == []
