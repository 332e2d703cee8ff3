"""A parallel run leaves nothing open, whatever happens at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.config.flags import config_of
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.planning.plan import plan_run
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.report.console import Console
from sfactory.report.observers import Observers
from sfactory.runner.context import RunContext
from sfactory.runner.parallel import ParallelExecutor
from tests.support.parts import VECTOR


def test_metrics_are_flushed_and_closed_if_children_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of({"env": "any", "device": "cpu", "encoder_mlp_layers": (8,), "flush_summaries_interval": 9999})
    spawner = Spawner()

    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(spawner, "process", fail)
    with RunDir.open(tmp_path, "run") as run_dir, Interrupts() as interrupts:
        context = RunContext(
            config=config,
            seed=1,
            plan=plan_run(config, VECTOR),
            run_dir=run_dir,
            resumed=Resumed(),
            console=Console(None, None),
            observers=Observers(),
            spawner=spawner,
            interrupts=interrupts,
            started_at=0.0,
        )

        with pytest.raises(OSError, match="no more processes"):
            ParallelExecutor(context).run()

    (events,) = (tmp_path / "run").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
