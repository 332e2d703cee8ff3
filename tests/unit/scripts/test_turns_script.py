"""scripts/turns.py runs commands side by side, one at a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts.turns import Order, run_in_turns

SECONDS = 2.0
# Computes for a while, and tells what time of a core it was given.
BUSY = f"""
import json, time
end = time.monotonic() + {SECONDS}
while time.monotonic() < end:
    pass
print(json.dumps(time.process_time()))
"""


def order(code: str, folder: Path) -> Order:
    return Order([sys.executable, "-c", code], folder, {"TURN_OF": "somebody"})


def test_of_commands_in_turns_each_has_its_share_of_the_time(tmp_path: Path) -> None:
    found = run_in_turns({name: order(BUSY, tmp_path) for name in ("one", "other", "third")}, 0.05)

    assert list(found) == ["one", "other", "third"]
    for output in found.values():
        # A third of the time; on cores of their own they would have had all of it.
        assert 0 < json.loads(output.stdout) < SECONDS / 2


def test_whoever_is_alone_in_the_end_has_no_more_than_its_share(tmp_path: Path) -> None:
    found = run_in_turns({"short": order("pass", tmp_path), "long": order(BUSY, tmp_path)}, 0.05)

    assert found["short"].stdout == ""
    assert json.loads(found["long"].stdout) < 0.75 * SECONDS


def test_a_command_that_fails_ends_the_script_with_what_it_told(tmp_path: Path) -> None:
    failing = order("import os, sys; sys.exit('no luck, ' + os.environ['TURN_OF'])", tmp_path)

    with pytest.raises(SystemExit, match=r"(?s)ended with 1.*no luck, somebody"):
        run_in_turns({"good": order("pass", tmp_path), "bad": failing}, 0.05)


def test_of_commands_that_take_too_long_one_that_still_runs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.turns.RUN_LIMIT_S", 5.0)  # the short one ends within a tenth of a second
    orders = {"short": order("pass", tmp_path), "long": order("import time; time.sleep(600)", tmp_path)}

    with pytest.raises(SystemExit, match=r"(?s)time\.sleep\(600\).*took longer than 5 s in turns"):
        run_in_turns(orders, 0.05)
