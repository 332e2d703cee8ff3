"""Ranks open the next dataset together, or end together."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from sfactory.errors import LearnerFailed, RankLost
from sfactory.ranks.agreement import Agreement, Apart
from sfactory.ranks.ranks import Ranks
from tests.support.processes import eventually


class Scripted(Ranks):
    """A rank of two: the other one says ``others``, word by word."""

    world = 2

    def __init__(self, *others: tuple[str, float, int]) -> None:
        self.others, self.said = list(others), list[list[object]]()
        self.is_lost, self.ends = False, 0
        self.calls, self.hears_a_call = 0, False

    def call(self) -> None:
        self.calls += 1

    @property
    def is_called(self) -> bool:
        return self.hears_a_call

    def meet(self, word: str, give_up: Callable[[], bool]) -> list[str]:
        if not word:  # at the end
            self.ends += 1
            if self.is_lost:
                raise RankLost("rank 1 did not come")
            return []
        self.said.append(json.loads(word))
        return [word, json.dumps([*self.others.pop(0), *self.said[-1][3:]])]


def test_a_rank_without_a_dataset_meets_no_other_unless_it_wants_to_end() -> None:
    ranks, stop = Scripted(("", 2.0, 7), ("", 2.0, 0)), 0
    agreement = Agreement(ranks, lambda: stop, lambda: 1.0, lambda: 7)

    assert not agreement.may_open(False, "")
    assert ranks.said == []
    assert agreement.may_open(True, "")
    assert agreement.train_seconds == 2.0  # the most of all: a limit is reached by all at once
    stop = 1
    assert not agreement.may_open(False, "")
    assert agreement.end == "rank 0: it was stopped"
    agreement.require_own_end()
    assert ranks.ends == 1
    ranks.is_lost = True  # the signal came from torchrun, because the other one has died
    with pytest.raises(RankLost, match="rank 1 did not come"):
        agreement.require_own_end()


def test_all_end_with_one_whose_hook_failed_and_say_so() -> None:
    agreement = Agreement(Scripted(("hook failed", 1.0, 7)), lambda: 0, lambda: 1.0, lambda: 7)

    assert not agreement.may_open(True, "")
    with pytest.raises(RankLost, match="rank 1: hook failed"):
        agreement.require_own_end()


def test_all_end_as_at_a_limit_with_one_whose_observer_has_ended_the_run() -> None:
    first = Scripted(("", 1.0, 7), ("", 1.0, 7))
    ending = Agreement(first, lambda: 1, lambda: 1.0, lambda: 7, has_enough=lambda: True)
    assert not ending.may_open(False, "")
    assert ending.end
    ending.require_own_end()
    word = str(first.said[0][0])

    hearing = Agreement(Scripted((word, 1.0, 7)), lambda: 0, lambda: 1.0, lambda: 7)
    assert not hearing.may_open(True, "")
    assert hearing.end == f"rank 1: {word}"
    hearing.require_own_end()

    with_another_reason = Agreement(Scripted((word, 1.0, 7)), lambda: 0, lambda: 1.0, lambda: 7)
    assert not with_another_reason.may_open(True, "hook failed")
    assert with_another_reason.end == "rank 0: hook failed"
    others_failed = Agreement(Scripted(("hook failed", 1.0, 7)), lambda: 1, lambda: 1.0, lambda: 7, None, lambda: True)
    assert not others_failed.may_open(True, "")
    assert others_failed.end == "rank 1: hook failed"


def test_unequal_weights_are_noticed() -> None:
    agreement = Agreement(Scripted(("", 1.0, 8)), lambda: 0, lambda: 1.0, lambda: 7)

    with pytest.raises(LearnerFailed, match="7, 8"):
        agreement.may_open(True, "")


def test_ranks_that_learn_apart_meet_after_some_datasets_or_to_end_and_join_what_they_learned() -> None:
    ranks, stop, joined = Scripted(("", 3.0, 7), ("", 3.0, 0), ("", 3.0, 0)), 0, list[list[list[int]]]()
    apart = Apart(2, lambda: [len(ranks.said)], lambda: None, lambda counts: joined.append([*map(list, counts)]), True)
    agreement = Agreement(ranks, lambda: stop, lambda: 1.0, lambda: 7, apart)

    for meetings in (1, 1, 2, 2):
        assert agreement.may_open(True, "")
        assert len(ranks.said) == meetings
    assert joined == [[[1], [1]]]  # nothing was learned before the first meeting
    stop = 1
    assert not agreement.may_open(False, "")
    assert joined[1:] == [[[2], [2]]]
    assert agreement.end
    assert ranks.calls == 1


@pytest.mark.parametrize("waits", [True, False])
def test_ranks_that_wait_meet_before_the_next_dataset_is_there(waits: bool) -> None:
    ranks = Scripted(("", 3.0, 7), ("", 3.0, 0))
    apart = Apart(2, lambda: [0], lambda: None, lambda counts: None, waits)
    agreement = Agreement(ranks, lambda: 0, lambda: 1.0, lambda: 7, apart)

    assert not agreement.may_open(False, "")
    assert len(ranks.said) == 0  # nothing was learned
    opened = 0
    while opened < 2:
        opened += agreement.may_open(True, "")
        assert not agreement.may_open(False, "")
    assert len(ranks.said) == 1 + waits
    assert agreement.may_open(True, "")
    assert len(ranks.said) == 2


def test_a_rank_that_waits_for_no_other_takes_over_the_mean_when_it_has_come() -> None:
    class Slow(Scripted):
        answers = threading.Semaphore(0)
        comes_if_called = False

        def call(self) -> None:
            super().call()
            if self.comes_if_called:
                self.answers.release()

        def meet(self, word: str, give_up: Callable[[], bool]) -> list[str]:
            assert self.answers.acquire(timeout=30)
            return super().meet(word, give_up)

    def come(seconds: float) -> None:
        """The other rank comes, and has trained for so long, which is known once the result is taken over."""
        assert agreement.train_seconds < seconds
        ranks.answers.release()
        assert eventually(lambda: not agreement.may_open(False, "") and agreement.train_seconds == seconds, 30.0, 0.0)

    ranks, stop, joined = Slow(*[("", 3.0, 7), ("", 4.0, 0), ("", 5.0, 0), ("", 6.0, 0)]), 0, list[object]()
    apart = Apart(2, lambda: [0], lambda: joined.append("exchanged"), lambda _: joined.append("joined"), False)
    agreement = Agreement(ranks, lambda: stop, lambda: 1.0, lambda: 7, apart)

    assert [agreement.may_open(True, "") for _ in range(5)] == [True] * 5  # the first meeting is under way meanwhile
    come(3.0)
    assert joined == []  # no rank had opened a dataset before it
    assert agreement.may_open(True, "")
    come(4.0)
    assert joined == ["exchanged", "joined"]
    assert agreement.may_open(True, "")  # the second dataset since the last meeting began
    assert len(ranks.said) == 2
    assert agreement.may_open(True, "")
    stop = 1
    ranks.comes_if_called = True
    assert not agreement.may_open(True, "")  # the meeting under way is over, and knew of no wish to end
    ends = [agreement.end]
    assert not agreement.may_open(True, "")
    assert [*ends, agreement.end] == ["", "rank 0: it was stopped"]
    assert len(joined) == 6


def test_a_rank_that_another_calls_comes_to_the_meeting_before_it_is_due() -> None:
    ranks = Scripted(("", 1.0, 7), ("it was stopped", 1.0, 0))
    agreement = Agreement(
        ranks, lambda: 0, lambda: 1.0, lambda: 7, Apart(100, lambda: [1], lambda: None, lambda counts: None, True)
    )

    assert agreement.may_open(True, "")
    assert agreement.may_open(True, "")
    assert len(ranks.said) == 1
    ranks.hears_a_call = True
    assert not agreement.may_open(False, "")  # although it has no dataset
    assert agreement.end == "rank 1: it was stopped"
    assert ranks.calls == 0
