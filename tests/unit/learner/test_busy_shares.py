"""Work counts as busy time, and waiting for other processes as waiting time."""

from __future__ import annotations

from typing import Any

import pytest

from sfactory.actor.actor_process import make_actor
from sfactory.actor.split import Split
from sfactory.config.flags import config_of
from sfactory.config.schema import Config
from sfactory.layout import Inference, Layout
from sfactory.learner.learner import Learner
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.staging import Staging
from sfactory.messages import TrajectoryReady
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import FlatState, flat_bytes
from sfactory.shared import status as status_module
from sfactory.shared.status import StatusRow
from sfactory.shared.trajectories import ALL_ROWS, RowsOf, Slot
from sfactory.supervise.shared_objects import SharedObjects
from tests.support.parts import SCALAR
from tests.support.scripted_env import Obs, ScriptedEnv

COPY_S, STEP_S = 5.0, 1.0


class Clock:
    """Time passes only where a test says so."""

    def __init__(self) -> None:
        self.time = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(status_module, "now", lambda: clock.time)
    return clock


def config_with(**flags: Any) -> Config:
    sizes = {"num_workers": 1, "num_envs_per_worker": 2, "worker_num_splits": 1, "rollout": 4, "batch_size": 16}
    return config_of({"env": "any", "encoder_mlp_layers": (8,), **sizes, **flags})


def shared_objects_of(config: Config, inference: Inference) -> SharedObjects:
    model = ActorCritic(SCALAR, config.model)
    shared = SharedObjects(SCALAR, Layout.plan(config.sampling, config.learner, inference), flat_bytes(model))
    shared.weights[0].publish(FlatState(model).to_host(), 0)
    return shared


class SlowStaging(Staging):
    """Copying one slot takes COPY_S."""

    clock: Clock

    def take(self, slot: Slot, start: int, most: int | None = None, columns: RowsOf = ALL_ROWS) -> int:
        self.clock.time += COPY_S
        return super().take(slot, start, most, columns)


class TimedEnv(ScriptedEnv):
    """A step takes STEP_S. begun: ``busy_since`` of its actor at each step."""

    def __init__(self, clock: Clock, row: StatusRow) -> None:
        super().__init__([])
        self._clock, self._row = clock, row
        self.begun: list[float] = []

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self.begun.append(self._row.get("busy_since"))
        self._clock.time += STEP_S
        return super().step(action)


def test_a_learner_that_assembles_by_itself_is_busy_while_it_copies(clock: Clock) -> None:
    config = config_with(train_in_background_thread=False)
    shared = shared_objects_of(config, "central")
    setup, row = shared.learner(0, config, 1, "cpu", 1, None), shared.status.row("sf-learner-0")
    worker = LearnerWorker(setup, Learner(setup, row), row)
    worker._own_area = SlowStaging(SCALAR, shared.layout, pin=False)
    worker._own_area.clock = clock
    for slot in range(2):
        shared.table.begin(slot)
        shared.table.publish(slot, 0)
        shared.to_learners[0].put(TrajectoryReady(0, slot))

    assert worker.assemble(0)

    assert row.times(clock.time) == (2 * COPY_S, 0.0)


def test_an_actor_with_a_policy_of_its_own_is_busy_with_one_step_at_a_time(clock: Clock) -> None:
    config = config_with(inference="local")
    shared = shared_objects_of(config, "local")
    setup, row = shared.actor(0, config, 1, 0), shared.status.row("sf-actor-0")
    envs = [TimedEnv(clock, row) for _ in range(2)]
    split = Split.of_envs(0, envs, SCALAR, rollout=4)
    split.reset([1, 2], "here")
    actor = make_actor(setup, [split], config.model, row)

    for _ in range(3):  # the third finds no free slot
        actor.turn(0)

    assert envs[0].begun == [100.0 + 2 * STEP_S * t for t in range(8)]
    assert row.times(clock.time) == (16 * STEP_S, 0.0)
