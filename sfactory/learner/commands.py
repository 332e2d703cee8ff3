"""Room: what main orders of a learner, carried out. In: an order. Out: other weights, other values, a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sfactory.checkpoint import CheckpointDir
from sfactory.config.schema import AlgoConfig, LearnerConfig, OptimConfig
from sfactory.errors import CannotSaveError, CheckpointError
from sfactory.learner.checkpointing import Checkpointer
from sfactory.shared.control import LearnerCommand

_log = logging.getLogger(__name__)


class Subject(Protocol):
    """Who learns."""

    checkpointer: Checkpointer

    def adopt(self, hyperparameters: Mapping[str, float]) -> None:
        """Learn on under other values of these flags."""

    def take_over(self, payload: Mapping[str, Any], where: str) -> None:
        """Learn on with the weights and the optimiser of another policy; raises CheckpointError if they do not fit."""


def execute(order: LearnerCommand, learning: Subject) -> str:
    """Do what ``order`` says, whole or not at all; returns why it cannot be done, "" if it was."""
    try:
        if order.save:
            learning.checkpointer.save()
        if order.parent is not None:
            loaded = CheckpointDir(Path(order.parent), keep=1).load("latest")
            if loaded is None:
                return f"{order.parent} holds no checkpoint"
            learning.take_over(loaded.payload, str(loaded.path))
    except (CheckpointError, CannotSaveError) as error:
        return str(error)
    if order.hyperparameters:
        learning.adopt(order.hyperparameters)
    if order.parent is not None:
        _save_soon(learning.checkpointer)
    return ""


def _save_soon(checkpointer: Checkpointer) -> None:
    """What was taken over is to be there after a resume, too; if it cannot be saved now, it will be with the next."""
    try:
        checkpointer.save()
    except CannotSaveError as error:
        _log.error("%s; training goes on", error)


def with_values(
    values: Mapping[str, float], algo: AlgoConfig, optim: OptimConfig, learner: LearnerConfig
) -> tuple[AlgoConfig, OptimConfig, LearnerConfig]:
    """The sections with ``values``, by flag, in place of what they hold. Raises KeyError for a flag of none of them."""
    unknown = dict(values)

    def changed(section: Any) -> Any:
        own = {each.name: unknown.pop(each.name) for each in dataclasses.fields(section) if each.name in unknown}
        return dataclasses.replace(section, **own)

    sections = changed(algo), changed(optim), changed(learner)
    if unknown:
        raise KeyError(f"{', '.join(unknown)}: no value that a learner could change")
    return sections
