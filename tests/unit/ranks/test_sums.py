"""Sums on a GPU are cut off where a rank is lost, and what was computed from such a sum is neither used nor saved."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.errors import RankLost
from sfactory.learner.checkpointing import payload_of
from sfactory.learner.minibatches import Dataset
from sfactory.ranks.sums import SumWatch
from tests.support.equality import assert_same
from tests.support.lone_learner import LoneLearner
from tests.support.long import long
from tests.support.ranks import LOST, LateSums

TIMEOUT_S = 60.0


class Events:
    """Stand for CUDA events, each recorded after a sum, which ends if ``ends``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: set[object] = set()
        events = self

        class Event:
            def record(self) -> None:
                events.ended.discard(self)

            def query(self) -> bool:
                return self in events.ended

        monkeypatch.setattr(torch.cuda, "Event", Event)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    return Events(monkeypatch)


class Watched(SumWatch):
    """A watch, and what it asks for. silent_s: for how long rank 1 has been silent; None if it is not."""

    def __init__(self) -> None:
        super().__init__(TIMEOUT_S, self.blamed, self.cut_off, lambda: self.stopped)
        self.silent_s: float | None = None
        self.stopped = False
        self.aborts = 0

    def blamed(self, silent_s: float) -> str:
        return LOST if self.silent_s is not None and self.silent_s > silent_s else ""

    def cut_off(self) -> None:
        self.aborts += 1
        self._under_way.clear()


def test_sums_that_end_are_never_cut_off_and_their_events_are_used_again(events: Events) -> None:
    watch = Watched()
    for second in range(0, 1000, 50):  # each before the time-out after the one before it
        watch.look(float(second))
        watch.follow()
        watch.follow()
        watch.look(second + 40.0)
        events.ended |= {*watch._under_way}
        watch.look(second + 45.0)
        watch.confirm()

    watch.settle()
    assert len(watch._idle) == 2
    assert not watch.aborts


@pytest.mark.parametrize(
    ("silent_s", "stopped", "seconds", "cause"),
    [
        (None, False, 59.0, ""),
        (None, False, 61.0, "a rank was lost, although all give signs of life; a sum had not ended after 61 s"),
        (10.0, False, 59.0, ""),
        (10.0, False, 61.0, LOST),
        (61.0, False, 5.0, LOST),  # the rank died before this sum began
        (3.0, True, 5.0, ""),
        (4.0, True, 5.0, LOST),  # main allows 8 s to save
        (4.0, True, 0.2, ""),
    ],
)
def test_a_sum_that_does_not_end_is_cut_off_and_the_rank_that_is_missing_is_named(
    silent_s: float | None, stopped: bool, seconds: float, cause: str, events: Events
) -> None:
    watch = Watched()
    watch.look(100.0)
    watch.follow()
    watch.silent_s, watch.stopped = silent_s, stopped

    watch.look(100.0 + seconds)

    assert watch.loss.startswith(cause)
    assert bool(watch.loss) == bool(cause)
    if cause:
        with pytest.raises(RankLost, match=cause):
            watch.settle()
        assert watch.aborts == 1


def test_waits_for_sums_end_where_the_device_has_failed(events: Events) -> None:
    def failed(silent_s: float) -> str:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nfor debugging")

    watch = SumWatch(TIMEOUT_S, failed, lambda: None, lambda: False)
    watch.follow()

    watch.begin(torch.device("cpu"))

    with pytest.raises(RankLost, match="sums on cpu are not watched any more: CUDA error: an illegal memory access"):
        watch.settle()


def test_a_process_ends_where_the_gpu_does_not_leave_a_sum(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("sfactory.ranks.sums.os._exit", ended.append)
    watch = SumWatch(0.5, lambda silent_s: LOST, lambda: None, lambda: False)
    watch.follow()

    watch.look(1.0)

    assert ended == [70]


FLAGS: dict[str, Any] = {
    "num_epochs": 2,
    "num_batches_per_epoch": 2,
    "normalize_input": True,
    "normalize_returns": True,
    "with_vtrace": False,
}
DATASETS = 2


def learned(payload: Mapping[str, Any]) -> list[object]:
    return [dict(payload["model"]), payload["optimizer"]["state"], payload["train_step"], payload["env_steps"]]


def learn(learner: LoneLearner, datasets: int) -> None:
    for _ in range(datasets):
        learner.learn()


class Whole(LoneLearner):
    """A learner that loses no sum. states: what it has learned after each number of updates; sums: all of them."""

    def __init__(self, **flags: Any) -> None:
        ranks = LateSums()
        super().__init__(ranks=ranks, **flags)
        self.states: dict[int, list[object]] = {}
        one_pass = self.learning.one_pass

        def passed(dataset: Dataset) -> bool:
            more = one_pass(dataset)
            self.note()
            return more

        self.learning.one_pass = passed  # type: ignore[method-assign]
        self.note()
        learn(self, DATASETS)
        self.sums = ranks.count

    def note(self) -> None:
        state = copy.deepcopy(learned(payload_of(self.learning.trainer, self.learning.progress)))
        self.states[self.learning.trainer.train_step] = state


@pytest.mark.parametrize(
    "flags", [{}, long({"optimizer": "rmsprop", "use_target_net": True, "with_vtrace": True})], ids=str
)
def test_what_was_learned_before_a_sum_that_was_cut_off_is_saved(flags: dict[str, Any], tmp_path: Path) -> None:
    whole, found = Whole(**FLAGS | flags), set[int]()
    for lost_at in range(0, whole.sums, 2):
        learner = LoneLearner(tmp_path / str(lost_at), ranks=LateSums(lost_at), **FLAGS | flags)

        with pytest.raises(RankLost, match=LOST):
            learn(learner, DATASETS + 1)
        with pytest.raises(RankLost, match=LOST):
            learner.learning.finish(save=True)

        saved = learner.saved()
        assert saved is not None
        assert_same(learned(saved), whole.states[saved["train_step"]])
        found.add(saved["train_step"])
    assert len(found) > 2


def test_a_sum_that_is_cut_off_after_the_last_update_is_found_before_the_end_is_saved(tmp_path: Path) -> None:
    whole, ranks = Whole(**FLAGS), LateSums()
    learner = LoneLearner(tmp_path, ranks=ranks, **FLAGS)
    learn(learner, DATASETS)
    ranks.lost_at = ranks.count - 1  # the last one, of observations

    with pytest.raises(RankLost, match=LOST):
        learner.learning.finish(save=True)

    saved = learner.saved()
    assert saved is not None
    assert_same(learned(saved), whole.states[saved["train_step"]])
