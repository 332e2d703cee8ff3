"""Runs that are over, trained once for all tests of a file."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sfactory.errors import ExitCode
from tests.support.trainer import TrainerRun


class InFiles(Protocol):
    """A run by what is left of it; a TrainerRun is one, too."""

    @property
    def run_dir(self) -> Path: ...


@dataclass(frozen=True)
class Finished:
    """A run that has ended well: its directory, and the flags of its last session, with which it is started again."""

    run_dir: Path
    flags: dict[str, object]

    def copied_to(self, folder: Path) -> Finished:
        """The same run in ``folder``, where a TrainerRun of that folder and of its name finds it."""
        train_dir = folder / "train_dir"
        run_dir = Path(shutil.copytree(self.run_dir, train_dir / self.run_dir.name))
        return Finished(run_dir, {**self.flags, "train_dir": train_dir})


def trained(folder: Path, first: int, *later: int, **flags: object) -> Finished:
    """Train one run on top of ``trainer.CHEAP``, in a session for each of the limits of env steps."""
    for limit in (first, *later):
        run = TrainerRun({**flags, "train_for_env_steps": limit}, folder)
        try:
            run.assert_ended(ExitCode.DONE)
        finally:
            run.close()
    return Finished(run.run_dir, run.flags)
