"""The seed of a run decides its first weights and all actions, differently in each process, session and attempt."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sfactory.actor.actor_process import run_actor
from sfactory.actor.setup import ActorSetup
from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.env.factory import EnvFactory
from sfactory.inference.policy_worker import PolicySetup, run_policy_worker
from sfactory.layout import Layout
from sfactory.learner.learner_process import run_learner
from sfactory.learner.setup import LearnerSetup
from sfactory.messages import ActReply, ActRequest, SlotFreed
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.shared.control import Stop
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from tests.support.parts import SCALAR, small_run
from tests.support.processes import eventually
from tests.support.scripted_env import ScriptedEnv

END_S = 60.0
FLAGS = small_run(workers=2, envs=16, rollout=4, batch_size=64, policy_workers_per_policy=2)
Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Scripted(EnvFactory):
    """Envs that show the same numbers with any seed, so that only actions differ."""

    def __call__(self, render_mode: str | None = None) -> ScriptedEnv:
        """One env."""
        return ScriptedEnv([])


def shared_objects_of(config: Config, inference: Any = "central") -> SharedObjects:
    layout = Layout.plan(config.sampling, config.learner, inference)
    return SharedObjects(SCALAR, layout, flat_bytes(ActorCritic(SCALAR, config.model)))


@pytest.fixture(autouse=True)
def torch_generator() -> Iterator[None]:
    """Restores the generator that workers seed in this process."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def first_weights(seed: int) -> Array:
    """The weights that a learner publishes before it learns."""
    config = config_of(FLAGS)
    shared = shared_objects_of(config)
    shared.control.order_stop(Stop.NOW)
    run_learner(LearnerSetup(config, shared, 0, seed, "cpu", 1, None), shared.status.row("sf-learner-0"))
    weights = np.empty(shared.weights[0].nbytes, np.uint8)
    shared.weights[0].read_into(weights)
    return weights


@contextlib.contextmanager
def running(shared: SharedObjects, target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Runs a worker in a thread until the end of the context."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        shared.control.order_stop(Stop.NOW)
        shared.to_actors[0].put(SlotFreed(0))  # wakes up an actor
        thread.join(END_S)


def actions_of_policy_worker(weights: Array, seed: int, worker: int, generation: int, _: int) -> Array:
    """The answers of a policy worker to four requests of 16 rows."""
    config = config_of(FLAGS)
    shared = shared_objects_of(config)
    shared.weights[0].publish(weights, 0)
    setup = PolicySetup(config, shared, worker, seed, generation, "cpu")
    with running(shared, run_policy_worker, setup, shared.status.row(f"sf-policy-0-{worker}")):
        for t in range(4):
            setup.inbox.put(ActRequest(0, 0, 0, t, t % 2, 0))
            assert list(shared.to_actors[0].get(END_S)) == [ActReply(0, t)]
    return shared.trajectories.slot(0).actions["action"]


def actions_of_local_actor(weights: Array, seed: int, actor: int, generation: int, attempt: int) -> Array:
    """The actions of an actor in its first trajectory."""
    config = config_of({**FLAGS, "policy_workers_per_policy": 1, "inference": "local"})
    shared = shared_objects_of(config, "local")
    shared.weights[0].publish(weights, 0)
    setup = ActorSetup(config, shared, actor, seed, generation, attempt)
    vars(setup)["factory"] = Scripted("any")
    slot = shared.table.slots_of(actor)[0]
    with running(shared, run_actor, setup, None, shared.status.row(f"sf-actor-{actor}")):
        assert eventually(lambda: shared.table.state(slot) is SlotState.READY, END_S)
    return shared.trajectories.slot(slot).actions["action"]


def test_seed_decides_the_first_weights() -> None:
    first, again, other = (first_weights(seed) for seed in (5, 5, 6))

    assert np.array_equal(first, again)
    # Biases start at 0, and statistics at 0 and 1, with any seed.
    assert np.mean(first != other) > 0.1


# Each place: seed, worker, generation, attempt.
@pytest.mark.parametrize(
    ("actions_of", "places"),
    [
        (actions_of_policy_worker, [(5, 0, 0, 0), (6, 0, 0, 0), (5, 1, 0, 0), (5, 0, 4096, 0), (5, 1, 4096, 0)]),
        (actions_of_local_actor, [(5, 0, 0, 0), (6, 0, 0, 0), (5, 1, 0, 0), (5, 0, 4096, 0), (5, 0, 0, 1)]),
    ],
    ids=["policy worker", "local actor"],
)
def test_each_place_draws_its_own_actions_again(
    actions_of: Callable[..., Array], places: list[tuple[int, int, int, int]]
) -> None:
    weights = first_weights(1)

    *drawn, again = [tuple(actions_of(weights, *place).flat) for place in [*places, places[-1]]]

    assert drawn[-1] == again
    assert len(set(drawn)) == len(places)
    assert all(len(set(actions)) > 3 for actions in drawn)
