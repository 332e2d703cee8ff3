"""A policy that a run waits for although nobody plays it is told of, once."""

from __future__ import annotations

import pytest

from sfactory.supervise import monitors as room
from sfactory.supervise.monitors import IdlePolicyWarning


class Run:
    """Two policies, the first of which is done; a clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.done, self.moment = {0: 100, 1: 0}, {0: True, 1: False}, 0.0
        monkeypatch.setattr(room, "now", lambda: self.moment)
        self.watch = IdlePolicyWarning((0, 1), self.steps.__getitem__, self.done.__getitem__)

    def look_after(self, seconds: float) -> None:
        self.moment += seconds
        self.watch.look()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_who_learns_nothing_while_others_are_done_is_told_of_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    for seconds in (0.0, 20.0, 20.0, 20.0, 20.0):
        run.look_after(seconds)

    assert [record.getMessage()[:28] for record in caplog.records] == ["the run waits for policy 1, "]


def test_who_still_learns_is_not_told_of(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(10):
        run.steps[1] += 1
        run.look_after(20.0)

    assert not caplog.records


def test_as_long_as_nobody_is_done_nobody_is_waited_for(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.done[0] = False
    for _ in range(10):
        run.look_after(20.0)

    assert not caplog.records
