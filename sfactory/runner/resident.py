"""Runs a learner and one ``TensorEnv`` on the learner's device in one process, where they take turns.

Turns, saving and the end are those of serial mode. There is neither a slot nor a message between collecting and
learning: both read and write the same dataset, and the weights to act with are copied on the device.
"""

from __future__ import annotations

import dataclasses
from typing import cast

from sfactory.actor.setup import ActorSetup
from sfactory.env.lifecycle import close_env
from sfactory.resident.workers import ResidentActor, ResidentLearner
from sfactory.runner.context import RunContext
from sfactory.runner.serial import SerialExecutor, SerialSampling, failing_as
from sfactory.shared.status import State


class _Collecting(SerialSampling):
    """The collector of ``executor`` in the place of an actor."""

    executor: ResidentExecutor

    def make_actor(self, actor: int) -> ResidentActor:
        """See SerialSampling."""
        return self.executor.make_collector(actor)


class ResidentExecutor(SerialExecutor):
    """Creates the learner and the env, and gives each its turn until the end."""

    _worker_of = ResidentLearner
    _sampling_of = _Collecting

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        cast(_Collecting, self._sampling).executor = self

    def make_collector(self, actor: int) -> ResidentActor:
        """The collector, and its env."""
        context, shared, name = self._context, self._shared, self._layout.actor_names[actor]
        worker, learner = cast(ResidentLearner, self._learner_workers[0]), self._learners[0]
        device, row = context.plan.device, shared.status.row(name)
        with failing_as(name):
            row.begin_work()
            setup = ActorSetup(context.config, shared, actor, context.seed, context.resumed.env_steps)
            env = dataclasses.replace(setup.factory, device=device).tensors(self._layout.rows)
            self._sampling.envs.callback(close_env, env, f"the env of {name}")
            row.set("state", State.RESETTING)
            return ResidentActor(setup, env, learner.publisher, worker.dataset, row)
