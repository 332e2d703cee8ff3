"""A run with real children always ends, for the right reason, and leaves none of them behind."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.clock import now
from sfactory.config.schema import Config, HooksConfig, LearnerConfig, ModelConfig, RunConfig, SamplingConfig
from sfactory.env.factory import make_env
from sfactory.errors import ExitCode, LearnerDied, ProcessesLost, WorkerDied
from sfactory.layout import Layout
from sfactory.model.actor_critic import ActorCritic
from sfactory.model.flat_state import flat_bytes
from sfactory.process.orphans import children_of
from sfactory.process.signals import ECHO_S, Interrupts
from sfactory.process.spawn import Spawner
from sfactory.process.stack_dump import is_alive
from sfactory.shared.control import Stop
from sfactory.shared.objects import SharedObjects
from sfactory.shared.status import State
from sfactory.spec import EnvSpec
from sfactory.supervise import supervisor
from sfactory.supervise.process_group import ProcessExit, ProcessGroup, Workload
from sfactory.supervise.restarts import RestartBudget, WorkerReplacement
from sfactory.supervise.supervisor import Supervisor
from sfactory.system.cores import Cores
from tests.support.long import long
from tests.support.rings import lock_for_ever

FAULTY = "sfactory_envs.synthetic.faulty:Faulty"
BASE = Config(
    run=RunConfig(env=FAULTY, train_for_env_steps=10**9, device="cpu"),
    sampling=SamplingConfig(num_workers=2, num_envs_per_worker=8, rollout=8),
    learner=LearnerConfig(batch_size=128),
    model=ModelConfig(encoder_mlp_layers=(8,)),
)


class SmallRun:
    """Children of a run that the test supervises."""

    def __init__(
        self,
        folder: Path,
        interrupts: Interrupts,
        boot_limit_s: float = 90.0,
        background: bool = True,
        hooks: tuple[str, ...] = (),
        **run: Any,
    ) -> None:
        learner = dataclasses.replace(BASE.learner, train_in_background_thread=background)
        config = dataclasses.replace(
            BASE, run=dataclasses.replace(BASE.run, **run), learner=learner, hooks=HooksConfig(after_train_step=hooks)
        )
        env = make_env(FAULTY, {})
        spec = EnvSpec.of_spaces(env.observation_space, env.action_space)
        self.layout = Layout.plan(config.sampling, config.learner, "central")
        with torch.device("meta"):
            weight_bytes = flat_bytes(ActorCritic(spec, config.model))
        self.shared = SharedObjects(spec, self.layout, weight_bytes)
        self._checkpoints = folder / "checkpoint_p0"
        spawner = Spawner()
        spawner.open()
        workload = Workload(config, 1, 0, "cpu", Cores.available(), [str(self._checkpoints)])
        self.group = ProcessGroup(spawner, self.shared, workload)
        self.supervisor = Supervisor(self.group, self.shared.control, self.shared.status, interrupts, boot_limit_s)
        self.group.start()

    def trained(self) -> int:
        """Env steps trained so far."""
        return int(self.shared.status.total("env_steps", "sf-learner"))

    def run(self, act: Callable[[], object] = lambda: None) -> None:
        """Supervise to the end; call ``act`` at every beat once all processes have run and something was trained.

        True from it ends the run. A process that dies while it starts is only started again.
        """
        starting = set(self.layout.process_names)

        def on_beat() -> bool:
            states = {name: self.shared.status.row(name).get("state") for name in starting}
            starting.difference_update(name for name, state in states.items() if state >= State.RUNNING)
            return bool(not starting and self.trained() and act())

        self.supervisor.run(on_beat)

    def failure(self) -> str:
        return str(self.supervisor.failure)

    def kill(self, name: str) -> None:
        """SIGKILL one child, once."""
        if name in self.group.alive:
            os.kill(int(self.shared.status.row(name).get("pid")), signal.SIGKILL)

    def has_saved(self) -> bool:
        """Whether the checkpoint holds all that was trained, and not nothing."""
        loaded = CheckpointDir(self._checkpoints, keep=2).load()
        return loaded is not None and loaded.payload["env_steps"] == self.trained() > 0


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as interrupts:
        interrupts.raising = False
        yield interrupts


Start = Callable[..., SmallRun]


@pytest.fixture
def start(tmp_path: Path, interrupts: Interrupts) -> Iterator[Start]:
    runs: list[SmallRun] = []

    def start_one(**changes: Any) -> SmallRun:
        runs.append(SmallRun(tmp_path, interrupts, **changes))
        return runs[-1]

    yield start_one
    left = [run.group.kill() for run in runs]
    assert not any(left)


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

    run.run()

    sampled, layout = run.shared.status.total("env_steps", "sf-actor"), run.layout
    assert (run.supervisor.done, run.supervisor.failure, run.group.alive) == (True, None, [])
    assert run.has_saved()
    # Nothing was trained that was not sampled; what was sampled and not trained is under way, which has a bound.
    columns = layout.num_slots * layout.rows + (layout.datasets + 1) * layout.dataset_rows
    assert 3000 <= run.trained() <= sampled <= run.trained() + columns * layout.rollout


@pytest.mark.parametrize(
    ("signals", "stop", "saves"),
    [((), Stop.SAVE, True), ((signal.SIGTERM,), Stop.SAVE, True), ((signal.SIGINT, signal.SIGTERM), Stop.NOW, False)],
)
def test_a_beat_and_one_signal_save_and_a_second_signal_does_not(
    signals: tuple[signal.Signals, ...], stop: Stop, saves: bool, start: Start, interrupts: Interrupts
) -> None:
    run = start()
    ordered: list[Stop] = []  # after each signal, though main itself is held up

    def send() -> None:
        for number in signals:
            os.kill(os.getpid(), number)
            ordered.append(run.shared.control.stop)
            time.sleep(ECHO_S)

    run.run(once(send) if signals else lambda: True)

    assert interrupts.count == len(signals)
    assert set(ordered) == ({Stop.SAVE} if signals else set())
    assert (run.supervisor.done, run.supervisor.failure, run.group.alive) == (not signals, None, [])
    assert run.shared.control.stop is stop
    assert run.has_saved() or not saves


@pytest.mark.parametrize(
    ("name", "code", "stop"),
    [
        ("sf-actor-1", ExitCode.FAULTS, Stop.SAVE),
        ("sf-policy-0-0", ExitCode.FAULTS, Stop.SAVE),
        ("sf-learner-0", ExitCode.LEARNER, Stop.NOW),
    ],
)
def test_a_killed_child_is_the_failure_and_a_living_learner_saves(
    start: Start, name: str, code: ExitCode, stop: Stop
) -> None:
    run = start()

    run.run(lambda: run.kill(name))

    assert run.supervisor.failure is not None
    assert run.supervisor.failure.exit_code is code
    assert f"{name} was killed by SIGKILL" in run.failure()
    assert run.shared.control.stop is stop
    assert run.has_saved() or stop is Stop.NOW
    assert name in run.group.cut_off
    assert name == "sf-learner-0" or "sf-learner-0" not in run.group.cut_off, "it has saved, and ended by itself"


def test_the_learner_saves_and_all_end_although_the_fork_server_is_killed(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    pids = [int(run.shared.status.row(name).get("pid")) for name in run.group.alive]

    run.run(once(lambda: os.kill(min(children_of(Spawner._watcher or 0)), signal.SIGKILL)))

    assert run.failure().startswith("the fork server has ended")
    assert type(run.supervisor.failure) is ProcessesLost
    assert not caplog.records, "all others have ended in order"
    assert run.has_saved()
    assert not any(map(is_alive, pids))


def test_the_learner_saves_although_no_process_can_be_started_any_more(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()

    def no_fork(_fds: object) -> None:
        raise EOFError("unexpected EOF")  # as multiprocessing does if the fork fails

    def kill_a_worker() -> None:
        monkeypatch.setattr(forkserver, "connect_to_new_process", no_fork)
        run.kill("sf-actor-1")

    run.supervisor._replacement = WorkerReplacement(run.group, run.shared, RestartBudget("max_worker_restarts", 1))
    run.run(once(kill_a_worker))

    assert run.failure().startswith("sf-actor-1 cannot be started: the fork server has ended")
    assert run.supervisor.failure is not None
    assert run.supervisor.failure.exit_code is ExitCode.FAULTS
    assert run.has_saved()


@pytest.mark.parametrize("background", [long(True), False])
def test_the_learner_saves_although_a_killed_actor_has_left_its_ring_locked(
    start: Start, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_SAVE_GRACE_S", 6.0)  # the other actor hangs in that ring all the time
    run = start(background=background)

    def lock_and_kill() -> None:
        lock_for_ever(run.shared.to_learners[0])
        run.kill("sf-actor-1")

    run.run(once(lock_and_kill))

    assert "sf-actor-1 was killed by SIGKILL" in run.failure()
    assert run.has_saved()


def test_what_a_learner_raises_reaches_main_within_a_second_with_its_traceback(start: Start) -> None:
    # A busy machine may hold up any one run.
    for _ in range(3):
        run = start(hooks=("tests.support.hooks:fail_with_time",))
        noticed = run_to_failure(run.supervisor)
        assert isinstance(run.supervisor.failure, LearnerDied)
        assert "Traceback" in run.failure()
        assert "in fail_with_time" in run.failure()
        (failed_at,) = re.findall(r"^ValueError: failed at ([\d.]+)$", run.failure(), re.MULTILINE)
        if (took := noticed - float(failed_at)) < 1.0:
            return
    pytest.fail(f"took {took} s")


def run_to_failure(supervisor: Supervisor) -> float:
    """Supervise to the end; returns when a beat first saw a failure, on the clock of the machine."""
    noticed: list[float] = []

    def look() -> bool:
        if supervisor.failure is not None:
            noticed.append(now())
        return False

    supervisor.run(look)
    return [*noticed, now()][0]


@pytest.mark.parametrize(
    ("death", "kind", "code", "words"),
    [
        (("sf-actor-0", -11, ""), WorkerDied, ExitCode.FAULTS, "sf-actor-0 was killed by SIGSEGV"),
        (("sf-actor-0", -9, ""), WorkerDied, ExitCode.FAULTS, "SIGKILL; perhaps the machine ran out of memory"),
        (("sf-actor-0", 0, ""), WorkerDied, ExitCode.FAULTS, "ended with exit code 0 although"),
        (("sf-policy-0-0", 3, "T\nValueError: x"), WorkerDied, ExitCode.FAULTS, "failed: ValueError: x"),
        (("sf-learner-0", 3, "T\nValueError: x"), LearnerDied, ExitCode.LEARNER, "sf-learner-0 failed"),
        (("sf-learner-0", 70, "RankLost: x"), LearnerDied, ExitCode.LEARNER, "sf-learner-0 failed: RankLost: x"),
        (
            ("sf-learner-0", -9, "CannotSave: x"),
            LearnerDied,
            ExitCode.LEARNER,
            "CannotSave: x\nsf-learner-0 was killed",
        ),
        (("sf-learner-0", 71, "T\nDiverged"), LearnerDied, ExitCode.DIVERGED, "failed: Diverged"),
        (("sf-learner-0", 74, "T\nFull"), LearnerDied, ExitCode.CANNOT_SAVE, "failed: Full"),
        (("sf-actor-0", 71, "T\nx"), WorkerDied, ExitCode.FAULTS, "failed: x"),
    ],
)
def test_a_death_becomes_the_error_of_the_run(
    death: tuple[str, int, str], kind: type[Exception], code: ExitCode, words: str
) -> None:
    error = ProcessExit(*death).as_error()

    assert type(error) is kind
    assert error.exit_code == code
    assert words in str(error)
    *traceback, last = str(error).splitlines()
    assert last.startswith(death[0])
    assert len(traceback) == (2 if "\n" in death[2] else int(death[1] < 0 and bool(death[2])))  # nothing is said twice
