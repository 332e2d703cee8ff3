"""Ctrl-C and SIGTERM at any moment: the run ends soon, quietly, with its work saved and the way to go on."""

from __future__ import annotations

import re
import signal
import sys
import time

import pytest

from sfactory.errors import ExitCode
from sfactory.process.signals import ECHO_S
from tests.support import processes
from tests.support.hooks import SLEEPING
from tests.support.long import long
from tests.support.resume import assert_resumes
from tests.support.trainer import REAL, RunTrainer, TrainerRun, within

pytestmark = pytest.mark.faults

ENDLESS = 1_000_000_000
EXIT_CODES = {signal.SIGINT: ExitCode.SIGINT, signal.SIGTERM: ExitCode.SIGTERM}
END_S = within(12.0)  # a stop waits 8 s for the last checkpoint, and then ends the run anyway
AT_ONCE_S = within(3.0)
# Tells, when torch is looked for, which signals are handled by then, and whether it is loaded all the same. What
# follows there is a command as a user types it, of three words and flags; the trainer runs on these flags.
TELLS_OF_TORCH = """
import os, signal, sys
from tests.support.processes import catches_signal, maps_library

class Teller:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and self in sys.meta_path:
            sys.meta_path.remove(self)
            pid = os.getpid()
            handled = [number.name for number in (signal.SIGINT, signal.SIGTERM) if catches_signal(pid, number)]
            loaded = maps_library(pid, "libtorch")
            print(f"torch is looked for: handled {handled}, loaded {loaded}", file=sys.stderr)
        return None

from sfactory.train import main
sys.meta_path.insert(0, Teller())
sys.exit(main(sys.argv[4:]))
"""


def wait_until_signals_are_handled(run: TrainerRun) -> None:
    """Before this the Python interpreter itself is starting, and no program can answer."""
    run.wait_until(lambda: processes.catches_signal(run.pid, signal.SIGTERM))


def assert_interrupted(run: TrainerRun, number: signal.Signals, within_s: float = END_S) -> None:
    assert run.wait(within_s) == EXIT_CODES[number], run.report("wrong exit code")
    assert run.last_stderr_line.startswith("RESULT interrupted "), run.report("wrong last line")
    assert "sfactory.train" in run.last_stderr_line.partition("resume: ")[2]
    assert "Traceback" not in run.stderr, run.report("a traceback")
    run.assert_clean()


def test_signals_are_handled_before_anything_heavy_is_imported(run_trainer: RunTrainer) -> None:
    # What takes seconds to import must be interruptible meanwhile.
    run = run_trainer((sys.executable, "-c", TELLS_OF_TORCH), train_for_env_steps=ENDLESS)

    run.wait_until("torch is looked for: .*\n")
    assert re.findall("torch is looked for: (.*)", run.stderr) == ["handled ['SIGINT', 'SIGTERM'], loaded False"]


@pytest.mark.parametrize(
    ("number", "after_s", "under"),
    [
        (signal.SIGINT, 0.3, REAL),
        (signal.SIGTERM, 1.5, REAL),
        (signal.SIGINT, 0.6, ()),
        (signal.SIGTERM, 0.2, ()),
        long(signal.SIGTERM, 1.0, ()),
        long(signal.SIGINT, 1.0, REAL),
        long(signal.SIGTERM, 0.6, REAL),
    ],
)
def test_a_signal_during_start_up_ends_the_run(
    run_trainer: RunTrainer, number: signal.Signals, after_s: float, under: tuple[str, ...]
) -> None:
    run = run_trainer(under, train_for_env_steps=ENDLESS)
    wait_until_signals_are_handled(run)
    time.sleep(max(0.0, run.started + after_s - time.monotonic()))

    run.signal_group(number)

    assert_interrupted(run, number)


def test_ctrl_c_in_mid_run_saves_and_the_run_can_be_resumed(run_trainer: RunTrainer) -> None:
    # A long interval, so that nothing but the interrupt saves.
    run = run_trainer(train_for_env_steps=ENDLESS, save_every_sec=1000)
    run.wait_until(lambda: "sf-learner-0" in run.processes())
    run.wait_until(r"env_steps=[1-9]")

    run.signal_group(signal.SIGINT)

    assert_interrupted(run, signal.SIGINT)
    saved = run.saved_env_steps()
    assert saved > 0
    assert run.result()["env_steps"] == saved
    assert run.result()["status"] == "interrupted"
    assert_resumes(run, run_trainer)


@pytest.mark.parametrize("apart_s", [long(0.0), 0.1, long(0.5)])
def test_ctrl_c_twice_ends_the_run_and_leaves_what_was_saved(run_trainer: RunTrainer, apart_s: float) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS)
    run.wait_until_training()
    saved = run.saved_env_steps()

    run.signal_group(signal.SIGINT)
    time.sleep(apart_s)
    if run.processes():
        run.signal_group(signal.SIGINT)

    assert_interrupted(run, signal.SIGINT)
    assert run.saved_env_steps() >= saved


def test_a_signal_that_timeout_sends_twice_saves_as_one_does(run_trainer: RunTrainer) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS, save_every_sec=1000)
    run.wait_until(r"env_steps=[1-9]")

    run.signal_main(signal.SIGTERM)
    run.signal_group(signal.SIGTERM)

    assert_interrupted(run, signal.SIGTERM)
    assert run.result()["env_steps"] == run.saved_env_steps() > 0


def test_a_second_ctrl_c_ends_the_run_at_once_without_saving(run_trainer: RunTrainer) -> None:
    run = run_trainer(
        train_for_env_steps=ENDLESS,
        save_every_sec=1000,  # so that nothing but a stop would save
        after_train_step=("tests.support.hooks:sleep_long",),
    )
    run.wait_until(SLEEPING)
    run.signal_group(signal.SIGINT)
    run.wait_until("a second signal ends the run at once")
    time.sleep(ECHO_S)

    run.signal_group(signal.SIGINT)

    # A stop that had waited for the learner in vain would have failed, with another exit code.
    assert_interrupted(run, signal.SIGINT, AT_ONCE_S)
    assert list(run.run_dir.rglob("*.pth")) == []
    assert run.saved_env_steps() == 0


@pytest.mark.parametrize("to_group", [False, long(True)])
def test_sigterm_in_mid_run_saves_and_the_run_can_be_resumed(run_trainer: RunTrainer, to_group: bool) -> None:
    run = run_trainer(train_for_env_steps=ENDLESS)
    run.wait_until_training()

    if to_group:
        run.signal_group(signal.SIGTERM)
    else:
        run.signal_main(signal.SIGTERM)

    assert_interrupted(run, signal.SIGTERM)
    assert run.result()["env_steps"] == run.saved_env_steps()
    assert_resumes(run, run_trainer)
