"""The audit says what is known, and never takes silence for a clean bill."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.audit import CLEAN, KNOWN, NOT_ASKED, main

GOOD = {"name": "torch", "version": "2.13.0", "vulns": []}
BAD = {"name": "numpy", "version": "2.4.6", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.4.7"]}]}
SKIPPED = {"name": "tqdm", "skip_reason": "Dependency not found on PyPI and could not be audited: tqdm (4.70.1)"}


def tool(folder: Path, output: str, code: int = 0) -> list[str]:
    """A program that answers as pip-audit does, if it is asked about constraints.txt."""
    script = folder / "pip_audit.py"
    script.write_text(
        f"import sys\nassert sys.argv[2].endswith('constraints.txt'), sys.argv\nprint({output!r})\nsys.exit({code})\n"
    )
    return [sys.executable, str(script)]


@pytest.mark.parametrize(
    ("packages", "code", "told"),
    [
        ([GOOD, GOOD], CLEAN, "2 of 2 packages were asked about, and 0 advisories found"),
        ([GOOD, BAD], KNOWN, "numpy 2.4.6: PYSEC-1, mended in 2.4.7"),
        ([BAD, SKIPPED], KNOWN, "NOT ASKED about: tqdm"),
        ([GOOD, SKIPPED], NOT_ASKED, "1 of 2 packages were asked about"),
        ([SKIPPED], NOT_ASKED, "NOT ASKED about: tqdm"),
        ([], NOT_ASKED, "0 of 0 packages"),
    ],
)
def test_the_exit_code_tells_what_is_known_from_what_was_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], packages: list[dict[str, Any]], code: int, told: str
) -> None:
    answer = json.dumps({"dependencies": packages, "fixes": []})

    assert main(tool(tmp_path, answer, code=int(BAD in packages))) == code
    assert told in capsys.readouterr().out


def test_a_tool_that_says_nothing_has_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tool(tmp_path, "no network", code=1)) == NOT_ASKED
    assert main([str(tmp_path / "missing")]) == NOT_ASKED

    assert capsys.readouterr().out.count("NOT ASKED: ") == 2
