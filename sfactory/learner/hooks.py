"""Room: functions of the user's that the learner calls after each dataset. In: what was learned. Out: their business.

``--after_train_step module:function``. They run in the learner's process and hold up what is learned next for as long
as they take. They may look at everything and change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from sfactory.config.import_strings import Unresolved, find_callable
from sfactory.errors import ConfigError, HookFailed, named
from sfactory.learner.trainer import Trainer
from sfactory.model.actor_critic import ActorCritic

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearnerFacts:
    """Where a learner stands, for looking at. env_steps: trained env steps, earlier sessions included."""

    policy: int
    env_steps: int
    trainer: Trainer

    @property
    def train_step(self) -> int:
        """Minibatch updates, earlier sessions included; the version of the weights (NOTE [Train step])."""
        return self.trainer.train_step

    @property
    def model(self) -> ActorCritic:
        """The network that is trained, on the learner's device."""
        return self.trainer.model


class AfterTrainStep(Protocol):
    """What ``--after_train_step`` names."""

    def __call__(self, learner: LearnerFacts, stats: Mapping[str, float]) -> object:
        """A dataset has been learned from and its weights are published, if that was due.

        stats: means over the dataset's updates, by the names that rows of metrics.jsonl have behind ``train/``
        (``policy_loss``, ``grad_norm``, ``learning_rate``, ...). An exception ends the run, which saves.
        """


class Hooks:
    """The functions that are called after each dataset, in the order of the flag.

    What one of them raises is kept: the learner comes to its end, saves, and then raises it as HookFailed. No hook is
    called any more.
    """

    def __init__(self, hooks: Mapping[str, AfterTrainStep] | None = None) -> None:
        """``hooks``: by the names that errors call them."""
        self._hooks = dict(hooks or {})
        self._failure: HookFailed | None = None

    @staticmethod
    def of(references: Sequence[str]) -> Hooks:
        """Those that ``--after_train_step`` names; raises ConfigError with a line for each that cannot be had."""
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

    @property
    def failed(self) -> bool:
        """True once a hook has raised."""
        return self._failure is not None

    def after_dataset(self, trainer: Trainer, policy: int, env_steps: int) -> None:
        """Call every hook, unless the dataset brought no update or one has failed before."""
        if not self._hooks or self.failed:
            return
        stats = trainer.dataset_statistics()
        if not stats:
            return
        facts = LearnerFacts(policy, env_steps, trainer)
        for name, hook in self._hooks.items():
            try:
                hook(facts, dict(stats))
            # Foreign code may raise anything, and may even call sys.exit.
            except (Exception, SystemExit) as error:
                self._failure = _failure_of(name, facts, error)
                _log.error("%s", self._failure)  # here, too: what the end of the run tells may be that it cannot save
                return

    def raise_failure(self) -> None:
        """Raise what a hook has raised, if one has."""
        if self._failure is not None:
            raise self._failure


def _failure_of(name: str, facts: LearnerFacts, error: BaseException) -> HookFailed:
    """A failure that carries ``error``, with its traceback, as its cause."""
    told = " ".join(named(error).split("\n"))
    failure = HookFailed(
        f"--after_train_step={name}: called after update {facts.train_step}, it raised {told}; mend it, or leave it out"
    )
    failure.__cause__ = error
    return failure
