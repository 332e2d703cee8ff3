"""Ctrl-C and SIGTERM at any moment: the run ends soon and quietly, saves its work, and prints how to resume."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from sfactory import __version__
from sfactory.errors import ExitCode
from sfactory.process.signals import ECHO_S
from tests.support import processes
from tests.support.hooks import SLEEPING
from tests.support.long import long
from tests.support.trainer import ENDLESS, EXIT_CODES, FAULTY, REAL, RunTrainer, TrainerRun, assert_resumes, within

END_S = within(12.0)  # a stop waits 8 s for the last checkpoint, and then ends the run anyway
AT_ONCE_S = within(3.0)
# Sends itself SIGINT when the module in argv[1] is looked for, where raising would leave half a module behind. What
# follows in argv is a command as a user types it, of three words and flags; the trainer runs on these flags.
IN_IMPORT = """
import signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1] and self in sys.meta_path:
            sys.meta_path.remove(self)
            print("a signal comes", file=sys.stderr)
            signal.raise_signal(signal.SIGINT)
        return None

from sfactory.train import main
sys.meta_path.insert(0, Interrupter())
sys.exit(main(sys.argv[5:]))
"""
# The same within a call of Python from the C++ of torch, which calls std::terminate if that raises.
IN_C = """
import signal, sys
from sfactory.train import main

within = False

def watch(frame, event, function):
    global within
    if event in ("c_call", "c_return", "c_exception") and function.__name__ == "_c10d_init":
        within = event == "c_call"
    elif event == "call" and within:
        sys.setprofile(None)
        print("a signal comes", file=sys.stderr)
        signal.raise_signal(signal.SIGINT)

