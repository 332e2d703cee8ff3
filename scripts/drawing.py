"""Helps the scripts that draw: the command line, the figure, the SVG.

It has no command of its own. Drawing needs matplotlib: pip install -e '.[plot]'
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Measured = Mapping[str, Any]


def pyplot(font_size: int) -> Any:
    """matplotlib's pyplot, set so that it draws the same file for the same data; typed so that mypy needs none."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    # Ids that do not change, and text that stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "sfactory", "svg.fonttype": "none", "font.size": font_size})
    return importlib.import_module("matplotlib.pyplot")


def save(figure: Any, target: Path) -> None:
    """Write the figure, which is not needed any more, without a date."""
    figure.savefig(target, metadata={"Date": None})
    importlib.import_module("matplotlib.pyplot").close(figure)


def hardware(measured: Measured) -> str:
    """On what it was measured, for a title; older files do not tell what the processor has units for."""
    units = ", ".join(measured.get("instructions", ()))
    return f"{measured['cores']} cores of {measured['cpu']}{f' ({units})' if units else ''}"


def command(about: str | None, draw: Callable[[Sequence[Measured], Path], None], several: bool = False) -> None:
    """A script whose arguments are the JSON that was measured (one file, or ``several``) and the SVG to draw."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="+" if several else 1)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    draw([json.loads(file.read_text()) for file in given.measured], given.target)
    print(given.target)
