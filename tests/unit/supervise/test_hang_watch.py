"""A run in one process tells where it stands still, and only then."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Progress is shown every 0.1 s for a second, as by an actor's one long turn; then {end} for a second.
PROGRAM = """
import time
from sfactory.supervise import hang_detection

hang_detection.STALL_S, hang_detection._LOOK_S = 0.5, 0.05
from sfactory.shared.status import StatusBoard

board = StatusBoard(["sf-actor-0"])
row = board.row("sf-actor-0")
with hang_detection.SerialHangWatch(board) as watch:
    for _ in range(10):
        time.sleep(0.1)
        row.{progress}
    print("slow but sure", file=__import__("sys").stderr, flush=True)
    {end}
"""


def stderr_of(progress: str, end: str) -> str:
    program = PROGRAM.format(progress=progress, end=end)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return ended.stderr


@pytest.mark.parametrize("progress", ["count_env_steps(1)", "begin_work()", "beat()"])
def test_stacks_are_written_once_progress_ends(progress: str) -> None:
    before, _, after = stderr_of(progress, "time.sleep(1.5)").partition("slow but sure")

    assert "Timeout" not in before
    assert "Timeout" in after
    assert 'File "<string>"' in after


def test_a_pause_may_take_as_long_as_it_likes() -> None:
    assert "Timeout" not in stderr_of("beat()", "\n    with watch.paused(): time.sleep(1.5)")
