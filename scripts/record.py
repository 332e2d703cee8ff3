"""Describes this machine and writes JSON files and Markdown tables of measurements."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from sfactory.system.cores import Cores

# Wide or short formats, for which a processor has units or has not: networks run several times as fast with them.
# The last two are ARM's.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve", "bf16")


def cpu_model(cpuinfo: str) -> str:
    """The model that /proc/cpuinfo names, or the architecture where it names none."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def instructions(cpuinfo: str) -> list[str]:
    """INSTRUCTIONS that /proc/cpuinfo lists; processors with the same name may differ in them."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    known = set() if found is None else set(found.group(1).split())
    return [name for name in INSTRUCTIONS if name in known]


def machine() -> dict[str, object]:
    """The machine and the versions of a measurement."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": cpu_model(cpuinfo),
        "instructions": instructions(cpuinfo),
        "cores": Cores.available().count,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "gymnasium", "sfactory")},
    }


def write_json(path: Path, result: object) -> None:
    """Write ``result`` for people to read, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows])
