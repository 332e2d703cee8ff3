"""A policy worker answers all waiting requests of living actors with one forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sfactory.config.flags import config_of
from sfactory.inference import policy_worker
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.policy_worker import PolicySetup, PolicyWorker, run_policy_worker
from sfactory.layout import Layout
from sfactory.messages import ActReply, ActRequest
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.shared.control import Stop
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State
from sfactory.shared.trajectories import NOBODY, Slot
from sfactory.spec import EnvSpec
from tests.support.parts import VECTOR, small_run

T = 4
FLAGS = small_run(workers=2, envs=3, rollout=T, batch_size=T)
RNN: dict[str, Any] = {"recurrence": 2, "use_rnn": True, "rnn_size": 6}


class Worker:
    """A policy worker for two actors. passes: batch sizes of its forward passes. before_pass: called before each."""

    def __init__(self, spec: EnvSpec = VECTOR, **flags: Any) -> None:
        config = config_of({**FLAGS, **flags})
        torch.manual_seed(3)
        model = ActorCritic(spec, config.model)
        flat = FlatState(model)
        layout = Layout.plan(
            *(config.sampling, config.learner, "central", model.state_size), population=config.population
        )
        self.shared = SharedObjects(spec, layout, flat.block.numel())
        self.shared.weights[0].publish(flat.to_host(), 0)
        policy = ActingPolicy(spec, config.model, self.shared.weights[0], torch.device("cpu"))
        self.passes: list[int] = []
        self.before_pass: Callable[[], None] = lambda: None
        act = policy.act

        def observed_act(obs: dict[str, torch.Tensor], state: torch.Tensor) -> object:
            self.before_pass()
            self.passes.append(len(state))
            return act(obs, state)

        policy.act = observed_act  # type: ignore[assignment, method-assign]
        self.setup = PolicySetup(config, self.shared, 0, 1, 0, "cpu")
        self.turn = PolicyWorker(self.setup, policy, self.shared.status.row("sf-policy-0-0")).turn

    def slot(self, actor: int) -> Slot:
        """The first slot of an actor."""
        return self.shared.trajectories.slot(self.shared.table.slots_of(actor)[0])

    def request(self, actor: int, t: int = 0, phase: int = 0) -> None:
        """Request actions for step ``t`` of an actor's first slot."""
        self.shared.to_policies[0].put(ActRequest(actor, 0, self.slot(actor).index, t, phase, 0))

    def replies(self, actor: int) -> list[object]:
        return list(self.shared.to_actors[actor].get(0))

    def kill(self, actor: int) -> None:
        if not self.shared.to_actors[actor].incarnation:
            self.shared.to_actors[actor].begin_next_incarnation()


def test_a_request_that_arrives_while_the_worker_yields_the_core_is_part_of_the_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker()
    worker.request(0)
    monkeypatch.setattr(policy_worker, "_yield_core", lambda: worker.request(1))

    worker.turn(1.0)

    assert worker.passes == [6]
    assert worker.replies(0) == worker.replies(1) == [ActReply(0, 0)]


@pytest.mark.parametrize("dead", [False, True])
def test_without_requests_of_living_actors_there_is_no_pass(dead: bool) -> None:
    worker = Worker()
    if dead:
        worker.request(0)
        worker.kill(0)

    worker.turn(0.01)

    assert worker.passes == []
    assert worker.replies(0) == []


@pytest.mark.parametrize("during_the_pass", [False, True])
def test_the_slot_of_a_dead_actor_is_left_alone_and_the_others_are_answered(during_the_pass: bool) -> None:
    worker = Worker()
    worker.request(0)
    worker.request(1)
    dead, living = worker.slot(0), worker.slot(1)
    dead.value[...] = living.value[...] = 77.0
    if during_the_pass:
        worker.before_pass = lambda: worker.kill(0)
    else:
        worker.kill(0)

    worker.turn(1.0)

    assert worker.passes == ([6, 3] if during_the_pass else [3])
    assert (dead.value == 77.0).all()
    assert (living.value[0] != 77.0).all()
    assert (worker.replies(0), worker.replies(1)) == ([], [ActReply(0, 0)])


