"""The code of docs/tensor_envs.md trains, resumes, is played and learns as it stands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sfactory.checkpoint.directory import CheckpointDir
from tests.support.source import documents
from tests.support.warm_process import finished

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", documents()["docs/tensor_envs.md"], re.DOTALL | re.MULTILINE)
TRAIN, ENJOY = next(text.splitlines() for kind, text in BLOCKS if not kind)
CHEAP = ("--device=cpu", "--seed=1", "--with_tensorboard=False", "--train_dir=runs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the code of the page."""
    (code,) = (text for kind, text in BLOCKS if kind == "python")
    name = re.match(r"# (my_\w+\.py)\n", code)
    assert name is not None
    (tmp_path / name[1]).write_text(code)
    return tmp_path


def done(command: str, folder: Path, *flags: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """The result of a command of the page with other flags, which has ended well."""
    words = shlex.split(command)
    assert words[:2] == ["python", "-m"]
    run = finished(words[2], *words[3:], *flags, cwd=folder)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1]), run


def saved_env_steps(folder: Path) -> int:
    loaded = CheckpointDir(folder / "runs" / "reach" / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    steps: int = loaded.payload["env_steps"]
    return steps


def test_the_env_of_the_page_trains_resumes_and_is_played(folder: Path) -> None:
    short = re.sub(r"--train_for_env_steps=\d+", "", TRAIN)

    first, run = done(short, folder, *CHEAP, "--train_for_env_steps=2500")
    assert "1 TensorEnv of 64 envs, which collects and learns in turn, on cpu" in run.stderr
    assert first["status"] == "done"
    # Each dataset is 1,024 rows, of which those that reset are no steps; the third goes beyond the limit.
    assert (first["updates"] >= 12, first["policy_lag"]["max"]) == (True, 0.0)
    assert 2500 <= first["env_steps"] <= 3 * 1024
    assert first["env_steps"] == first["agent_steps"] == saved_env_steps(folder)
    resets = 3 * 1024 - first["env_steps"]
    assert resets <= first["episodes"] <= resets + 64  # those that the next dataset would have reset
    assert 0.0 < first["episode_extra_stats"]["distance"] < 3.0
    rows = [json.loads(line) for line in (folder / "runs" / "reach" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train/extra/distance_mean"] == first["episode_extra_stats"]["distance"]
    assert rows[-1]["perf/received_steps"] == first["env_steps"]

    second, run = done(short, folder, *CHEAP, "--train_for_env_steps=4000")
    assert f"resumed at {first['env_steps']} env steps, update {first['updates']}" in run.stderr
    assert second["env_steps"] == saved_env_steps(folder) >= 4000
    assert second["updates"] > first["updates"]

    played, _ = done(ENJOY, folder, "--train_dir=runs")
    assert played["episodes"] == 5
    assert played["episode_length_mean"] <= 32


@pytest.mark.long
def test_the_env_of_the_page_is_learned(folder: Path) -> None:
    result, _ = done(TRAIN, folder, *CHEAP)
    assert result["episode_return_mean"] > -10.0  # it begins at -34
    assert result["episode_length_mean"] < 20.0
    assert result["episode_extra_stats"]["distance"] < 0.2
