"""Weights that are not finite are saved as nothing: neither as the latest, nor as the best, nor as a milestone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfactory.errors import DivergedError
from tests.support.desk import NEVER, Desk, Saved


@pytest.mark.parametrize("due", ["latest", "best", "milestone"])
def test_weights_that_are_not_finite_are_saved_as_nothing(tmp_path: Path, due: str) -> None:
    desk = Desk(
        tmp_path,
        save_every_sec=0.0 if due == "latest" else NEVER,
        save_milestones_sec=10.0 if due == "milestone" else -1.0,
    )
    desk.learn(1.0, 10.0)
    desk.checkpointer.save(10.0)
    desk.checkpointer.after_dataset()
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    desk.train_until(20.0)
    desk.learn(float("nan"), 20.0 if due == "best" else 0.0)

    for save in (desk.checkpointer.after_dataset, desk.checkpointer.finish, desk.checkpointer.save):
        with pytest.raises(DivergedError, match="not finite"):
            save()

    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    assert desk.best() == Saved(1.0, 10.0)
