"""Room: what is left to look into where training failed. In: a batch, a model. Out: one file in the run's folder.

Room: a learner without anything to learn from. In: time that passes. Out: a diagnosis, and at last an error.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfactory.atomic import replacing
from sfactory.clock import Awake
from sfactory.errors import Starved
from sfactory.layout import ACTORS
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from sfactory.shared.diagnosis import describe_processes
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusBoard

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


_log = logging.getLogger(__name__)


class Starvation:
    """Told when waiting for a dataset begins, asked while none comes.

    Each time ``timeout_s`` have passed without one, it tells who waits for whom. If no actor has taken a step
    meanwhile, nothing will ever come: it raises. Slow environments are no reason to stop, nor is an actor that still
    makes or resets its envs for the first time: how long that may take is another's to say.
    """

    def __init__(self, timeout_s: float, status: StatusBoard, table: SlotTable, policy: int | None = None) -> None:
        """``timeout_s``: 0 never looks. ``policy``: whose datasets do not come, where there are several."""
        self._timeout_s, self._status, self._table, self._policy = timeout_s, status, table, policy
        self.begin()

    def begin(self) -> None:
        """Waiting begins, at the earliest now."""
        self._awake = Awake()
        self._steps = self._sampled()

    def look(self) -> None:
        """No dataset has come yet. Raises Starved if none will come."""
        if not self._timeout_s or self._awake.look() < self._timeout_s:
            return
        told = describe_processes(self._status, self._table)
        steps = self._sampled()
        text = f"no dataset to learn from for {self._timeout_s:g} s (--learner_starvation_timeout_sec)"
        if steps == self._steps and not self._booting():
            raise Starved(f"{text}, and no actor has taken a step meanwhile, so none will come\n{told}")
        taken = steps - self._steps
        meanwhile = f"actors have taken {taken} steps meanwhile" if taken else "actors still make or reset their envs"
        _log.warning("%s; %s, so training waits on%s\n%s", text, meanwhile, self._who_plays(), told)
        self.begin()

    def _who_plays(self) -> str:
        if self._policy is None:
            return ""
        return f"; --policy_mapping says how often policy {self._policy} plays, and --train_policies can leave it out"

    def _booting(self) -> bool:
        return any(state < State.RUNNING for state in self._status.values("state", ACTORS))

    def _sampled(self) -> int:
        return int(self._status.total("env_steps", ACTORS))
