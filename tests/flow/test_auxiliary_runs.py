"""Whole runs with an auxiliary loss and with spectral norm: they train, report, resume and can be played."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from sfactory.checkpoint import CheckpointDir
from tests.support.resume import assert_resumes
from tests.support.source import ROOT
from tests.support.trainer import RunTrainer, TrainerRun

CPC = {"use_rnn": True, "rnn_size": 16, "use_cpc": True, "train_for_env_steps": 4_000}


def finished(run: TrainerRun) -> TrainerRun:
    assert run.wait() == 0, run.report("failed")
    assert run.result()["status"] == "done"
    run.assert_clean()
    return run


def reported(run: TrainerRun, name: str) -> list[float]:
    """All numbers of that name in metrics.jsonl."""
    rows = run.metrics()
    return [row[name] for row in rows if row.get(name) is not None]


def payload(run: TrainerRun) -> dict[str, Any]:
    loaded = CheckpointDir(run.run_dir / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    return dict(loaded.payload)


def test_a_serial_run_learns_from_cpc_and_reports_its_loss(run_trainer: RunTrainer) -> None:
    run = finished(run_trainer(serial_mode=True, **CPC))

    losses = reported(run, "train/aux_loss")
    assert losses
    assert all(math.isfinite(loss) and 0.05 < loss < 2.0 for loss in losses)
    assert {name.split(".")[0] for name in payload(run)["auxiliary"]} == {
        "future",
        "of_future",
        "of_embedding",
        "score",
    }
    assert_resumes(run, run_trainer)


@pytest.mark.parametrize(
    "flags",
    [CPC, {"use_spectral_norm": True, "inference": "local", "amp": "bf16", "train_for_env_steps": 4_000}],
    ids=["cpc", "spectral norm"],
)
def test_a_run_of_processes_can_be_played(run_trainer: RunTrainer, flags: dict[str, Any]) -> None:
    run = finished(run_trainer(**flags))

    played = subprocess.run(
        [
            *(sys.executable, "-m", "sfactory.enjoy", f"--train_dir={run.run_dir.parent}", "--experiment=run"),
            *("--no_render=True", "--max_num_episodes=2"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )

    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout.splitlines()[-1])["episodes"] == 2
