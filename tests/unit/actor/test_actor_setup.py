"""An actor makes all its envs, then resets each with a seed of its own, as its flags say."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

from sfactory.actor.actor_process import make_actor
from sfactory.actor.setup import ActorSetup
from sfactory.actor.setup import make_splits as make_splits_with
from sfactory.actor.split import Split
from sfactory.config.flags import config_of
from sfactory.env.factory import EnvFactory
from sfactory.layout import Layout
from sfactory.process.signals import Interrupted
from sfactory.seeds import Branch
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from sfactory.shared.status import State, StatusRow
from tests.support.parts import SCALAR, small_run
from tests.support.scripted_env import Broken, Faults, ScriptedEnv

FLAGS = small_run(workers=4, envs=6, rollout=4, batch_size=12, worker_num_splits=2)


class Record:
    """Calls of the envs that share it: (call, state of the actor, when its timeout began). faults: of the first env."""

    def __init__(self) -> None:
        self.row: StatusRow | None = None
        self.calls: list[tuple[str, State, float]] = []
        self.envs: list[ScriptedEnv] = []
        self.env_steps: list[int] = []  # that training had made when each was made
        self.faults = Faults()

    def add(self, call: str) -> None:
        assert self.row is not None
        self.calls.append((call, State(int(self.row.get("state"))), self.row.get("busy_since")))

    def stamps(self, call: str) -> list[float]:
        return [since for name, _, since in self.calls if name == call]

    def states(self, call: str) -> set[State]:
        return {state for name, state, _ in self.calls if name == call}


class RecordedEnv(ScriptedEnv):
    """Adds its creation, resets and steps to the record."""

    def __init__(self, record: Record, index: int) -> None:
        super().__init__([], Faults() if record.envs else record.faults)
        self.index = index
        self.on_call = record.add
        self.on_call("made")
        record.envs.append(self)

    def step(self, action: int) -> Any:
        self.on_call("step")
        return super().step(action)


@dataclasses.dataclass(frozen=True)
class RecordedFactory(EnvFactory):
    """Makes RecordedEnvs."""

    record: Record = dataclasses.field(default_factory=Record)

    def __call__(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        self.record.env_steps.append(self.env_steps)
        return RecordedEnv(self.record, self.env_index)


class VectorFactory(RecordedFactory):
    """Makes vector envs of RecordedEnvs."""

    makes_vectors = True

    def vector(self, num_envs: int, seed: int, render_mode: str | None = None) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: RecordedEnv(self.record, 0)] * num_envs)


def shared_objects_of(flags: dict[str, Any]) -> SharedObjects:
    config = config_of({**FLAGS, **flags})
    return SharedObjects(SCALAR, Layout.plan(config.sampling, config.learner, "central"), weight_bytes=64)


def setup_of(record: Record, **flags: Any) -> tuple[ActorSetup, StatusRow]:
    shared = shared_objects_of(flags)
    setup = ActorSetup(config_of({**FLAGS, **flags}), shared, 1, 5, 0)
    vars(setup)["factory"] = RecordedFactory("any", record=record, env_index=setup.factory.env_index)
    record.row = shared.status.row("sf-actor-1")
    record.row.start()
    return setup, record.row


def make_splits(setup: ActorSetup, row: StatusRow) -> list[Split]:
    return make_splits_with(setup, row, contextlib.ExitStack())


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.mark.parametrize("flags", [{}, {"decorrelate_envs_on_one_worker": True, "benchmark": True}])
def test_all_envs_are_made_then_reset_and_each_call_has_its_own_timeout(record: Record, flags: dict[str, Any]) -> None:
    setup, row = setup_of(record, **flags)

    splits = make_splits(setup, row)

    assert [split.batch.size for split in splits] == [3, 3]
    assert [call for call, _, _ in record.calls] == ["made"] * 6 + ["reset"] * 6
    assert record.states("made") == {State.STARTING}
    assert record.states("reset") == {State.RESETTING}
    assert [env.taken for env in record.envs] == [[]] * 6
    stamps = record.stamps("made") + record.stamps("reset")
    assert stamps == sorted(set(stamps))
    assert [env.seeds for env in record.envs] == [[setup.seed_of(Branch.ENV, env)] for env in range(6)]


def test_env_i_of_an_actor_takes_i_rollouts_of_its_own_random_steps(record: Record) -> None:
    again = Record()
    splits = make_splits(*setup_of(record, decorrelate_envs_on_one_worker=True))
    make_splits(*setup_of(again, decorrelate_envs_on_one_worker=True))

    taken = [env.taken for env in record.envs]
    assert [len(actions) for actions in taken] == [0, 4, 8, 12, 16, 20]
    assert [float(obs[0]) for split in splits for obs in split.batch.observations] == [0, 4, 8, 12, 16, 20]
    assert record.states("step") == {State.RESETTING}
    assert len(set(record.stamps("step"))) == sum([4, 8, 12, 16, 20])
    assert taken == [env.taken for env in again.envs]
    assert taken[4][:16] != taken[5][:16]


@pytest.mark.parametrize(("actor", "said"), [(0, 1), (1, 0)])
def test_a_vector_env_takes_no_random_steps_and_the_first_actor_says_so(
    record: Record, caplog: pytest.LogCaptureFixture, actor: int, said: int
) -> None:
    setup, row = setup_of(record, decorrelate_envs_on_one_worker=True)
    setup = dataclasses.replace(setup, actor=actor)
    vars(setup)["factory"] = VectorFactory("any", record=record)

    make_splits(setup, row)

    assert {len(env.taken) for env in record.envs} == {0}
    assert sum("--decorrelate_envs_on_one_worker=True has no effect" in text for text in caplog.messages) == said


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
def test_actors_wait_their_share_except_in_benchmarks_and_serial_mode(
    flags: dict[str, Any], waits: list[float]
) -> None:
    shared, config = shared_objects_of(flags), config_of({**FLAGS, **flags})

    assert [ActorSetup(config, shared, actor, 1, 0).first_wait_s for actor in range(len(waits))] == waits


@pytest.mark.parametrize(("limit", "filling"), [(0, 2), (1, 1)])
def test_an_actor_has_no_more_slots_in_flight_than_its_flag_allows(record: Record, limit: int, filling: int) -> None:
    flags = {"max_sample_requests_in_flight_per_worker": limit}
    setup, row = setup_of(record, **flags)

    make_actor(setup, make_splits(setup, row), row).turn(0)

    states = [setup.shared.table.state(slot) for slot in setup.shared.table.slots_of(1)]
    assert states.count(SlotState.FILLING) == filling


@pytest.mark.parametrize(
    ("flags", "faults", "message"),
    [
        ({"max_env_restarts": 7}, Faults(steps=[1]), "it is recreated (1 of --max_env_restarts=7)"),
        ({"max_bad_env_data": 0.25}, Faults(rewards={1: float("nan")}), "--max_bad_env_data=0.25 of the steps"),
    ],
)
def test_the_limits_of_faults_are_those_of_the_flags(
    record: Record, caplog: pytest.LogCaptureFixture, flags: dict[str, Any], faults: Faults, message: str
) -> None:
    record.faults = faults
    setup, row = setup_of(record, **flags)
    split = make_splits(setup, row)[0]
    split.begin(setup.shared.trajectories.slot(0))

    split.step()

    assert message in caplog.text


def test_envs_are_numbered_over_all_actors_and_one_that_is_made_again_keeps_its_number(record: Record) -> None:
    record.faults = Faults(steps=[1])
    setup, row = setup_of(record)
    split = make_splits(setup, row)[0]
    split.begin(setup.shared.trajectories.slot(0))

    split.step()

    numbers = [env.index for env in record.envs if isinstance(env, RecordedEnv)]
    assert numbers == [6, 7, 8, 9, 10, 11, 6]
    layout = dataclasses.replace(setup.shared.layout, rank=1, world=2, evaluators=3)
    assert layout.env_index(1) == 4 * 6 + 6
    assert [layout.env_index_of_evaluator(evaluator) for evaluator in range(3)] == [48, 49, 50]


def test_each_env_is_made_with_the_env_steps_that_training_has_made(record: Record) -> None:
    record.faults = Faults(steps=[1])
    setup, row = setup_of(record)
    setup = dataclasses.replace(setup, generation=500)
    vars(setup)["factory"] = RecordedFactory("any", record=record)
    learner = setup.shared.status.row("sf-learner-0")
    split = make_splits(setup, row)[0]
    split.begin(setup.shared.trajectories.slot(0))
    learner.set("run_env_steps", 700)

    split.step()

    assert record.env_steps == [500] * 6 + [700]


def test_every_env_of_every_actor_session_and_attempt_has_a_seed_of_its_own(record: Record) -> None:
    setup, _ = setup_of(record)
    seeds = []
    for actor in range(3):
        for generation in (0, 1, 2, 2**40):
            for attempt in range(3):
                one = dataclasses.replace(setup, actor=actor, generation=generation, attempt=attempt)
                seeds += [one.seed_of(Branch.ENV, env) for env in range(6)]
                seeds += [one.seed_of(Branch.AFTER_FAULT, env, count) for env in range(3) for count in range(3)]
                seeds += [one.seed_of(Branch.ACTING), *(one.seed_of(Branch.ACTING, env) for env in range(6))]

    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_signal_that_ends_a_close_is_raised_after_the_other_envs_are_closed(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = contextlib.ExitStack()
    make_splits_with(*setup_of(record), closing)

    def interrupt() -> None:
        raise Interrupted

    monkeypatch.setattr(record.envs[1], "close", interrupt)

    with pytest.raises(Interrupted):
        closing.close()

    assert [env.closed for env in record.envs] == [True, False, True, True, True, True]


@pytest.mark.parametrize("error", [RuntimeError("the window is gone"), SystemExit("bye")])
def test_an_env_that_cannot_be_closed_is_logged_and_the_others_are_closed(
    record: Record, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    closing = contextlib.ExitStack()
    make_splits_with(*setup_of(record), closing)

    def refuse() -> None:
        raise error

    monkeypatch.setattr(record.envs[1], "close", refuse)

    closing.close()

    assert [env.closed for env in record.envs] == [True, False, True, True, True, True]
    assert caplog.messages == [f"env 1 of split 0: close() raised {type(error).__name__}: {error}; nothing is lost"]


@pytest.mark.parametrize(("fails", "made"), [("made", 5), ("reset", 6)])
def test_envs_of_an_actor_that_fails_while_it_makes_or_resets_them_are_closed(
    record: Record, monkeypatch: pytest.MonkeyPatch, fails: str, made: int
) -> None:
    setup, row = setup_of(record)
    add = record.add

    def fail(call: str) -> None:
        if call == fails and len(record.stamps(call)) == 5:
            raise Broken(call)
        add(call)

    monkeypatch.setattr(record, "add", fail)
    closing = contextlib.ExitStack()

    with pytest.raises(Broken):
        make_splits_with(setup, row, closing)
    closing.close()

    assert [env.closed for env in record.envs] == [True] * made
