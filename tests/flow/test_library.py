"""A program and a notebook with an env and an encoder of their own train, evaluate, load, act and sample."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.source import ROOT, documents

EXAMPLES = ROOT / "docs" / "examples"
PROGRAM = (EXAMPLES / "own_agent.py").read_text()
EXECUTE = """
import nbclient, nbformat, os, sys
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
notebook = nbformat.read("notebook.ipynb", 4)
try:
    nbclient.NotebookClient(notebook, timeout=800).execute()
finally:
    nbformat.write(notebook, "done.ipynb")
"""
EVALUATE = ["-m", "sfactory.evaluate", "--experiment=short", "--episodes=20", "--workers=1", "--trust_run_dir=True"]
BLOCKS = re.findall(r"^```python\n(.*?)^```", documents()["docs/library.md"], re.DOTALL | re.MULTILINE)


def run(argv: list[str], folder: Path) -> str:
    """What a program prints that ends well."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_page_is_a_program_that_does_all_of_it(tmp_path: Path) -> None:
    first, *others = BLOCKS
    assert first == PROGRAM
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 20
    rest = [textwrap.indent(block, "    ") for block in others]
    (tmp_path / "own_agent.py").write_text("\n".join([first, *rest]))

    lines = run([sys.executable, "own_agent.py"], tmp_path).splitlines()

    mean, action = lines[0].split()
    assert float(mean) > 0.9
    assert action == "2"
    status, steps, trained, rows = lines[1].split()
    assert status == "done"
    assert 0 < int(steps) < 1_000_000
    assert float(trained) > 0.7  # some episodes end after the report
    assert int(rows) > 0
    assert lines[2].startswith("Discrete(4) Discrete(4) ")
    assert "1.0 0.0 1.0 (1.0, 1.0)" in lines[3]
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 51
    version, sampled = lines[4].split()
    assert version == "60"
    assert float(sampled) > 0.6
    saved = (tmp_path / "train_dir").glob("*/config.json")
    names = [json.loads(path.read_text())["config"]["env"] for path in saved]
    assert names == ["own_agent:Echo"] * 2

    evaluated = run([sys.executable, *EVALUATE, "--env=own_agent:Echo"], tmp_path)

    assert json.loads(evaluated)["episodes"] == 20


@pytest.mark.long
def test_the_notebook_does_the_same(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "own_agent.ipynb", tmp_path / "notebook.ipynb")
    cells = json.loads((tmp_path / "notebook.ipynb").read_text())["cells"]
    source = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "".join(PROGRAM.split()) == "".join(f'{source[0]}if __name__ == "__main__":{source[1]}'.split())

    run([sys.executable, "-c", EXECUTE], tmp_path)

    printed = json.loads((tmp_path / "done.ipynb").read_text())["cells"][-1]["outputs"]
    texts = ["".join(each["text"]) for each in printed if each.get("name") == "stdout"]
    mean, action = texts[-1].split()
    assert float(mean) > 0.9
    assert action in "0123"


@pytest.mark.long
def test_the_notebook_for_colab_trains_draws_and_shows_a_video(tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "colab.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if "install" not in cell["metadata"].get("tags", ())]
    assert len(cells) == len(notebook["cells"]) - 1
    (tmp_path / "notebook.ipynb").write_text(json.dumps({**notebook, "cells": cells}))

    run([sys.executable, "-c", EXECUTE], tmp_path)

    done = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    shown = [set(each.get("data", ())) for cell in done for each in cell.get("outputs", ())]
    pictures = [kinds & {"image/png", "text/html"} for kinds in shown]
    assert [kinds for kinds in pictures if kinds] == [{"image/png"}, {"text/html"}]
    assert (tmp_path / "train_dir" / "colab" / "replay.mp4").stat().st_size > 1000
