"""After its policy worker was replaced, an actor repeats the requests that were not answered, and no others."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

from sfactory.actor.actor_process import make_actor
from sfactory.actor.setup import ActorSetup
from sfactory.config.flags import config_of
from sfactory.env.factory import EnvFactory
from sfactory.env.multi_agent import AgentsEnv
from sfactory.env.multi_agent_adapters import ListedAgents
from sfactory.messages import ActReply, ActRequest, EpisodesDone
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import StatusRow
from tests.support.parts import small_layout
from tests.unit.actor.test_actor_setup import FLAGS, Record, make_splits, setup_of


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


class Sleepers:
    """Two agents, which fall asleep with the first step. stamps: when the timeout of each step began."""

    num_agents = 2
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, row: StatusRow | None = None) -> None:
        self._row, self.stamps = row, list[float]()

    def reset(self, seed: int | None = None) -> Any:
        return [np.ones(2, np.float32)] * 2, [{}, {}]

    def step(self, _actions: Any) -> Any:
        assert self._row is not None
        self.stamps.append(self._row.get("busy_since"))
        return [np.ones(2, np.float32)] * 2, [1.0] * 2, [False] * 2, [False] * 2, [{"is_active": False}] * 2


def test_each_step_in_which_all_agents_sleep_has_its_own_timeout() -> None:
    spec, config = ListedAgents(Sleepers()).spec, config_of(FLAGS)
    shared = SharedObjects(spec, small_layout(num_actors=1, rows=2, agents=2, slots_per_split=1), weight_bytes=64)
    setup, row = ActorSetup(config, shared, 0, 5, 0), shared.status.row("sf-actor-0")
    env = Sleepers(row)

    @dataclasses.dataclass(frozen=True)
    class Factory(EnvFactory):
        def agents(self) -> AgentsEnv:
            return ListedAgents(env)

    vars(setup)["factory"] = Factory("any")
    actor = make_actor(setup, make_splits(setup, row), row)
    actor.turn(0)
    setup.inbox.put(ActReply(0, 0))
    actor.turn(0)
    setup.inbox.put(ActReply(0, 1))

    actor.turn(0)

    assert len(env.stamps) == 4
    assert len(set(env.stamps)) == 4
