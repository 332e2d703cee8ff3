"""Flags limit trajectories in flight and delay actors and envs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sfactory.actor.actor_process import make_actor
from sfactory.actor.setup import close_envs, make_splits
from sfactory.actor.split import Split
from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.inference.acting_policy import ActingPolicy
from sfactory.inference.policy_worker import PolicyWorker
from sfactory.layout import Layout
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.shared.slots import SlotState
from sfactory.spec import DiscreteHead, EnvSpec, TensorSpec
from sfactory.supervise.shared_objects import SharedObjects

BANDIT = "sfactory_envs.synthetic.bandit:Bandit"
SPEC = EnvSpec(obs=(("obs", TensorSpec((4,), "float32")),), actions=(DiscreteHead("action", 4),))
SIZES: dict[str, Any] = {
    "env": BANDIT,
    "num_workers": 4,
    "num_envs_per_worker": 4,
    "worker_num_splits": 2,
    "rollout": 8,
    "batch_size": 64,
    "encoder_mlp_layers": (8,),
    "normalize_input": False,
}
TURNS = 500


def config_with(**flags: Any) -> Config:
    return config_of({**SIZES, **flags})


def shared_objects_of(config: Config) -> SharedObjects:
    layout = Layout.plan(config.sampling, config.learner, "central")
    return SharedObjects(SPEC, layout, flat_bytes(ActorCritic(SPEC, config.model)))


class Stage:
    """One actor and one policy worker of ``config`` that take turns. No learner takes the trajectories."""

    def __init__(self, config: Config, actor: int = 0) -> None:
        shared = self.shared = shared_objects_of(config)
        shared.weights[0].publish(FlatState(ActorCritic(SPEC, config.model)).to_host(), 0)
        policy_setup = shared.policy_worker(0, 0, config, 1, 0, "cpu")
        policy = ActingPolicy(SPEC, config.model, shared.weights[0], torch.device("cpu"))
        self._policy_worker = PolicyWorker(policy_setup, policy, shared.status.row("sf-policy-0-0"))
        setup, self.row = shared.actor(actor, config, 1, 0), shared.status.row(f"sf-actor-{actor}")
        self.splits: list[Split] = make_splits(setup, self.row)
        self._actor = make_actor(setup, self.splits, config.model, self.row)
        self.slots = shared.table.slots_of(actor)

    def turn(self) -> None:
        self._actor.turn(0)
        self._policy_worker.turn(0)

    def collected(self) -> tuple[int, int]:
        """How many slots are READY and how many FILLING after many turns."""
        for _ in range(TURNS):
            self.turn()
        states = [self.shared.table.state(slot) for slot in self.slots]
        return states.count(SlotState.READY), states.count(SlotState.FILLING)

    def close(self) -> None:
        close_envs(self.splits)


@pytest.fixture
def stages() -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.close()


@pytest.mark.parametrize(("limit", "ready"), [(0, 6), (1, 1), (2, 2), (3, 3), (5, 5), (6, 6), (7, 6)])
def test_an_actor_has_no_more_trajectories_in_flight_than_the_flag_says(
    stages: list[Stage], limit: int, ready: int
) -> None:
    # 2 splits of 3 slots each: the actor itself has 6.
    config = config_with(max_sample_requests_in_flight_per_worker=limit, min_traj_buffers_per_worker=3)
    stages.append(Stage(config))

    assert stages[0].collected() == (ready, 0)


def test_a_trajectory_that_is_given_back_makes_room_for_one_more(stages: list[Stage]) -> None:
    stages.append(Stage(config_with(max_sample_requests_in_flight_per_worker=2, min_traj_buffers_per_worker=3)))
    stage = stages[0]
    stage.collected()
    ready = [slot for slot in stage.slots if stage.shared.table.state(slot) is SlotState.READY]

    stage.shared.table.release(ready[0], 0)

    assert stage.collected() == (2, 0)
    assert sum(stage.shared.table.generation(slot) for slot in stage.slots) == 3


@pytest.mark.parametrize(
    ("flags", "waits"),
    [
        ({}, [0.0, 0.0, 0.0, 0.0]),
        ({"decorrelate_experience_max_seconds": 10.0}, [0.0, 2.5, 5.0, 7.5]),
        ({"decorrelate_experience_max_seconds": 10.0, "num_workers": 2}, [0.0, 5.0]),
        ({"decorrelate_experience_max_seconds": 10.0, "benchmark": True}, [0.0] * 4),
        ({"decorrelate_experience_max_seconds": 10.0, "serial_mode": True}, [0.0] * 4),
    ],
)
def test_workers_wait_their_share_except_in_benchmarks_and_serial_mode(
    flags: dict[str, Any], waits: list[float]
) -> None:
    config = config_with(**flags)
    shared = shared_objects_of(config)

    assert [shared.actor(actor, config, 1, 0).first_wait_s for actor in range(len(waits))] == waits


@pytest.mark.parametrize(
    ("flags", "lengths"),
    [
        ({}, [0, 0, 0, 0]),
        ({"decorrelate_envs_on_one_worker": True}, [0, 8, 16, 24]),
        ({"decorrelate_envs_on_one_worker": True, "benchmark": True}, [0, 0, 0, 0]),
    ],
)
def test_env_i_of_a_worker_begins_i_rollouts_later_unless_a_benchmark_measures(
    stages: list[Stage], flags: dict[str, Any], lengths: list[int]
) -> None:
    # One episode of 30 steps ends, in each env, after as many steps of the trajectories as are left of it.
    stages.append(Stage(config_with(env_kwargs={"length": 30}, min_traj_buffers_per_worker=4, **flags)))

    stages[0].collected()

    shared = stages[0].shared
    slots = [shared.trajectories.slot(slot) for slot in shared.table.slots_of_split(0, 0)]
    slots_of_other = [shared.trajectories.slot(slot) for slot in shared.table.slots_of_split(0, 1)]
    first_ends = []
    for own in (slots, slots_of_other):
        for env in range(2):
            terminated = [bool(done) for slot in own for done in slot.terminated[:, env]]
            first_ends.append(terminated.index(True) + 1)
    assert first_ends == [30 - steps for steps in lengths]
