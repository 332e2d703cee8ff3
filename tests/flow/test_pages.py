"""The quickstart and the tutorials run as they stand, block by block, and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import blocks, missing_lines, run_page
from tests.support.source import ROOT, documents

# Without a GPU the commands of docs/tutorials/gpu.md are refused, as they say.
TRIED = [
    path
    for path in documents()
    if path.startswith(("docs/quickstart", "docs/tutorials/", "docs/coming_from/sb3")) and not path.endswith("/gpu.md")
]


@pytest.mark.long
@pytest.mark.parametrize("path", TRIED)
def test_a_page_runs_as_it_stands(path: str, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    shown = {block.text for block in blocks(path) if block.kind == "text"}

    missing = [missing_lines(text, printed) for text, printed in run_page(path, tmp_path) if text in shown]

    assert len(missing) == len([block for block in blocks(path) if block.kind == "text"])
    assert [line for lines in missing for line in lines] == []
