"""Executes commands that main gives to a learner during the run: save, take over weights, use other hyperparameters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sfactory.checkpoint.directory import CheckpointDir
from sfactory.config.flags import config_with
from sfactory.errors import CannotSaveError, CheckpointError
from sfactory.learner.checkpointing import Checkpointer, take_over
from sfactory.shared.control import LearnerCommand

_log = logging.getLogger(__name__)


class CommandExecutor:
    """Executes commands, each whole or not at all, and answers main. The caller holds the lock of the model."""

    def __init__(self, checkpointer: Checkpointer, publish: Callable[[int], None]) -> None:
        """``publish``: publishes the weights as a version."""
        self._setup, self._trainer = checkpointer.setup, checkpointer.trainer
        self._checkpointer, self._publish = checkpointer, publish
        self._commands = self._setup.shared.learner_commands

    @property
    def waiting(self) -> LearnerCommand | None:
        """The command that has not been executed yet, if any."""
        return self._commands.waiting(self._setup.policy)

    @property
    def is_due(self) -> bool:
        """Whether there is something to do although no dataset comes: a command, or a save."""
        return self.waiting is not None or self._checkpointer.choice_is_due

    def execute_waiting(self) -> bool:
        """Execute and answer the waiting command; False if there is none."""
        command = self.waiting
        if command is not None:
            self._commands.answered(self._setup.policy, self.execute(command))
        return command is not None

    def execute(self, command: LearnerCommand) -> str:
        """Execute ``command``; returns why that is impossible, "" on success."""
        try:
            if command.save:
                self._checkpointer.save()
            if command.copy_to is not None:
                self._checkpointer.save_copy(Path(command.copy_to))
            if command.parent is not None:
                loaded = CheckpointDir(Path(command.parent), keep=1).load("latest")
                if loaded is None:
                    return f"{command.parent} holds no checkpoint"
                take_over(dict(loaded.payload), str(loaded.path), self._trainer)
                self._trainer.mask_sampled()
                self._publish(self._trainer.train_step)
        except (CheckpointError, CannotSaveError, OSError) as error:  # of shared storage, too
            return str(error)
        if command.hyperparameters:
            config = config_with(self._setup.config, command.hyperparameters)
            optim = replace(self._setup, config=config).optim
            self._trainer.adopt(config.algo, optim, config.learner, self._checkpointer.progress.env_steps)
        if command.parent is not None:
            try:
                self._checkpointer.save()  # a resumed run has the new weights, too
            except CannotSaveError as error:
                _log.error("%s; training continues, and the next save will hold the new weights", error)
        return ""
