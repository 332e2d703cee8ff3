"""Checks that a run resumes where it stopped."""

from __future__ import annotations

from sfactory.checkpoint import CheckpointDir
from sfactory.errors import ExitCode
from tests.support.trainer import RunTrainer, TrainerRun

MORE_STEPS = 4096


def assert_resumes(stopped: TrainerRun, run_trainer: RunTrainer) -> None:
    """Run the same command with a higher limit: it says at which step it goes on, and counts on from there."""
    checkpoint = CheckpointDir(stopped.run_dir / "checkpoint_p0", keep=2).load()
    assert checkpoint is not None, stopped.report("there is no checkpoint to resume from")
    saved = stopped.saved_env_steps()
    limit = saved + MORE_STEPS

    again = run_trainer(**{**stopped.flags, "train_for_env_steps": limit})

    again.assert_ended(ExitCode.DONE)
    assert f"resumed at {saved} env steps" in again.stderr, again.report(f"does not say that it resumes at {saved}")
    result = again.result()
    assert result["env_steps"] >= limit
    # A run that had begun again would have put the old checkpoint aside, as no part of its own past.
    assert not list(again.run_dir.glob("checkpoint_p0/set_aside_*")), again.report("the step count went back")
    assert again.saved_env_steps() >= limit
