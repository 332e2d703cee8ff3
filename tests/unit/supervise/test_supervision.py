"""A run with real children ends in every case, for the right reason, and leaves none of them behind."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint import CheckpointDir
from sfactory.clock import now
from sfactory.config.schema import Config, HooksConfig, LearnerConfig, ModelConfig, RunConfig, SamplingConfig
from sfactory.env.factory import make_env
from sfactory.errors import ExitCode, LearnerDied, WorkerDied
from sfactory.layout import Layout
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.process import stack_dump
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.process.stack_dump import StackDump
from sfactory.shared.control import Stop
from sfactory.shared.status import State
from sfactory.spec import EnvSpec
from sfactory.supervise import restarts as boot_module
from sfactory.supervise import supervisor as supervision_module
from sfactory.supervise.process_group import ProcessExit, ProcessGroup, Workload
from sfactory.supervise.restarts import StartupMonitor
from sfactory.supervise.shared_objects import SharedObjects
from sfactory.supervise.supervisor import Supervisor
from sfactory.system.cores import Cores
from tests.support.processes import eventually
from tests.support.rings import lock_for_ever

FAULTY = "sfactory_envs.synthetic.faulty:Faulty"
BASE = Config(
    run=RunConfig(env=FAULTY, train_for_env_steps=10**9, device="cpu"),
    sampling=SamplingConfig(num_workers=2, num_envs_per_worker=8, rollout=8),
    learner=LearnerConfig(batch_size=128),
    model=ModelConfig(encoder_mlp_layers=(8,)),
)


class SmallRun:
    """Children of a run in the test's own hands."""

    def __init__(
        self,
        folder: Path,
        interrupts: Interrupts,
        boot_limit_s: float = 90.0,
        background: bool = True,
        hook: str | None = None,
        **run: Any,
    ) -> None:
        learner = dataclasses.replace(BASE.learner, train_in_background_thread=background)
        hooks = HooksConfig(after_train_step=() if hook is None else (hook,))
        config = dataclasses.replace(BASE, run=dataclasses.replace(BASE.run, **run), learner=learner, hooks=hooks)
        env = make_env(FAULTY, {})
        spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
        self.layout = Layout.plan(config.sampling, config.learner, "central")
        with torch.device("meta"):
            weight_bytes = flat_bytes(ActorCritic(spec, config.model))
        self.shared = SharedObjects(spec, self.layout, weight_bytes)
        self.checkpoints = CheckpointDir(folder / "checkpoint_p0", keep=2)
        spawner = Spawner()
        spawner.open()
        workload = Workload(config, 1, 0, "cpu", Cores.available(), [str(folder / "checkpoint_p0")])
        self.process_group = ProcessGroup(spawner, self.shared, workload)
        self.supervision = Supervisor(
            self.process_group,
            self.shared.control,
            self.shared.status,
            interrupts,
            boot_limit_s=boot_limit_s,
        )
        self.process_group.start()
        self.process_group.start_actors()

    def trained(self) -> int:
        """Env steps trained so far."""
        return int(self.shared.status.total("env_steps", "sf-learner"))

    def until_trained(self, act: Callable[[], object]) -> Callable[[], bool]:
        """Call ``act`` at every beat once something was trained; a truthy answer from it ends the run as done."""
        return lambda: bool(self.trained() and act())

    def kill(self, name: str) -> None:
        """SIGKILL one child, once."""
        if name in self.process_group.alive:
            os.kill(int(self.shared.status.row(name).get("pid")), signal.SIGKILL)

    def saved_steps(self) -> int | None:
        """Env steps of the checkpoint, None if there is none."""
        loaded = self.checkpoints.load()
        return None if loaded is None else int(loaded.payload["env_steps"])


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as interrupts:
        interrupts.raising = False
        yield interrupts


