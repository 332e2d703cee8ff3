"""Diagnoses of a learner's faults: saves the batch at which training failed, reports that no dataset comes."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from sfactory.atomic import replacing
from sfactory.clock import Awake
from sfactory.errors import Starved
from sfactory.layout import ACTORS
from sfactory.learner.batch import Batch
from sfactory.model.actor_critic import ActorCritic
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusBoard, describe_processes

EVIDENCE_FILE = "diverged_batch.pt"

_log = logging.getLogger(__name__)


def keep_evidence(directory: Path, batch: Batch, model: ActorCritic, train_step: int, reason: str) -> str:
    """Save the batch and the weights at which training failed for ``reason``; returns a phrase that says where.

    The file replaces that of an earlier failure, atomically, and holds plain values and CPU tensors:
    torch.load(path, weights_only=True). A failure to write it is part of the phrase, and never raised.
    """
    path = directory / EVIDENCE_FILE
    try:
        content = {
            "reason": reason,
            "train_step": train_step,
            # Cloned: saving a view would save all of its storage, or fail.
            "batch": vars(batch.map(lambda tensor: tensor.detach().cpu().clone())),
            "model": {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()},
        }
        directory.mkdir(exist_ok=True)
        with replacing(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch's own writer raises the latter, and so does a failed GPU
        return f"the batch could not be saved as {path}: {error}"
    return f"the batch and the weights of then are in {path}"


class Starvation:
    """Watches how long training waits for a dataset.

    After every ``timeout_s`` without one, it logs what each process is waiting for, or raises if no actor has taken a
    step meanwhile. Actors that still create or reset their envs for the first time have an own timeout.
    """

    def __init__(
        self, timeout_s: float, status: StatusBoard, table: SlotTable, policy: int | None = None, port: int = 0
    ) -> None:
        """``timeout_s``: 0 switches it off. ``policy``: None if only one. ``port``: of remote actors; 0: none."""
        self._port = port
        self._timeout_s, self._status, self._table, self._policy = timeout_s, status, table, policy
        self.begin()

    def begin(self) -> None:
        """Restart the timeout: a dataset has come, or training begins to wait for one."""
        self._awake = Awake()
        self._steps = self._sampled()

    def look(self) -> None:
        """Call while no dataset comes. Raises Starved if none will come."""
        if not self._timeout_s or self._awake.look() < self._timeout_s:
            return
        waits, taken = describe_processes(self._status, self._table), self._sampled() - self._steps
        text = f"no dataset to learn from for {self._timeout_s:g} s (--learner_starvation_timeout_sec)"
        booting = any(state < State.RUNNING for state in self._status.values("state", ACTORS))
        if not taken and not booting:
            join = f"; python -m sfactory.remote_actors --connect=HOST:{self._port} starts a remote actor"
            none = f"{text}, and no actor has taken a step meanwhile, so none will come{join if self._port else ''}"
            raise Starved(f"{none}\n{waits}")
        meanwhile = f"actors have taken {taken} steps meanwhile" if taken else "actors still create or reset their envs"
        advice = f"; --policy_mapping says how often policy {self._policy} plays, and --train_policies can leave it out"
        which = "" if self._policy is None else advice
        _log.warning("%s; %s, so training continues to wait%s\n%s", text, meanwhile, which, waits)
        self.begin()

    def _sampled(self) -> int:
        return int(self._status.total("env_steps", ACTORS))