class RecurrentWorker(Worker):
    """A policy worker with memory, and a slot of actor 1 with the same observations each time."""

    def __init__(self, rnn_type: str = "gru") -> None:
        super().__init__(**RNN, rnn_type=rnn_type)
        self.filled = self.slot(1)
        self.filled.obs["obs"][...] = np.random.default_rng(0).normal(size=self.filled.obs["obs"].shape)
        self.filled.is_first[...] = False
        for t, rows in {0: [0, 1, 2], 2: [1], 3: [0]}.items():
            self.filled.is_first[t, rows] = True

    def answer(self, t: int, times: int = 1, at_once: bool = False) -> list[object]:
        """Answer the request of step ``t`` so many times, in one turn or in as many."""
        for number in range(1, times + 1):
            self.request(1, t, t % 2)
            if number == times or not at_once:
                self.turn(1.0)
        return self.replies(1)

    def states(self, actor: int = 1) -> npt.NDArray[Any]:
        """[2, N, S]: both states of the actor's split."""
        return np.stack([self.shared.states.of(phase, actor, 0) for phase in (0, 1)])


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "in one batch"])
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_a_request_answered_twice_leaves_the_same_states_as_one_answered_once(rnn_type: str, at_once: bool) -> None:
    once, twice = RecurrentWorker(rnn_type), RecurrentWorker(rnn_type)

    for t in range(T):
        assert once.answer(t) == [ActReply(0, t)]
        before = twice.states()
        assert twice.answer(t, times=2, at_once=at_once) == [ActReply(0, t)] * 2
        after = twice.states()

        # See NOTE [State phases]: the state before the step is unchanged, the other one is new.
        assert np.array_equal(after[t % 2], before[t % 2])
        assert np.abs(after[1 - t % 2] - before[1 - t % 2]).max() > 1e-3
        np.testing.assert_allclose(after, once.states(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(twice.filled.value, once.filled.value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(twice.filled.rnn_states, once.filled.rnn_states, rtol=1e-5, atol=1e-6)
    assert not twice.states(actor=0).any(), "states of other splits are left alone"


def test_the_phase_of_a_request_matters() -> None:
    right, wrong = RecurrentWorker(), RecurrentWorker()
    right.answer(0)
    wrong.answer(0)

    right.answer(1)
    wrong.request(1, 1, phase=0)
    wrong.turn(1.0)

    assert np.abs(wrong.filled.value[1] - right.filled.value[1]).max() > 1e-3


def test_past_versions_act_in_their_rows_with_one_pass_for_each_that_is_present() -> None:
    worker = Worker(dataclasses.replace(VECTOR, agents=("a", "b", "c")), opponent_pool=2)
    pool = worker.shared.opponents
    assert pool is not None
    weights = np.empty(pool.weights[0].nbytes, np.uint8)
    worker.shared.weights[0].read_into(weights)
    for version in (10, 20, 30):
        pool.add(weights, version, env_steps=version)
    ids = [[0, 3, 0], [3, NOBODY, 1]]
    for actor, row in enumerate(ids):
        policy_id = worker.slot(actor).policy_id
        assert policy_id is not None
        policy_id[0] = row
        worker.request(actor)

    worker.turn(1.0)

    # Versions 3 and 1 have passes of their own, which are not seen here; version 2 has none.
    assert worker.passes == [2]
    versions = [worker.slot(actor).policy_version[0].tolist() for actor in (0, 1)]
    assert versions[0] == [0, 30, 0]
    assert (versions[1][0], versions[1][2]) == (30, 10)
    assert worker.replies(0) == worker.replies(1) == [ActReply(0, 0)]


@pytest.mark.parametrize(
    ("flags", "splits"),
    [
        ({}, [10]),
        ({"policy_workers_per_policy": 2}, [6, 4]),
        ({"num_policies": 2}, [5, 5]),
        ({"num_policies": 2, "policy_mapping": "env"}, [0, 0]),
    ],
    ids=str,
)
def test_splits_that_a_worker_serves_alone_are_known_before_the_first_request(
    flags: dict[str, Any], splits: list[int]
) -> None:
    config = config_of({**FLAGS, "num_workers": 5, "num_envs_per_worker": 6, "worker_num_splits": 2, **flags})
    layout = Layout.plan(config.sampling, config.learner, "central", population=config.population)
    shared = SharedObjects(VECTOR, layout, 64)
    workers = range(len(layout.policy_worker_names))

    assert [PolicySetup(config, shared, worker, 1, 0, "cpu").whole_splits for worker in workers] == splits


def test_passes_of_all_sizes_are_recorded_before_the_worker_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    setup, row = worker.setup, worker.shared.status.row("sf-policy-0-0")
    prepared: list[tuple[int, int]] = []

    def prepare(policy: ActingPolicy, rows: int, requests: int) -> None:
        prepared.append((rows, requests))
        assert row.get("state") < State.RUNNING
        worker.shared.control.order_stop(Stop.NOW)

    monkeypatch.setattr(ActingPolicy, "prepare", prepare)
    run_policy_worker(setup, row)

    assert prepared == [(3, 2)]
