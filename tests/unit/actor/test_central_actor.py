"""After its policy worker was replaced, an actor repeats the requests that were not answered, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from sfactory.actor.actor_process import make_actor
from sfactory.actor.split import Split
from sfactory.config.flags import config_of
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import SCALAR
from tests.support.scripted_env import ScriptedEnv

FLAGS: dict[str, Any] = {
    "env": "any",
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "worker_num_splits": 2,
    "rollout": 4,
    "batch_size": 4,
}


class ActorWithChannels:
    """An actor with two splits, and the channels of its policy worker."""

    def __init__(self) -> None:
        config = config_of(FLAGS)
        layout = Layout.plan(config.sampling, config.learner, "central")
        shared = SharedObjects(SCALAR, layout, 64)
        splits = [
            Split.of_envs(index, [ScriptedEnv([]) for _ in range(layout.rows)], SCALAR, layout.rollout)
            for index in range(layout.splits)
        ]
        for split in splits:
            split.reset([1, 2], "test")
        setup = shared.actor(0, config, 1, 0)
        self.turn = make_actor(setup, splits, config.model, shared.status.row("sf-actor-0")).turn
        self.to_policy, self.replies = shared.to_policies[0], shared.to_actors[0]

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
