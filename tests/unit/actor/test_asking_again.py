"""An actor whose policy worker was replaced asks again what was not answered, and nothing else."""

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


class Desk:
    """An actor with two splits, and the rings of its policy worker."""

    def __init__(self) -> None:
        config = config_of(FLAGS)
        layout = Layout.plan(config.sampling, config.learner, "central")
        self.shared = SharedObjects(SCALAR, layout, 64)
        splits = [
            Split.of_envs(index, [ScriptedEnv([]) for _ in range(layout.rows)], SCALAR, layout.rollout)
            for index in range(layout.splits)
        ]
        for split in splits:
            split.reset([1, 2], "test")
        setup = self.shared.actor(0, config, 1, 0)
        self.actor = make_actor(setup, splits, config.model, self.shared.status.row("sf-actor-0"))

    def requests(self) -> list[tuple[int, int]]:
        """(split, t) of what is in the policy worker's present ring."""
        found = self.shared.to_policies[0].get(0)
        assert all(isinstance(request, ActRequest) for request in found)
        return [(request.split, request.t) for request in found]

    def answer(self, split: int, t: int) -> None:
        """Do what a policy worker does, for actions 0."""
        self.shared.to_actors[0].put(ActReply(split, t))


def test_what_was_not_answered_is_asked_again_once() -> None:
    desk = Desk()
    desk.actor.turn(0)
    desk.shared.to_policies[0].begin_next_incarnation()

    desk.actor.turn(0)
    desk.actor.turn(0)

    assert desk.requests() == [(0, 0), (1, 0)]


def test_what_the_dead_one_had_answered_is_not_asked_again() -> None:
    desk = Desk()
    desk.actor.turn(0)
    desk.answer(0, 0)
    desk.shared.to_policies[0].begin_next_incarnation()

    desk.actor.turn(0)

    # Split 0 has taken its step and asks for the next; split 1 asks once more for the first.
    assert desk.requests() == [(0, 1), (1, 0)]


@pytest.mark.parametrize("incarnations", [1, 2])
def test_a_split_that_has_asked_the_new_one_is_not_asked_for_again(incarnations: int) -> None:
    desk = Desk()
    for _ in range(incarnations):
        desk.shared.to_policies[0].begin_next_incarnation()

    desk.actor.turn(0)
    desk.actor.turn(0)

    assert desk.requests() == [(0, 0), (1, 0)]
