"""Lists known vulnerabilities of the packages that sfactory installs, from the output of pip-audit.

pip-audit ends with 0 also if it could not ask about a package. This script has an exit code for that: see
docs/security.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLEAN, KNOWN, NOT_ASKED = 0, 1, 3
_TIMEOUT_S = 600


def advisories(tool: Sequence[str], versions: Path) -> list[Mapping[str, Any]]:
    """The report of pip-audit on each package. Raises OSError or ValueError if it says nothing."""
    command = [*tool, "--requirement", str(versions), "--no-deps", "--disable-pip", "--format=json"]
    command += ["--progress-spinner=off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer within {_TIMEOUT_S} s") from error
    try:
        packages: list[Mapping[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError) as error:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(f"pip-audit ended with {done.returncode} and said: {last}") from error
    return packages


def verdict(packages: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """The exit code and a text."""
    known = [
        f"{package['name']} {package['version']}: {entry['id']}, mended in {', '.join(entry['fix_versions']) or 'none'}"
        for package in packages
        for entry in package.get("vulns", [])
    ]
    skipped = [str(package["name"]) for package in packages if "skip_reason" in package]
    asked = len(packages) - len(skipped)
    lines = [*known, f"{asked} of {len(packages)} packages were asked about, and {len(known)} advisories found"]
    if skipped:
        lines.append(f"NOT ASKED about: {' '.join(skipped)}")
    if known:
        return KNOWN, lines
    return (NOT_ASKED if skipped or not packages else CLEAN), lines


def main(tool: Sequence[str]) -> int:
    """Audit with ``tool``; returns the exit code."""
    try:
        code, lines = verdict(advisories(tool, ROOT / "constraints.txt"))
    except (OSError, ValueError) as error:
        code, lines = NOT_ASKED, [f"NOT ASKED: {error}"]
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["pip-audit"]))
