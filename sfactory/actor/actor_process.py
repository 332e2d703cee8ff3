"""Room: an actor's life, from birth to stop. In: ActorSetup. Out: nothing but trajectories."""

from __future__ import annotations

import os
from typing import Protocol

from threadpoolctl import threadpool_limits

from sfactory.actor.central_actor import ActorWorker
from sfactory.actor.setup import ActorSetup, close_envs, make_splits
from sfactory.actor.split import Split
from sfactory.actor.trajectory_output import TrajectoryOutput
from sfactory.clock import BLOCK_S
from sfactory.config.schema import ModelConfig
from sfactory.env.lifecycle import see_gpu_of
from sfactory.seeds import seed_libraries
from sfactory.shared.status import State, StatusRow


class Actor(Protocol):
    """What samples: by asking a policy worker, or with a policy of its own."""

    def turn(self, timeout: float) -> None:
        """Do what can be done, waiting up to ``timeout`` seconds for what it needs."""


def run_actor(setup: ActorSetup, model: ModelConfig, cores: frozenset[int] | None, row: StatusRow) -> None:
    """Make the envs, then work until a stop is ordered. ``cores``: those to stay on, if not all."""
    row.begin_work()
    see_gpu_of(setup.actor, setup.sampling.actor_worker_gpus)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    _limit_threads(setup)
    seed_libraries(setup.libraries_seed())
    splits = make_splits(setup, row)
    _limit_threads(setup)  # of the libraries, too, that came with the envs
    row.set("state", State.RUNNING)
    row.set("busy_since", 0)
    try:
        if not setup.to_policies:
            _begin_acting(setup)
        actor = make_actor(setup, splits, model, row)
        while not setup.control.stopping:
            actor.turn(BLOCK_S)
    finally:
        close_envs(splits)


def make_actor(setup: ActorSetup, splits: list[Split], model: ModelConfig, row: StatusRow) -> Actor:
    """The actor of these splits. With local inference it waits for the first weights (or for a stop)."""
    output = TrajectoryOutput(
        setup.actor,
        setup.trajectories,
        setup.table,
        setup.to_learners,
        setup.to_main,
        setup.sampling.max_sample_requests_in_flight_per_worker,
    )
    if setup.inbox.incarnation:
        output.announce_again()
    if setup.to_policies:
        return ActorWorker(setup, splits, output, row)
    # Imported here because actors under central inference do without torch.
    import torch

    from sfactory.actor.local_actor import LocalActor
    from sfactory.inference.acting_policy import ActingPolicy

    policies = [ActingPolicy(setup.spec, model, weights, torch.device("cpu")) for weights in setup.weights]
    for policy in policies:
        policy.wait_for_weights(setup.control)
    return LocalActor(setup, splits, output, row, policies)


def _limit_threads(setup: ActorSetup) -> None:
    """Let the libraries that are loaded by now compute on one thread each, if that is wanted."""
    if setup.sampling.force_envs_single_thread:
        threadpool_limits(1)  # for the whole life of the process, and so not used as a context


def _begin_acting(setup: ActorSetup) -> None:
    """Make this process one that draws actions."""
    import torch

    torch.manual_seed(setup.acting_seed())
    torch.set_num_threads(1)
