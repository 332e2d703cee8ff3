"""The wall clock jumps by an hour, forth and back: no wait, rate or save depends on it.

Rings wait by the wall clock inside the C++ of faster-fifo. A wait that begins while the clock is an hour ahead is set
for an hour; it has to end when a message comes, and must not keep a run from ending.
"""

from __future__ import annotations

import re
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from sfactory.errors import ExitCode
from tests.support.trainer import ENDLESS, RunTrainer

pytestmark = pytest.mark.long

HOUR_S = 3600
SOURCE = Path(__file__).parents[1] / "support" / "stepped_clock.c"


class WallClock:
    """What all processes of a run see of the wall clock: ``step`` it by seconds against the true one."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler here")
        self._path, library = folder / "clock", folder / "stepped_clock.so"
        self.step(0)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        self.variables = {"LD_PRELOAD": str(library), "SFACTORY_TEST_CLOCK": str(self._path)}

    def step(self, seconds: int) -> None:
        """From now on the clock is off by so many seconds."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("<q", seconds))


def test_run_survives_jumps_of_the_wall_clock(
    run_trainer: RunTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WallClock(tmp_path)
    for name, value in clock.variables.items():
        monkeypatch.setenv(name, value)
    run = run_trainer(train_for_env_steps=ENDLESS)
    run.wait_until_training()

    for seconds in (HOUR_S, -HOUR_S, HOUR_S, -HOUR_S):
        clock.step(seconds)
        time.sleep(1.0)
        clock.step(0)
        run.saves_again()
    later = (time.localtime(time.time() + HOUR_S + seconds) for seconds in (0, 100))
    clock.step(HOUR_S)
    # The run has really seen another time.
    run.wait_until("|".join(re.escape(f"[{time.strftime('%Y-%m-%d %H', moment)}") for moment in later))
    clock.step(0)

    run.signal_group(signal.SIGINT)

    run.assert_ended(ExitCode.SIGINT, 30)
    summary = run.result()
    lasted_s = time.monotonic() - run.started
    assert summary["env_steps"] == run.saved_env_steps() > 0
    assert 0 < summary["train_seconds"] < lasted_s
    assert summary["fps"] == pytest.approx(summary["env_steps"] / summary["train_seconds"])
    rates = [row["perf/fps_10s"] for row in run.metrics() if row.get("perf/fps_10s") is not None]
    assert rates
    assert all(0 <= rate < 1e7 for rate in rates)
