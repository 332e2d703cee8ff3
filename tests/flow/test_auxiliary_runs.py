"""Whole runs with an auxiliary loss and with spectral norm: they train, report, can be played and resume."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.long import LONG
from tests.support.source import ROOT
from tests.support.trainer import RunTrainer, assert_resumes

CPC = {"use_rnn": True, "rnn_size": 16, "use_cpc": True}
SPECTRAL = {"use_spectral_norm": True, "inference": "local", "amp": "bf16"}


@pytest.mark.parametrize(
    "flags", [pytest.param({**CPC, "serial_mode": True}, marks=LONG), CPC, SPECTRAL], ids=["serial", "cpc", "spectral"]
)
def test_run_learns_can_be_played_and_resumes(run_trainer: RunTrainer, flags: dict[str, Any]) -> None:
    run = run_trainer(train_for_env_steps=4_000, **flags).done()

    if "use_cpc" in flags:
        losses = [row["train/aux_loss"] for row in run.metrics() if row.get("train/aux_loss") is not None]
        assert losses
        assert all(0.05 < loss < 2.0 for loss in losses)
        parts = {name.split(".")[0] for name in run.payload()["auxiliary"]}
        assert parts == {"future", "of_future", "of_embedding", "score"}
    play = [sys.executable, "-m", "sfactory.enjoy", f"--train_dir={run.run_dir.parent}", "--experiment=run"]
    play += ["--no_render=True", "--max_num_episodes=2"]
    played = subprocess.run(play, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout.splitlines()[-1])["episodes"] == 2
    assert_resumes(run, run_trainer)