sys.setprofile(watch)
sys.exit(main(sys.argv[5:]))
"""


def assert_interrupted(run: TrainerRun, number: signal.Signals, within_s: float = END_S) -> None:
    run.assert_ended(EXIT_CODES[number], within_s)
    assert "Traceback" not in run.stderr, run.report("a traceback")


@pytest.mark.parametrize(
    ("program", "module"),
    [
        (IN_IMPORT, "sfactory.config.resolve"),
        *(long(IN_IMPORT, module) for module in ("torch.nn", "yaml._yaml", "torch", "gymnasium.envs.registration")),
        long(IN_C, "-", id="in C"),
    ],
)
def test_signal_inside_an_import_is_answered(run_trainer: RunTrainer, program: str, module: str) -> None:
    run = run_trainer((sys.executable, "-c", program, module))

    assert_interrupted(run, signal.SIGINT)
    assert "a signal comes" in run.stderr, run.report("this import is not met")
    result = run.last_stderr_line
    assert result.startswith("RESULT interrupted env_steps=0 return=none saved=0 "), run.report("there are steps")
    if module in ("torch", "torch.nn", "-"):
        says, answers = f"sfactory {__version__}: starting CartPole-v1 (importing torch takes", "SIGINT is handled when"
        lines = [line for line in run.stderr.splitlines() if line.startswith((says, "a signal comes", answers))]
        assert [line[:6] for line in lines] == ["sfacto", "a sign", "SIGINT"], run.report("it is silent meanwhile")


@pytest.mark.parametrize(
    ("number", "after_s", "under"),
    [
        (signal.SIGINT, 0.3, REAL),
        long(signal.SIGTERM, 1.5, REAL),
        (signal.SIGINT, 0.6, ()),
        long(signal.SIGTERM, 0.2, ()),
        long(signal.SIGTERM, 1.0, ()),
        long(signal.SIGTERM, 0.6, REAL),
    ],
)
def test_signal_during_start_up_ends_the_run(
    run_trainer: RunTrainer, number: signal.Signals, after_s: float, under: tuple[str, ...]
) -> None:
    run = run_trainer(under, train_for_env_steps=ENDLESS)
    # Before this the Python interpreter itself is starting, and no program can answer.
    run.wait_until(lambda: processes.catches_signal(run.pid, signal.SIGTERM))
    time.sleep(max(0.0, run.started + after_s - time.monotonic()))
    run.signal_group(number)

    assert_interrupted(run, number)


# `timeout` sends a SIGTERM twice: to main, and ``apart_s`` later to all. A Ctrl-C comes once.
@pytest.mark.parametrize(("serial", "apart_s"), [(False, 0.0), (True, None), long(False, 0.1), long(False, None)])
def test_interrupted_run_saves_and_can_be_resumed(run_trainer: RunTrainer, serial: bool, apart_s: float | None) -> None:
    # A long interval, so that nothing but the interrupt saves.
    run = run_trainer(train_for_env_steps=ENDLESS, save_every_sec=1000, serial_mode=serial)
    run.wait_until(r"env_steps=[1-9]")
    if serial:
        assert set(run.processes()) == {"sf-main"}
    number = signal.SIGINT if apart_s is None else signal.SIGTERM
    if apart_s is not None:
        run.signal_main(number)
        time.sleep(apart_s)
    run.signal_group(number)

    run.wait_until(f"{number.name} came: stopping and saving")
    assert_interrupted(run, number)
    assert run.result()["env_steps"] == run.saved_env_steps() > 0, run.report("the last steps are not saved")
    assert_resumes(run, run_trainer)


def test_second_ctrl_c_ends_the_run_at_once_without_saving(run_trainer: RunTrainer) -> None:
    hook = "tests.support.hooks:sleep_long"
    run = run_trainer(train_for_env_steps=ENDLESS, save_every_sec=1000, after_train_step=hook)
    run.wait_until(SLEEPING)
    run.signal_group(signal.SIGINT)
    run.wait_until("a second signal ends the run at once")
    time.sleep(ECHO_S)

    run.signal_group(signal.SIGINT)

    # A stop that had waited for the learner in vain would have failed, with another exit code.
    assert_interrupted(run, signal.SIGINT, AT_ONCE_S)
    assert list(run.run_dir.rglob("*.pth")) == []


@pytest.mark.parametrize("serial", [False, long(True)])
def test_ctrl_c_ends_a_dataset_that_would_take_hours(run_trainer: RunTrainer, tmp_path: Path, serial: bool) -> None:
    first_steps = tmp_path / "sf-main"  # a line for each of the 16 envs; 16 steps of each make a dataset
    env = {"env": "tests.support.envs:Reporting", "env_kwargs": {"folder": str(tmp_path)}}
    run = run_trainer(
        **env,
        train_for_env_steps=ENDLESS,
        serial_mode=serial,
        num_epochs=100_000,
        early_stop_loss_change=0,
        num_batches_per_epoch=1,
        save_every_sec=1000,
        save_best_after=0,
    )
    if serial:
        run.wait_until(lambda: first_steps.exists() and first_steps.read_text().count("\n") == 16)
        time.sleep(3.0)  # the dataset has come together, and one of its updates takes some thousandths of a second
    else:  # the steps of a dataset count after the first pass over it
        run.wait_until(lambda: run.stderr.count(" env_steps=256 ") > 4)
    assert run.saved_env_steps() == 0

    run.signal_group(signal.SIGINT)

    assert_interrupted(run, signal.SIGINT)
    # The one dataset that had been begun: all of it was learned from, many times over, and counts once.
    assert run.result()["env_steps"] == run.saved_env_steps() == 256
    assert run.result()["updates"] > 10


def test_ctrl_c_while_a_run_is_being_resumed_leaves_it_as_it_was(run_trainer: RunTrainer) -> None:
    earlier = run_trainer(train_for_env_steps=4096).done()
    episodes = earlier.result()["episodes"]

    for after_s in (0.0, 2.0):  # from the first line of the program to the first steps
        saved = earlier.saved_env_steps()
        run = run_trainer(train_for_env_steps=ENDLESS)
        run.wait_until(lambda run=run: processes.catches_signal(run.pid, signal.SIGTERM))  # type: ignore[misc]
        time.sleep(after_s)
        run.signal_group(signal.SIGINT)

        assert_interrupted(run, signal.SIGINT)
        line = re.match(r"RESULT interrupted env_steps=(\d+) ", run.last_stderr_line)
        assert line is not None, run.report("wrong last line")
        assert int(line[1]) >= saved, run.report(f"{saved} were saved")
        for summary in (run.result(), json.loads((run.run_dir / "summary.json").read_text())):
            assert summary["env_steps"] >= saved
            assert summary["episodes"] >= episodes > 0
            assert summary["updates"] > 0
        assert json.loads((run.run_dir / "run.json").read_text())["status"] in ("interrupted", "done")


@pytest.mark.long
def test_a_run_whose_output_is_not_read_trains_and_saves(run_trainer: RunTrainer, tmp_path: Path) -> None:
    output = tmp_path / "output"
    os.mkfifo(output)
    reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(output, os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)))

    run = run_trainer(("sh", "-c", f'exec "$@" >{output} 2>&1', "sh"), train_for_env_steps=ENDLESS)
    run.wait_until_training()
    run.signal_main(signal.SIGTERM)

    assert run.wait(END_S) == ExitCode.SIGTERM
    run.assert_clean()
    record = json.loads((run.run_dir / "summary.json").read_text())
    assert record["env_steps"] == run.saved_env_steps() > 0
    os.close(reader)
    os.close(writer)


@pytest.mark.long
def test_a_run_is_done_although_the_reader_of_its_result_has_gone(run_trainer: RunTrainer, tmp_path: Path) -> None:
    output = tmp_path / "output"
    os.mkfifo(output)
    reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)

    run = run_trainer(("sh", "-c", f'exec "$@" >{output}', "sh"), train_for_env_steps=1)
    run.wait_until("env_steps=[1-9]")
    os.close(reader)

    assert run.wait() == ExitCode.DONE
    assert run.last_stderr_line.startswith("RESULT done ")


def test_second_ctrl_c_ends_a_serial_run_with_a_hanging_env(run_trainer: RunTrainer, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    kwargs = {"hang_at": 300, "fuse": str(hanging)}
    run = run_trainer(serial_mode=True, env=FAULTY, env_kwargs=kwargs, train_for_env_steps=ENDLESS)
    run.wait_until(hanging.exists)

    def has_ended() -> bool:
        return "RESULT " in run.stderr

    for _ in range(10):  # two that come at once may count as one
        if not has_ended():
            run.signal_main(signal.SIGINT)
        if processes.eventually(has_ended, 1.0):
            break

    run.assert_ended(ExitCode.SIGINT)
