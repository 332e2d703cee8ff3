"""A run leaves nothing open if it cannot start, and a run in one process draws other actions in each session."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sfactory import clock
from sfactory.config.flags import config_of
from sfactory.env.lifecycle import close_env
from sfactory.errors import ObserverFailed
from sfactory.experiment.resume import Resumed
from sfactory.experiment.run_dir import RunDir
from sfactory.learner import checkpointing
from sfactory.learner.learner import Learner
from sfactory.learner.learner_process import LearnerWorker
from sfactory.learner.setup import LearnerSetup
from sfactory.planning.plan import plan_run
from sfactory.process.signals import Interrupts
from sfactory.process.spawn import Spawner
from sfactory.runner import serial
from sfactory.runner.context import RunContext
from sfactory.runner.parallel import ParallelExecutor
from sfactory.runner.serial import SerialExecutor, SerialSampling
from sfactory.shared.control import Stop
from sfactory.shared.status import State
from tests.support.one_process import context_in
from tests.support.parts import VECTOR


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as interrupts:
        yield interrupts


def context_of(folder: Path, interrupts: Interrupts, env_steps: int = 0, **flags: object) -> RunContext:
    """Of a run that resumes at ``env_steps``."""
    config = config_of(
        {"env": "any", "inference": "central", "device": "cpu", "encoder_mlp_layers": (8,), "num_workers": 1, **flags}
    )
    with RunDir.open(folder, f"run{env_steps}") as run_dir:
        return context_in(run_dir, interrupts, config, plan_run(config, VECTOR), Resumed(env_steps))


def test_metrics_are_written_even_if_children_cannot_be_started(
    tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Spawner, "start", fail)
    executor = ParallelExecutor(context_of(tmp_path, interrupts, flush_summaries_interval=9999))

    with pytest.raises(OSError, match="no more processes"):
        executor.run()

    (events,) = tmp_path.glob("*/events.out.tfevents.*")
    assert events.stat().st_size > 0


@pytest.mark.parametrize(
    ("signals", "failed", "as_at_a_limit"), [(0, False, True), (0, True, False), (1, False, False)]
)
def test_learners_are_to_end_as_at_a_limit_only_if_an_observer_alone_ends_the_run(
    signals: int,
    failed: bool,
    as_at_a_limit: bool,
    tmp_path: Path,
    interrupts: Interrupts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RunDir, "lost", False)
    context = context_of(tmp_path, interrupts)
    executor = ParallelExecutor(context)
    control, context.observers.ended_by = executor._shared.control, "watch"
    if failed:
        context.observers._failure = ObserverFailed("no mail server")
    control.order_stop(Stop(signals))

    with contextlib.closing(executor._reporter):
        assert executor._beat()

    assert control.has_enough == as_at_a_limit


@pytest.mark.parametrize("error", [KeyboardInterrupt("a timer"), GeneratorExit(), TimeoutError("a timer")])
def test_a_serial_run_saves_and_tells_its_result_whatever_an_env_has_left_behind_raises(
    error: BaseException, tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    saved: list[SerialExecutor] = []
    monkeypatch.setattr(SerialExecutor, "_make_workers", lambda _: None)
    monkeypatch.setattr(SerialExecutor, "_take_turns", fail)
    monkeypatch.setattr(SerialExecutor, "_save_all", lambda executor: saved.append(executor))
    monkeypatch.setattr(RunDir, "lost", False)
    executor = SerialExecutor(context_of(tmp_path, interrupts, serial_mode=True))

    outcome = executor.run()

    assert saved == [executor]
    assert (outcome.status, outcome.summary.status) == ("failed", "failed")
    assert type(error).__name__ in str(outcome.error)


def test_a_serial_run_warns_of_a_policy_that_gets_no_data(
    tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two policies the first alone has steps, and then its limit."""
    moment = 0.0
    monkeypatch.setattr(clock, "now", lambda: moment)
    monkeypatch.setattr(RunDir, "require_held", lambda _: None)
    context = context_of(tmp_path, interrupts, serial_mode=True, num_policies=2, learner_starvation_timeout_sec=30)
    executor = SerialExecutor(context)
    status, directory = executor._shared.status, str(tmp_path)
    workers = []
    for policy, name in enumerate(status.names[:2]):
        setup = LearnerSetup(context.config, executor._shared, policy, 1, "cpu", 1, directory)
        workers.append(LearnerWorker(setup, Learner(setup, status.row(name)), status.row(name)))

    def turn(_: SerialSampling) -> None:
        nonlocal moment
        moment += 1.0
        status.row("sf-actor-0").add("env_steps", 1)
        workers[0].starvation.begin()
        if moment == 100.0:
            status.row("sf-learner-0").set("state", State.DONE)

    monkeypatch.setattr(SerialSampling, "turn", turn)
    monkeypatch.setattr(SerialExecutor, "_learn", lambda *_: None)
    monkeypatch.setattr(SerialExecutor, "_all_over", lambda _: moment == 300.0)
    monkeypatch.setattr(executor, "_learner_workers", workers)
    monkeypatch.setattr(executor, "_learners", [worker._learner for worker in workers])
    with contextlib.closing(executor._reporter):
        executor._take_turns()

    assert caplog.text.count("says how often policy 1 plays") == 10
    assert caplog.text.count("the run waits for policy 1, ") == 1
    assert "policy 0 plays" not in caplog.text


class Unclosable:
    """Its close() takes longer than a test may. by_signal: it meets a SIGTERM."""

    def __init__(self, by_signal: bool) -> None:
        self._by_signal = by_signal

    def close(self) -> None:
        if self._by_signal:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        time.sleep(600)


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_serial_run_that_is_done_ends_although_an_env_does_not_close(
    by_signal: bool, tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serial, "_CLOSE_S", 300.0 if by_signal else 0.1)
    monkeypatch.setattr(SerialExecutor, "_make_workers", lambda _: setattr(interrupts, "raising", False))
    monkeypatch.setattr(SerialExecutor, "_train", lambda _: True)
    executor = SerialExecutor(context_of(tmp_path, interrupts, serial_mode=True))
    executor._sampling.envs.callback(close_env, Unclosable(by_signal), "env 0")

    outcome = executor.run()

    assert outcome.status == "done"


def test_time_in_which_a_serial_run_was_stopped_is_no_training_time(
    tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = clock.now()
    for module in (clock, checkpointing):
        monkeypatch.setattr(module, "now", lambda: at)
    executor = SerialExecutor(context_of(tmp_path, interrupts, serial_mode=True))
    executor._make_learner(0)
    progress = executor._learners[0].progress
    progress.start_clock(at)

    at += 3600.0

    assert progress.train_seconds == clock.PAUSE_S


def test_actions_are_drawn_from_another_seed_after_a_resume(
    tmp_path: Path, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    for kind, name in ((SerialExecutor, "_make_learner"), (SerialSampling, "make_actor")):
        monkeypatch.setattr(kind, name, lambda *_: None)
    monkeypatch.setattr(SerialSampling, "_make_policy_worker", lambda *_: seeds.append(torch.initial_seed()))

    for env_steps in (0, 0, 1000, 2000):
        with torch.random.fork_rng():
            SerialExecutor(context_of(tmp_path, interrupts, env_steps))._make_workers()

    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3
