"""Room: what is left to look into where training failed. In: a batch, a model. Out: one file in the run's folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfactory.atomic import replacing
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic

EVIDENCE_FILE = "diverged_batch.pt"


def keep_evidence(directory: Path, *, batch: Batch, model: ActorCritic, train_step: int, reason: str) -> str:
    """Save what was being learned from when training failed for ``reason``; returns where, as the end of a sentence.

    The file is whole or absent, takes the place of that of an earlier failure, and holds plain values and tensors on
    the CPU: torch.load(path, weights_only=True). What keeps it from being written is told, and never raised.
    """
    path = directory / EVIDENCE_FILE
    content = {
        "reason": reason,
        "train_step": train_step,
        "batch": {field.name: _on_host(getattr(batch, field.name)) for field in dataclasses.fields(batch)},
        "model": {name: tensor.cpu() for name, tensor in model.state_dict().items()},
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch's own writer raises the latter
        return f"the batch could not be saved as {path}: {error}"
    return f"the batch and the weights of then are in {path}"


def _on_host(value: Tensor | dict[str, Tensor] | None) -> Any:
    if value is None:
        return None
    # A copy of its own: what is saved of a view is all that it is a view of.
    if isinstance(value, dict):
        return {key: _on_host(tensor) for key, tensor in value.items()}
    return value.detach().cpu().clone()
