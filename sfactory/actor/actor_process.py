"""The main function of an actor process."""

from __future__ import annotations

import contextlib
import os

from threadpoolctl import threadpool_limits

from sfactory.actor.base_actor import Actor
from sfactory.actor.central_actor import CentralActor
from sfactory.actor.setup import ActorSetup, make_splits
from sfactory.actor.split import Split
from sfactory.clock import BLOCK_S
from sfactory.env.lifecycle import see_gpu_of
from sfactory.seeds import Branch, seed_libraries
from sfactory.shared.status import State, StatusRow


def run_actor(setup: ActorSetup, cores: frozenset[int] | None, row: StatusRow) -> None:
    """Make the envs, then sample until a stop is ordered. ``cores``: pins the process to these, if not None."""
    row.begin_work()
    see_gpu_of(setup.actor, setup.config.sampling.actor_worker_gpus)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    _limit_threads(setup)
    seed_libraries(setup.libraries_seed())
    envs = contextlib.ExitStack()  # closed below alone: after a failed first reset close() may not return
    splits = make_splits(setup, row, envs)
    _limit_threads(setup)  # again, for libraries that came with the envs
    row.set("state", State.RUNNING)
    row.set("busy_since", 0)
    with envs:
        if not setup.to_policies:  # this process samples actions; others do without torch
            import torch

            torch.set_num_threads(1)
        actor = make_actor(setup, splits, row)
        while not setup.shared.control.stopping:
            actor.turn(BLOCK_S)
        actor.report()


def make_actor(setup: ActorSetup, splits: list[Split], row: StatusRow) -> Actor:
    """The actor of these splits. With local inference it waits for the first weights (or for a stop)."""
    if setup.to_policies:
        return CentralActor(setup, splits, row)
    import torch

    from sfactory.actor.local_actor import LocalActor
    from sfactory.inference.acting_policy import ActingPolicy

    torch.manual_seed(setup.seed_of(Branch.ACTING))  # after the envs, which may have seeded it
    shared, model, device = setup.shared, setup.config.model, torch.device("cpu")
    policies = [ActingPolicy(shared.spec_of(p), model, own, device) for p, own in enumerate(shared.weights)]
    for policy in policies:
        policy.wait_for_weights(setup.shared.control)
    if setup.shared.opponents is not None:
        policies += [ActingPolicy(shared.spec, model, own, device) for own in setup.shared.opponents.weights]
    return LocalActor(setup, splits, row, policies)


def _limit_threads(setup: ActorSetup) -> None:
    """Limit the libraries loaded by now to one thread each, if --force_envs_single_thread is set."""
    if setup.config.sampling.force_envs_single_thread:
        threadpool_limits(1)  # until the process ends, so not used as a context
