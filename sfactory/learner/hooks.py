"""Calls the user's functions after each dataset (``--after_train_step module:function``), in the learner process.

The next training pass waits for them. They may look at everything (but with --cuda_graphs there are no
gradients) and change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sfactory.config.import_strings import Unresolved, find_callable
from sfactory.errors import ConfigError, HookFailed, Passing, named
from sfactory.learner.train_stats import Means
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearnerFacts:
    """State of a learner, to look at. env_steps: trained env steps, those before a resume included."""

    policy: int
    env_steps: int
    trainer: Trainer

    @property
    def train_step(self) -> int:
        """Minibatch updates, those before a resume included; the version of the weights (NOTE [Train step])."""
        return self.trainer.train_step

    @property
    def model(self) -> ActorCritic:
        """The network that is trained, on the learner's device."""
        return self.trainer.model


# A function of ``--after_train_step``, called after training on a dataset and publishing its weights if that was due.
# The numbers are means over the dataset's updates, by the names behind ``train/`` in metrics.jsonl (``policy_loss``,
# ``grad_norm``, ``learning_rate``, ...). An exception ends the run, after a save.
AfterTrainStep = Callable[[LearnerFacts, Mapping[str, float]], object]


class Hooks:
    """Calls functions in the order of the flag; once one raises, the learner ends, saves, and raises ``failure``."""

    def __init__(self, hooks: Mapping[str, AfterTrainStep] | None = None) -> None:
        """``hooks``: by their names in error messages."""
        self._hooks = dict(hooks or {})
        self.failure: HookFailed | None = None

    @staticmethod
    def of(references: Sequence[str]) -> Hooks:
        """The hooks of ``--after_train_step``; raises ConfigError with a line for each that cannot be imported."""
        hooks: dict[str, AfterTrainStep] = {}
        problems: list[str] = []
        for reference in references:
            try:
                hooks[reference] = cast(AfterTrainStep, find_callable(reference))
            except Unresolved as error:
                problems.append(f"--after_train_step={reference}: {error}")
        if problems:
            raise ConfigError(problems)
        return Hooks(hooks)

    def after_dataset(self, trainer: Trainer, means: Means, policy: int, env_steps: int) -> None:
        """Call every hook with the ``means`` of a dataset, unless it brought no update or a hook has failed before."""
        if not self._hooks or self.failure is not None or not means.updates:
            return
        stats = means.value() | trainer.coefficients.by_name()
        facts = LearnerFacts(policy, env_steps, trainer)
        for name, hook in self._hooks.items():
            try:
                hook(facts, dict(stats))
            except Passing:
                raise
            except BaseException as error:  # foreign code may raise anything
                cause = " ".join(named(error).split("\n"))
                self.failure = HookFailed(
                    f"--after_train_step={name}: called after update {facts.train_step}, it raised {cause}; fix or "
                    "remove it"
                )
                self.failure.__cause__ = error
                _log.error("%s", self.failure)  # also here: the run may end with another error, such as a failed save
                return