@pytest.fixture
def start(tmp_path: Path, interrupts: Interrupts) -> Iterator[Callable[..., SmallRun]]:
    runs: list[SmallRun] = []

    def start_one(**changes: Any) -> SmallRun:
        runs.append(SmallRun(tmp_path, interrupts, **changes))
        return runs[-1]

    yield start_one
    for run in runs:
        assert run.process_group.kill() == [], "somebody was left behind"


Start = Callable[..., SmallRun]


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Does its thing at the first call only, and answers nothing."""
    calls: list[int] = []

    def first_time() -> None:
        if not calls:
            calls.append(1)
            act()

    return first_time


def test_a_run_ends_as_done_when_the_learner_reaches_its_limit(start: Start) -> None:
    run = start(train_for_env_steps=3000)

    run.supervision.run(lambda: False)

    sampled, layout = run.shared.status.total("env_steps", "sf-actor"), run.layout
    assert run.supervision.done
    assert run.supervision.failure is None
    assert run.process_group.alive == []
    assert run.saved_steps() == run.trained() >= 3000
    # Nothing was trained that was not sampled; what was sampled and not trained is under way, which has a bound.
    columns = layout.num_slots * layout.rows + (layout.datasets + 1) * layout.dataset_rows
    assert run.trained() <= sampled <= run.trained() + columns * layout.rollout


def test_a_beat_can_end_the_run_as_done(start: Start) -> None:
    run = start()

    run.supervision.run(run.until_trained(lambda: True))

    assert run.supervision.done
    assert run.supervision.failure is None
    assert run.shared.control.stop is Stop.SAVE
    assert run.saved_steps() == run.trained() > 0


def test_one_signal_stops_and_saves(start: Start, interrupts: Interrupts) -> None:
    run = start()

    run.supervision.run(run.until_trained(once(lambda: os.kill(os.getpid(), signal.SIGTERM))))

    assert (interrupts.count, interrupts.exit_code) == (1, ExitCode.SIGTERM)
    assert not run.supervision.done
    assert run.supervision.failure is None
    assert run.saved_steps() == run.trained() > 0


def test_two_signals_stop_at_once_without_saving(start: Start, interrupts: Interrupts) -> None:
    run = start()

    def twice() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)

    run.supervision.run(run.until_trained(once(twice)))

    assert interrupts.count == 2
    assert run.shared.control.stop is Stop.NOW
    assert run.supervision.failure is None
    assert run.process_group.alive == []


@pytest.mark.parametrize("name", ["sf-actor-1", "sf-policy-0-0"])
def test_a_killed_worker_is_the_failure_and_the_learner_saves(start: Start, name: str) -> None:
    run = start()

    run.supervision.run(run.until_trained(lambda: run.kill(name)))

    assert isinstance(run.supervision.failure, WorkerDied)
    assert f"{name} was killed by SIGKILL" in str(run.supervision.failure)
    assert run.saved_steps() == run.trained() > 0
    assert run.process_group.was_cut_off(name)
    assert not run.process_group.was_cut_off("sf-learner-0"), "it has saved, and ended by itself"


@pytest.mark.parametrize("background", [True, False])
def test_the_learner_saves_although_a_killed_actor_has_left_its_ring_locked(
    start: Start, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision_module, "_SAVE_GRACE_S", 6.0)  # the other actor hangs in that ring all the time
    run = start(background=background)

    def lock_and_kill() -> None:
        lock_for_ever(run.shared.to_learners[0])
        run.kill("sf-actor-1")

    run.supervision.run(run.until_trained(once(lock_and_kill)))

    assert "sf-actor-1 was killed by SIGKILL" in str(run.supervision.failure)
    assert run.saved_steps() == run.trained() > 0


def test_a_killed_learner_is_the_failure_and_nobody_waits_for_a_save(start: Start) -> None:
    run = start()

    run.supervision.run(run.until_trained(lambda: run.kill("sf-learner-0")))

    assert isinstance(run.supervision.failure, LearnerDied)
    assert run.supervision.failure.exit_code is ExitCode.LEARNER
    assert run.shared.control.stop is Stop.NOW


def test_what_a_learner_raises_reaches_main_within_a_second_with_its_traceback(start: Start) -> None:
    # A machine that does other things, too, may hold up any one run.
    for _ in range(3):
        run = start(hook="tests.support.hooks:fail_with_time")
        noticed = run_to_failure(run.supervision)
        text = str(run.supervision.failure)
        assert isinstance(run.supervision.failure, LearnerDied)
        assert "Traceback" in text
        assert "in fail_telling_when" in text
        (failed_at,) = re.findall(r"^ValueError: failed at ([\d.]+)$", text, re.MULTILINE)
        if (took := noticed - float(failed_at)) < 1.0:
            return
    pytest.fail(f"took {took} s")


def run_to_failure(supervision: Supervisor) -> float:
    """Supervise to the end; returns when there was a failure, on the clock of the machine."""
    noticed: list[float] = []

    def watch() -> None:
        if eventually(lambda: supervision.failure is not None, 60.0, every_s=0.005):
            noticed.append(now())

    thread = threading.Thread(target=watch)
    thread.start()
    supervision.run(lambda: False)
    thread.join(60.0)
    return noticed[0]


def test_an_env_that_raises_is_the_failure_with_its_traceback(start: Start) -> None:
    run = start(env_kwargs={"raise_at": 50})

    run.supervision.run(lambda: False)

    text = str(run.supervision.failure)
    assert "Traceback" in text
    assert "EnvFault: step 50 raises, as ordered" in text.splitlines()[-1]
    assert text.splitlines()[-1].startswith("sf-actor-")
    assert not run.supervision.done


def test_who_does_not_get_ready_in_time_is_named_with_the_place_where_it_hangs(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision_module, "_SAVE_GRACE_S", 2.0)
    run = start(env_kwargs={"hang_in_constructor": True}, boot_limit_s=4.0)

    run.supervision.run(lambda: False)

    text = str(run.supervision.failure)
    assert re.search(r"sf-actor-\d did not get ready within --reset_timeout_seconds=4", text.splitlines()[-1])
    assert re.search(r"faulty\.py.* line \d+ in __init__", text)
    assert run.process_group.alive == []


def test_who_is_late_before_it_can_answer_is_named_with_what_to_do(
    start: Start, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_module, "_MIN_BOOT_S", 0.0)
    monkeypatch.setattr(stack_dump, "STACK_S", 0.0)
    run = start(boot_limit_s=1e-6)
    boot = StartupMonitor(run.process_group, run.shared.status, 1e-6)

    looks = [boot.look(), boot.look()]

    assert looks[0] is None
    assert isinstance(looks[1], WorkerDied)
    assert "sf-learner-0 did not get ready within 1e-06 s" in str(looks[1])
    assert "raise --reset_timeout_seconds=1e-06 above that" in str(looks[1])
    deaths = run.process_group.wait(interrupts.wake_fd, 60.0)
    assert [(death.name, death.exit_code) for death in deaths] == [("sf-learner-0", -signal.SIGKILL)]
    run.process_group.kill()


def test_an_actor_that_got_ready_while_it_was_asked_where_it_hangs_is_left_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    boot = StartupMonitor(run.process_group, run.shared.status, limit_s=90.0)
    actor = next(child for child in run.process_group.booting() if child.name == "sf-actor-0")
    assert eventually(lambda: actor.row.get("pid") > 0, 60.0)
    os.kill(int(actor.row.get("pid")), signal.SIGSTOP)  # what it is about is the test's to say from here on
    actor.row.set("state", State.RESETTING)
    actor.row.set("busy_since", now() - 91.0)
    assert boot.look() is None

    def answer_and_get_ready(stack: StackDump) -> str:
        if stack is actor.stack:
            actor.row.set("state", State.RUNNING)
        return "somewhere in reset"

    monkeypatch.setattr(StackDump, "read", answer_and_get_ready)
    failure = boot.look()

    assert failure is None
    assert actor.state is State.RUNNING
    actor.process.join(0.5)
    assert actor.process.exitcode is None
    run.process_group.kill()


def test_an_env_that_cannot_be_made_is_not_tried_again(start: Start, tmp_path: Path) -> None:
    # Two actors with 8 envs each: the fuse counts constructors, so a second try would be seen in its length.
    fuse = tmp_path / "fuse"
    run = start(env_kwargs={"raise_in_constructor": True, "fuse": str(fuse), "fuse_count": 100})

    run.supervision.run(lambda: False)

    assert "EnvFault: the constructor raises, as ordered" in str(run.supervision.failure)
    assert "tried" not in str(run.supervision.failure)
    assert 1 <= len(fuse.read_bytes()) <= 2


def test_an_actor_whose_slots_were_not_taken_back_is_not_replaced(start: Start) -> None:
    run = start()
    owned = run.shared.table.slots_of(0)
    run.shared.table.begin(owned[0])
    run.process_group.kill()

    with pytest.raises(AssertionError, match="sf-actor-0 was filling a slot"):
        run.process_group.replace("sf-actor-0")


@pytest.mark.parametrize(
    ("death", "kind", "code", "words"),
    [
        (ProcessExit("sf-actor-0", -11, ""), WorkerDied, ExitCode.FAULTS, "sf-actor-0 was killed by SIGSEGV"),
        (
            ProcessExit("sf-actor-0", -9, ""),
            WorkerDied,
            ExitCode.FAULTS,
            "SIGKILL; perhaps the machine ran out of memory",
        ),
        (ProcessExit("sf-actor-0", 0, ""), WorkerDied, ExitCode.FAULTS, "ended with exit code 0 although"),
        (ProcessExit("sf-policy-0-0", 3, "T\nValueError: x"), WorkerDied, ExitCode.FAULTS, "failed: ValueError: x"),
        (ProcessExit("sf-learner-0", 3, "T\nValueError: x"), LearnerDied, ExitCode.LEARNER, "sf-learner-0 failed"),
        (ProcessExit("sf-learner-0", 71, "T\nDiverged"), LearnerDied, ExitCode.DIVERGED, "failed: Diverged"),
        (ProcessExit("sf-learner-0", 74, "T\nFull"), LearnerDied, ExitCode.CANNOT_SAVE, "failed: Full"),
        (ProcessExit("sf-actor-0", 71, "T\nx"), WorkerDied, ExitCode.FAULTS, "failed: x"),
    ],
)
def test_a_death_becomes_the_error_of_the_run(
    death: ProcessExit, kind: type[Exception], code: ExitCode, words: str
) -> None:
    error = death.as_error()

    assert type(error) is kind
    assert error.exit_code == code
    assert words in str(error)
    assert str(error).splitlines()[-1].startswith(death.name)


def test_who_takes_long_for_an_update_is_given_the_time_to_save(start: Start) -> None:
    run = start()
    usual = run.supervision._save_grace_s()

    run.shared.status.row("sf-learner-0").set("update_s", 10.0)
    run.shared.status.row("sf-learner-0").set("save_s", 2.5)
    longer = run.supervision._save_grace_s()
    run.shared.status.row("sf-learner-0").set("update_s", 1e6)

    assert longer == usual + 25.0
    assert run.supervision._save_grace_s() == 120.0
    run.process_group.kill()


def test_a_failure_to_save_is_told_although_another_failure_came_first(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    died = ProcessExit("sf-learner-0", int(ExitCode.CANNOT_SAVE), "CannotSaveError: the disk is full")
    run.supervision.failure = WorkerDied("sf-actor-0 was killed")

    run.supervision._on_death(died)
    run.process_group.kill()

    assert "the disk is full" in caplog.text
    assert str(run.supervision.failure) == "sf-actor-0 was killed"
