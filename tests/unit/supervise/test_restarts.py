"""Late and dead workers are replaced as often as allowed, and the failure of the run says what to do."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from sfactory.clock import now
from sfactory.config.schema import Config
from sfactory.errors import ExitCode, ProcessesLost, WorkerDied
from sfactory.process import spawn
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import NOT_KNOWN, Spawner
from sfactory.process.stack_dump import StackDump
from sfactory.shared.control import Stop
from sfactory.shared.objects import SharedObjects
from sfactory.shared.slots import SlotState
from sfactory.shared.status import State
from sfactory.supervise.process_group import ChildProcess, ProcessExit, ProcessGroup, Workload
from sfactory.supervise.restarts import RestartBudget, StartupMonitor, WorkerReplacement
from sfactory.supervise.supervisor import Supervisor
from sfactory.system.cores import Cores
from tests.support.child import Child
from tests.support.parts import VECTOR, small_layout


@pytest.fixture
def shared() -> SharedObjects:
    return SharedObjects(VECTOR, small_layout(), weight_bytes=8)


def test_slots_of_a_dead_actor_are_freed_and_replacements_have_a_bound(shared: SharedObjects) -> None:
    replaced: list[str] = []
    group: Any = SimpleNamespace(replace=replaced.append, start_actors=lambda: None)
    replacement = WorkerReplacement(group, shared, RestartBudget("max_worker_restarts", 2))
    death, row = ProcessExit("sf-actor-1", -9, ""), shared.status.row("sf-actor-1")
    slot = shared.table.slots_of(1)[0]
    results = []

    for _ in range(3):
        row.set("state", State.RUNNING)
        shared.table.begin(slot)
        shared.table.count_steps(slot, 2)
        row.add("env_steps", 2)
        assert replacement.is_for(death)
        results.append(replacement.after(death, hung=None))
        if results[-1] is None:
            assert shared.table.state(slot) is SlotState.FREE

    assert results[:2] == [None, None]
    assert isinstance(results[2], WorkerDied)
    assert "2 of --max_worker_restarts=2 were replaced before" in str(results[2])
    assert replaced == ["sf-actor-1", "sf-actor-1"]
    assert (row.get("discarded_steps"), row.get("restarts")) == (4, 2)


def test_an_evaluator_is_replaced_as_a_worker_is() -> None:
    shared = SharedObjects(VECTOR, small_layout(evaluators=2), weight_bytes=8)
    replaced: list[str] = []
    group: Any = SimpleNamespace(replace=replaced.append, start_actors=lambda: None)
    replacement = WorkerReplacement(group, shared, RestartBudget("max_worker_restarts", 1))
    row = shared.status.row("sf-eval-1")
    row.set("state", State.RUNNING)

    assert not replacement.is_for(ProcessExit("sf-eval-1", 3, "Traceback: it would raise again"))
    assert replacement.is_for(ProcessExit("sf-eval-1", -9, ""))
    assert replacement.after(ProcessExit("sf-eval-1", -9, ""), hung=None) is None
    failure = replacement.after(ProcessExit("sf-eval-1", -11, ""), hung=None)

    assert isinstance(failure, WorkerDied)
    assert replaced == ["sf-eval-1"]
    assert row.get("restarts") == 1


def test_an_evaluator_that_is_killed_while_it_makes_its_env_is_tried_again() -> None:
    shared = SharedObjects(VECTOR, small_layout(evaluators=1), weight_bytes=8)
    replaced: list[str] = []
    group: Any = SimpleNamespace(replace=replaced.append, start_actors=lambda: None)
    boot = StartupMonitor(group, shared.status, limit_s=90.0)
    shared.status.row("sf-eval-0").set("state", State.STARTING)

    results = [boot.after(ProcessExit("sf-eval-0", -9, "")) for _ in range(3)]

    assert results[:2] == [None, None]
    assert isinstance(results[2], WorkerDied)
    assert replaced == ["sf-eval-0", "sf-eval-0"]


@pytest.mark.parametrize("stopping", [False, True])
def test_the_end_of_a_run_waits_for_no_evaluator(stopping: bool, caplog: pytest.LogCaptureFixture) -> None:
    shared = SharedObjects(VECTOR, small_layout(evaluators=1), weight_bytes=8)
    replaced: list[str] = []
    group: Any = SimpleNamespace(alive=[], replace=replaced.append, start_actors=lambda: None)
    interrupts: Any = None
    replacement = WorkerReplacement(group, shared, RestartBudget("max_worker_restarts", 1))
    supervisor = Supervisor(group, shared.control, shared.status, interrupts, 90.0, replacement=replacement)
    shared.status.row("sf-eval-0").set("state", State.RUNNING)
    if stopping:
        shared.control.order_stop(Stop.SAVE)

    supervisor._on_death(ProcessExit("sf-eval-0", -9, ""))

    assert supervisor.failure is None
    assert replaced == ([] if stopping else ["sf-eval-0"])


@pytest.mark.parametrize(
    ("name", "state", "busy_s", "age_s", "ready", "killed", "words"),
    [
        ("sf-learner-0", State.STARTING, 0, 119, False, False, ""),
        ("sf-learner-0", State.STARTING, 0, 121, False, True, "120 s; .*raise --reset_timeout_seconds=90 above that"),
        ("sf-actor-0", State.STARTING, 91, 91, False, True, "--reset_timeout_seconds=90: .* making one environment"),
        ("sf-actor-0", State.RESETTING, 89, 200, False, False, ""),
        ("sf-actor-0", State.RESETTING, 91, 200, False, True, ""),  # it is replaced after its death
        ("sf-actor-0", State.RESETTING, 91, 200, True, False, ""),
    ],
)
def test_a_child_that_is_late_is_killed(
    shared: SharedObjects,
    name: str,
    state: State,
    busy_s: float,
    age_s: float,
    ready: bool,
    killed: bool,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row, at = shared.status.row(name), now()
    for module in ("sfactory.clock", "tests.support.child"):
        monkeypatch.setattr(f"{module}.now", lambda: at)
    child = Child(name, row, age_s, ready)
    row.set("state", state)
    row.set("busy_since", at - busy_s if busy_s else 0.0)
    group: Any = SimpleNamespace(booting=lambda: [child], start_actors=lambda: None)
    boot = StartupMonitor(group, shared.status, limit_s=90.0)

    assert boot.look() is None  # it is asked for its stack
    failure = boot.look()

    assert child.killed == killed
    assert (failure is not None) == bool(words)
    if words:
        assert re.search(f"^{name} hung here:\n.*\n{name} did not get ready within {words}", str(failure))


def test_a_child_is_not_late_because_all_processes_were_stopped_meanwhile(
    shared: SharedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1000.0
    monkeypatch.setattr("sfactory.clock.now", lambda: at)
    row = shared.status.row("sf-actor-0")
    child = Child("sf-actor-0", row)
    row.set("state", State.RESETTING)
    row.set("busy_since", at)
    group: Any = SimpleNamespace(booting=lambda: [child], start_actors=lambda: None)
    boot = StartupMonitor(group, shared.status, limit_s=90.0)

    for seconds in (1.0, 3600.0, *[1.0] * 80):
        at += seconds
        assert boot.look() is None
    assert not child.killed

    for _ in range(10):
        at += 1.0
        boot.look()
    assert child.killed


def supervisor_of(shared: SharedObjects) -> Supervisor:
    group: Any = SimpleNamespace(alive=[])
    interrupts: Any = None
    return Supervisor(group, shared.control, shared.status, interrupts, boot_limit_s=90.0)


def test_a_learner_with_long_updates_has_longer_to_save(shared: SharedObjects) -> None:
    supervisor = supervisor_of(shared)
    row, usual = shared.status.row("sf-learner-0"), supervisor._save_grace_s()

    row.set("update_s", 10.0)
    row.set("save_s", 2.5)
    assert supervisor._save_grace_s() == usual + 25.0
    row.set("update_s", 1e6)
    assert supervisor._save_grace_s() == 120.0


@pytest.mark.parametrize(("saving", "save_s", "most_s"), [(0, 0.0, 8), (0, 30.0, 68), (1, 0.0, 120)])
def test_a_learner_that_saves_slowly_is_waited_for_although_it_has_not_saved_before(
    shared: SharedObjects, monkeypatch: pytest.MonkeyPatch, saving: int, save_s: float, most_s: int
) -> None:
    at = 1000.0
    for module in ("sfactory.clock", "sfactory.supervise.supervisor"):
        monkeypatch.setattr(f"{module}.now", lambda: at)
    supervisor, row = supervisor_of(shared), shared.status.row("sf-learner-0")
    group: Any = SimpleNamespace(alive=["sf-learner-0"])
    supervisor._process_group = group
    supervisor._order(Stop.SAVE)
    row.set("saving_since", saving)
    row.set("save_s", save_s)

    waited = []
    for _ in range(130):
        at += 1.0
        waited.append(supervisor._may_save_longer())

    assert waited == [True] * (most_s - 1) + [False] * (131 - most_s)


def test_an_env_that_hangs_is_waited_for_no_longer_once_the_last_learner_has_saved(
    shared: SharedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1000.0
    for module in ("sfactory.clock", "sfactory.supervise.supervisor"):
        monkeypatch.setattr(f"{module}.now", lambda: at)
    supervisor = supervisor_of(shared)
    group: Any = SimpleNamespace(alive=["sf-actor-0"])
    supervisor._process_group = group
    shared.status.row("sf-learner-0").set("update_s", 30.0)
    supervisor._order(Stop.SAVE)
    assert supervisor._grace is not None
    at += 5.0

    supervisor._on_death(ProcessExit("sf-learner-0", 0, ""))
    at += 3.0

    assert supervisor._grace.passed
    assert not supervisor._may_save_longer()
    assert (supervisor.failure, supervisor.done, shared.control.stop) == (None, False, Stop.SAVE)


@pytest.mark.parametrize(
    ("state", "saved", "text"),
    [
        (State.RUNNING, 0, "this session has saved none"),
        (State.RUNNING, 256, "the last checkpoint stands"),
        (State.STARTING, 0, "None"),  # it has learned nothing: the run is interrupted
        (State.DONE, 256, "None"),
    ],
)
def test_an_error_of_a_learner_that_did_not_save_says_whether_there_is_a_checkpoint(
    shared: SharedObjects, state: State, saved: int, text: str
) -> None:
    supervisor = supervisor_of(shared)
    group: Any = SimpleNamespace(kill=lambda: ["sf-learner-0"])
    supervisor._process_group = group
    shared.control.order_stop(Stop.SAVE)
    shared.status.row("sf-learner-0").set("state", state)
    shared.status.row("sf-learner-0").set("saved_env_steps", saved)

    supervisor._kill_rest()

    assert text in str(supervisor.failure)


def test_processes_with_envs_that_are_killed_at_the_end_are_named(
    shared: SharedObjects, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1000.0
    for module in ("sfactory.clock", "sfactory.supervise.supervisor"):
        monkeypatch.setattr(f"{module}.now", lambda: at)
    supervisor = supervisor_of(shared)
    group: Any = SimpleNamespace(kill=lambda: ["sf-policy-0-0", "sf-actor-1", "sf-eval-0"])
    supervisor._process_group = group
    supervisor._order(Stop.NOW)
    at += 3.0

    supervisor._kill_rest()

    (record,) = caplog.records
    assert record.getMessage().startswith("killed, as they had not ended 3 s after the stop: sf-actor-1, sf-eval-0; ")
    assert supervisor.failure is None


def test_a_failure_to_save_is_logged_although_another_failure_came_first(
    shared: SharedObjects, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = supervisor_of(shared)
    first = supervisor.failure = WorkerDied("sf-actor-0 was killed")

    supervisor._on_death(ProcessExit("sf-learner-0", int(ExitCode.CANNOT_SAVE), "CannotSaveError: disk full"))

    assert "disk full" in caplog.text
    assert supervisor.failure is first


def test_an_actor_is_not_replaced_before_its_slots_are_free(shared: SharedObjects) -> None:
    workload: Any = None
    shared.table.begin(shared.table.slots_of(0)[0])

    with pytest.raises(AssertionError, match="sf-actor-0 was filling a slot"):
        ProcessGroup(Spawner(), shared, workload).replace("sf-actor-0")


def test_a_learner_that_ends_with_the_fork_server_is_not_the_cause(shared: SharedObjects) -> None:
    group: Any = SimpleNamespace(alive=["sf-learner-0"], failure=None)

    def lose_both(*_: object) -> list[ProcessExit]:
        group.alive, group.failure = [], ProcessesLost("the fork server has ended")
        return [ProcessExit("sf-learner-0", -9, "")]

    group.wait = lose_both
    supervisor = Supervisor(group, shared.control, shared.status, Interrupts(), boot_limit_s=90.0)

    supervisor.run(lambda: False)

    assert supervisor.failure is group.failure


@pytest.mark.parametrize(
    ("met", "failure"), [(ConnectionRefusedError(), ProcessesLost), (EOFError(), WorkerDied), (OSError(), WorkerDied)]
)
def test_all_processes_are_lost_with_a_server_that_a_start_finds_dead(
    shared: SharedObjects, monkeypatch: pytest.MonkeyPatch, met: Exception, failure: type[WorkerDied]
) -> None:
    monkeypatch.setattr(Spawner, "_is_lost", False)  # and again after the test

    def start(name: str, *_: object) -> NoReturn:
        with spawn._starting(name):
            raise met

    spawner: Any = SimpleNamespace(start=start)
    group = ProcessGroup(spawner, shared, Workload(Config(), 1, 0, "cpu", Cores.available(), [None]))

    group.start()

    assert type(group.failure) is failure


@pytest.mark.parametrize(("written", "reported", "ended_well"), [(1, 0, True), (75, 74, False), (0, 256, False)])
def test_without_the_fork_server_a_child_ends_as_it_has_written(
    shared: SharedObjects, written: int, reported: int, ended_well: bool
) -> None:
    process: Any = SimpleNamespace(pid=0, exitcode=NOT_KNOWN, join=lambda _: None)
    workload: Any = None
    row = shared.status.row("sf-learner-0")
    group = ProcessGroup(Spawner(), shared, workload)
    group._children["sf-learner-0"] = ChildProcess("sf-learner-0", process, row, StackDump(), now())
    group._has_server = False
    row.set("ended", written)

    (death,) = group.wait(Interrupts().wake_fd, 0.0)

    assert death.exit_code == reported
    assert ("sf-learner-0" not in group.cut_off) == ended_well
