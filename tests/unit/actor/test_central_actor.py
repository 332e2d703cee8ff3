"""After its policy worker was replaced, an actor repeats the requests that were not answered, and no others."""

from __future__ import annotations

import pytest

from sfactory.actor.actor_process import make_actor
from sfactory.messages import ActReply, ActRequest, EpisodesDone
from tests.unit.actor.test_actor_setup import Record, make_splits, setup_of


class ActorWithChannels:
    """An actor with two splits, and the channels of its policy worker."""

    def __init__(self) -> None:
        setup, row = setup_of(record := Record())
        actor = make_actor(setup, make_splits(setup, row), row)
        self.turn, self.report, self.envs = actor.turn, actor.report, record.envs
        self.to_policy, self.replies, self.to_main = setup.to_policies[0], setup.inbox, setup.shared.actors_to_main

    def requests(self) -> list[tuple[int, int]]:
        """(split, t) of the requests to the current policy worker."""
        found = self.to_policy.get(0)
        assert all(isinstance(request, ActRequest) for request in found)
        return [(request.split, request.t) for request in found]


def test_unanswered_requests_are_sent_again_once() -> None:
    actor = ActorWithChannels()
    actor.turn(0)
    actor.to_policy.begin_next_incarnation()

    actor.turn(0)
    actor.turn(0)

    assert actor.requests() == [(0, 0), (1, 0)]


def test_requests_that_the_dead_worker_had_answered_are_not_sent_again() -> None:
    actor = ActorWithChannels()
    actor.turn(0)
    actor.replies.put(ActReply(0, 0))
    actor.to_policy.begin_next_incarnation()

    actor.turn(0)

    # Split 0 has taken its step and requests the next; split 1 repeats the request for the first.
    assert actor.requests() == [(0, 1), (1, 0)]


@pytest.mark.parametrize("incarnations", [1, 2])
def test_requests_to_the_new_worker_are_not_repeated(incarnations: int) -> None:
    actor = ActorWithChannels()
    for _ in range(incarnations):
        actor.to_policy.begin_next_incarnation()

    actor.turn(0)
    actor.turn(0)

    assert actor.requests() == [(0, 0), (1, 0)]


def test_episodes_of_an_unfinished_slot_are_reported_at_the_end() -> None:
    actor = ActorWithChannels()
    actor.envs[1].script = [(1, "terminated")]
    actor.turn(0)
    actor.replies.put(ActReply(0, 0))
    actor.turn(0)
    assert not actor.to_main.get(0)

    actor.report()

    (done,) = actor.to_main.get(0)
    assert isinstance(done, EpisodesDone)
    assert done.lengths.tolist() == [1]
