"""Room: an actor's life, from birth to stop. In: ActorSetup. Out: nothing but trajectories."""

from __future__ import annotations

import os

from threadpoolctl import threadpool_limits

from sfactory.actor.outbox import Outbox
from sfactory.actor.setup import ActorSetup, env_seed, make_splits
from sfactory.actor.split import Split
from sfactory.actor.worker import ActorWorker
from sfactory.config.schema import ModelConfig
from sfactory.shared.status import State, StatusRow


def run_actor(setup: ActorSetup, model: ModelConfig, core: int | None, row: StatusRow) -> None:
    """Make the envs, then work until a stop is ordered. ``core``: the core to stay on, if any."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    if setup.single_thread_envs:
        threadpool_limits(1)  # for the whole life of the process, and so not used as a context
    splits = make_splits(setup)
    outbox = Outbox(setup.actor, setup.trajectories, setup.table, setup.to_learner, setup.to_main)
    try:
        if setup.to_policy is not None:
            row.set("state", State.RUNNING)
            ActorWorker(setup, splits, outbox, row).run()
        else:
            _run_local(setup, model, splits, outbox, row)
    finally:
        for split in splits:
            split.group.close()


def _run_local(setup: ActorSetup, model: ModelConfig, splits: list[Split], outbox: Outbox, row: StatusRow) -> None:
    # Imported here because actors under central inference do without torch.
    import torch

    from sfactory.actor.local import LocalActor
    from sfactory.inference.acting import ActingPolicy

    torch.manual_seed(env_seed(setup.seed, setup.actor, setup.generation, setup.layout.splits * setup.layout.rows))
    torch.set_num_threads(1)
    policy = ActingPolicy(setup.spec, model, setup.weights, torch.device("cpu"))
    if policy.wait_for_weights(setup.control):
        row.set("state", State.RUNNING)
        LocalActor(setup, splits, outbox, row, policy).run()
