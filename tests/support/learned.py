"""Everything that a run has learned as one row of numbers, for comparison bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sfactory.checkpoint import CheckpointDir


def flat(payload: Any) -> list[torch.Tensor]:
    """All tensors and numbers of a nested payload, in order."""
    if isinstance(payload, torch.Tensor):
        return [payload.double().flatten()]
    if isinstance(payload, dict):
        return [tensor for key in sorted(payload, key=str) for tensor in flat(payload[key])]
    if isinstance(payload, list | tuple):
        return [tensor for item in payload for tensor in flat(item)]
    return [torch.tensor([float(payload)])] if isinstance(payload, int | float) else []


def what_was_learned(run_dir: Path) -> torch.Tensor:
    """Weights, normalizers, moments of the optimizer and counts of the newest checkpoint, as one row of numbers."""
    loaded = CheckpointDir(run_dir / "checkpoint_p0", keep=2).load()
    assert loaded is not None
    kept = {name: loaded.payload[name] for name in ("model", "optimizer", "train_step", "env_steps", "coefficients")}
    return torch.cat(flat(kept))
