"""A parallel run leaves nothing open, whatever happens at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.config.flags import config_of
from sfactory.experiment.run_dir import RunDir
from sfactory.planning.plan import plan_run
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.console import Console
from sfactory.report.observers import Observers
from sfactory.runner.parallel import ParallelRun
from sfactory.supervise.restarts import RestartBudget
from tests.support.parts import VECTOR


def test_metrics_are_flushed_and_closed_if_children_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of({"env": "any", "device": "cpu", "encoder_mlp_layers": (8,), "flush_summaries_interval": 9999})
    spawner = Spawner()

    def fail(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(spawner, "start", fail)
    with RunDir.open(tmp_path, "run") as rundir, Interrupts() as interrupts:
        run = ParallelRun(
            config, 1, plan_run(config, VECTOR), rundir, None, Console(None, None), Observers(), RestartBudget("any", 0)
        )

        with pytest.raises(OSError, match="no more processes"):
            run.run(spawner, interrupts, 0.0)

    (events,) = (tmp_path / "run").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
