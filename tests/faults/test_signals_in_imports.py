"""A signal that arrives in the middle of an import, where raising would leave half a module behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sfactory.errors import ExitCode

pytestmark = pytest.mark.faults

# Sends itself SIGINT when the module in argv[1] is looked for, then runs the trainer on the other arguments.
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
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "module", ["sfactory.config.cli", "yaml.serializer", "yaml._yaml", "gymnasium.envs.registration", "torch.nn"]
)
def test_a_signal_inside_an_import_is_answered_as_any_other(module: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=run"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == ExitCode.SIGINT, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("RESULT interrupted env_steps=0 "), ended.stderr
    assert "Traceback" not in ended.stderr
