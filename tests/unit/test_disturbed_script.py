"""scripts/disturbed.py kills actors of one run of each pair, and compares what was learned from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.source import ROOT


def test_one_run_of_each_pair_is_disturbed_and_the_ratio_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "disturbed.json"

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/disturbed.py", "--rounds=1", "--seconds=6", "--every=3", f"--out={out}"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )

    found = json.loads(out.read_text())
    (alone,), (disturbed,) = found["runs"]["left alone"], found["runs"]["disturbed"]
    assert (alone["kills"], alone["replaced"]) == (0, 0)
    assert disturbed["kills"] >= 1
    assert 1 <= disturbed["replaced"] + disturbed["anew"] <= disturbed["kills"]
    assert found["ratio"]["median"] == round(disturbed["env_steps"] / alone["env_steps"], 4)
    assert "disturbed over left alone: " in done.stdout


def test_a_share_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "disturbed.json"
    limits = ["--rounds=1", "--seconds=3", "--every=1", "--at_least=9", f"--out={out}"]

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/disturbed.py", *limits], capture_output=True, text=True, timeout=240
    )

    assert done.returncode == 1
    assert "error: less than 900% of the run left alone" in done.stderr
    assert json.loads(out.read_text())["ratio"]["median"] < 9
