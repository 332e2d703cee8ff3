"""Room: where an earlier session of a run stopped. In: its checkpoints and summary. Out: ``Resumed``."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sfactory.checkpoint import CheckpointDir
from sfactory.config.schema import Config
from sfactory.errors import CheckpointError
from sfactory.learner.setup import Limits
from sfactory.run.rundir import RunDir
from sfactory.run.summary import Summary

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """Where an earlier session stopped.

    env_steps, train_seconds, updates: of the checkpoint. best_return: the best mean return ever, as far as it is
    known. summary: the last session's.
    """

    env_steps: int = 0
    train_seconds: float = 0.0
    updates: int = 0
    best_return: float | None = None
    summary: Summary | None = None

    @staticmethod
    def from_checkpoint(rundir: RunDir, config: Config) -> Resumed | None:
        """Facts of the checkpoint that would be resumed; None for a fresh run.

        Raises CheckpointError if none can be loaded, or there are only others than the kind that was asked for.
        """
        directory = CheckpointDir(rundir.checkpoint_dir(0), config.checkpoint.keep_checkpoints)
        kind = config.checkpoint.load_checkpoint_kind
        loaded = directory.load_to_go_on(kind)
        if loaded is None and directory.holds_any():
            raise CheckpointError(
                f"--load_checkpoint_kind={kind}: {directory.path} holds no {kind} checkpoint, but others; go on from "
                "them with another --load_checkpoint_kind, or start anew with --restart_behavior=restart"
            )
        if loaded is None:
            earlier = Summary.read(rundir.summary_path)
            if earlier is not None and earlier.env_steps:
                log.warning("an earlier session made %d env steps but saved none: starting at 0", earlier.env_steps)
            return None
        payload = loaded.payload
        saved = float(payload["best_objective"])
        bests = [saved if payload["best_metric"] == "reward" and saved > float("-inf") else None]
        summary = Summary.read(rundir.summary_path)
        if summary is not None and summary.episodes >= config.report.stats_avg:
            bests.append(summary.best_episode_return_mean)
        return Resumed(
            env_steps=int(payload["env_steps"]),
            train_seconds=float(payload["train_seconds"]),
            updates=int(payload["train_step"]),
            best_return=max((best for best in bests if best is not None), default=None),
            summary=summary,
        )

    def finished(self, config: Config) -> bool:
        """True if the limits of ``config`` are reached already."""
        return Limits.of(config.run, config.sampling.env_frameskip).reached(self.env_steps, self.train_seconds)
