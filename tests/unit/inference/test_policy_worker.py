"""A policy worker answers in one pass what is there when it begins, and what came while it gave way."""

from __future__ import annotations

import os

import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.policy_worker import PolicyWorker
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import VECTOR

FLAGS = {"env": "any", "num_workers": 2, "num_envs_per_worker": 3, "worker_num_splits": 1, "rollout": 4}


class Desk:
    """A policy worker for two actors; ``passes`` are the batch sizes of its forward passes."""

    def __init__(self) -> None:
        config = config_of({**FLAGS, "batch_size": 4, "encoder_mlp_layers": (8,)})
        layout = Layout.plan(config.sampling, config.learner, "central")
        flat = FlatState(ActorCritic(VECTOR, config.model))
        self.shared = SharedObjects(VECTOR, layout, flat.block.numel())
        self.shared.weights[0].publish(flat.to_host(), 0)
        policy = ActingPolicy(VECTOR, config.model, self.shared.weights[0], torch.device("cpu"))
        self.passes: list[int] = []
        act = policy.act

        def counted(obs: dict[str, torch.Tensor], state: torch.Tensor) -> object:
            self.passes.append(len(state))
            return act(obs, state)

        policy.act = counted  # type: ignore[assignment, method-assign]
        setup = self.shared.policy_worker(0, 0, config, 1, 0, "cpu")
        self.worker = PolicyWorker(setup, policy, self.shared.status.row("sf-policy-0-0"))

    def ask(self, actor: int) -> None:
        """Request actions for the first step of an actor's first slot."""
        self.shared.to_policies[0].put(ActRequest(actor, 0, self.shared.table.slots_of(actor)[0], 0, 0, 0))

    def replies(self, actor: int) -> list[object]:
        """What has been sent to an actor."""
        return list(self.shared.to_actors[actor].get(0))


def test_requests_that_come_while_it_gives_way_are_part_of_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.ask(0)
    monkeypatch.setattr(os, "sched_yield", lambda: desk.ask(1))

    desk.worker.turn(1.0)

    assert desk.passes == [6]
    assert desk.replies(0) == desk.replies(1) == [ActReply(0, 0)]


def test_a_turn_without_requests_runs_no_pass() -> None:
    desk = Desk()

    desk.worker.turn(0.01)

    assert desk.passes == []
    assert desk.replies(0) == []


def test_nothing_is_done_for_an_actor_that_has_died() -> None:
    desk = Desk()
    desk.ask(0)
    desk.ask(1)
    dead = desk.shared.trajectories.slot(desk.shared.table.slots_of(0)[0])
    dead.value[...] = 77.0
    desk.shared.to_actors[0].begin_next_incarnation()

    desk.worker.turn(1.0)

    assert desk.passes == [3]
    assert (dead.value == 77.0).all()
    assert desk.replies(0) == []
    assert desk.replies(1) == [ActReply(0, 0)]


def test_of_an_actor_that_dies_during_the_pass_the_slot_stays_as_it_is_and_the_others_are_answered() -> None:
    desk = Desk()
    desk.ask(0)
    desk.ask(1)
    dead = desk.shared.trajectories.slot(desk.shared.table.slots_of(0)[0])
    living = desk.shared.trajectories.slot(desk.shared.table.slots_of(1)[0])
    dead.value[...] = living.value[...] = 77.0
    act, inbox = desk.worker._policy.act, desk.shared.to_actors[0]

    def dying(obs: dict[str, torch.Tensor], state: torch.Tensor) -> object:
        if not inbox.incarnation:
            inbox.begin_next_incarnation()
        return act(obs, state)

    desk.worker._policy.act = dying  # type: ignore[assignment, method-assign]

    desk.worker.turn(1.0)

    assert desk.passes == [6, 3]
    assert (dead.value == 77.0).all()
    assert (living.value[0] != 77.0).all()
    assert (desk.replies(0), desk.replies(1)) == ([], [ActReply(0, 0)])


def test_if_all_who_asked_have_died_nobody_is_answered() -> None:
    desk = Desk()
    desk.ask(0)
    desk.shared.to_actors[0].begin_next_incarnation()

    desk.worker.turn(1.0)

    assert desk.passes == []
