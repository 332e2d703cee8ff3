"""A signal that arrives in the middle of an import, where raising would leave half a module behind."""

from __future__ import annotations

import sys

import pytest

from sfactory.errors import ExitCode
from tests.support.trainer import RunTrainer

pytestmark = pytest.mark.faults

# Sends itself SIGINT when the module in argv[1] is looked for. What follows there is a command as a user types it, of
# three words and flags; the trainer runs on these flags.
PROGRAM = """
import signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1] and self in sys.meta_path:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
        return None

from sfactory.train import main
sys.meta_path.insert(0, Interrupter())
sys.exit(main(sys.argv[5:]))
"""


@pytest.mark.parametrize(
    "module", ["sfactory.config.resolve", "yaml.serializer", "yaml._yaml", "gymnasium.envs.registration", "torch.nn"]
)
def test_a_signal_inside_an_import_is_answered_as_any_other(run_trainer: RunTrainer, module: str) -> None:
    run = run_trainer((sys.executable, "-c", PROGRAM, module))

    run.assert_ended(ExitCode.SIGINT)
    assert run.last_stderr_line.startswith("RESULT interrupted env_steps=0 "), run.report("there are steps")
    assert "Traceback" not in run.stderr


# As above, within a call of Python from the C++ of torch, which calls std::terminate if that raises. Tells so, since
# a torch that does not call Python there is not met.
FROM_C = """
import signal, sys
from sfactory.train import main

within = False

def watch(frame, event, function):
    global within
    if event in ("c_call", "c_return", "c_exception") and function.__name__ == "_c10d_init":
        within = event == "c_call"
    elif event == "call" and within:
        sys.setprofile(None)
        print("a signal comes within _c10d_init", file=sys.stderr)
        signal.raise_signal(signal.SIGINT)

sys.setprofile(watch)
sys.exit(main(sys.argv[4:]))
"""


def test_a_signal_while_torch_calls_python_from_c_is_answered_as_any_other(run_trainer: RunTrainer) -> None:
    run = run_trainer((sys.executable, "-c", FROM_C))

    run.assert_ended(ExitCode.SIGINT)
    assert "a signal comes within _c10d_init" in run.stderr, run.report("torch calls no Python there")
    assert run.last_stderr_line.startswith("RESULT interrupted env_steps=0 "), run.report("there are steps")
    assert "Traceback" not in run.stderr
