"""scripts/batchers.py measures what each number of batchers assembles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.source import ROOT


def test_each_number_of_batchers_is_measured_for_each_kind_of_observation(tmp_path: Path) -> None:
    out = tmp_path / "batchers.json"

    done = subprocess.run(
        [sys.executable, ROOT / "scripts/batchers.py", "--rounds=2", "--seconds=0.2", f"--out={out}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    found = json.loads(out.read_text())["observations"]
    assert list(found) == ["4 numbers", "4 images of 84x84"]
    for subject, its in found.items():
        assert {count: len(rates) for count, rates in its["gb_per_second"].items()} == {"1": 2, "2": 2}
        assert all(rate > 0 for rates in its["gb_per_second"].values() for rate in rates)
        assert f"| {subject} |" in done.stdout
