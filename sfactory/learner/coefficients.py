"""Learning rates and weights of loss terms over the training of one policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sfactory.algo.schedules import PiecewiseLinear, kl_adaptive_rate, kl_penalty_weight
from sfactory.config.points import decay_shares, decays, parse_points
from sfactory.config.schema import AlgoConfig, OptimConfig
from sfactory.config.training_rules import KL_ADAPTIVE
from sfactory.learner.gradient_step import Rates
from sfactory.learner.loss import Coefficient


class InForce(NamedTuple):
    """The numbers of one update. exploration, kl: weights of loss terms; None: there is no KL penalty."""

    rates: Rates
    exploration: Coefficient
    kl: Coefficient | None


class Coefficients:
    """The values in force, by flags, schedules and adaptation. Schedules are over trained env steps of this policy.

    exploration: of the exploration loss. kl: of the KL penalty, which adapts with ``kl_target``.
    """

    def __init__(self, optim: OptimConfig, algo: AlgoConfig, total_env_steps: int) -> None:
        """``total_env_steps``: where linear decay ends."""
        self._optim, self._algo = optim, algo
        self._rate_rule = kl_adaptive_rate(optim.lr_schedule_kl_threshold, optim.lr_adaptive_min, optim.lr_adaptive_max)
        self._rate_line = _line(optim.lr_schedule, optim.learning_rate, total_env_steps)
        self._value_line = _line(optim.value_lr_schedule, optim.value_lr, total_env_steps)
        self._exploration_line = _line(
            algo.exploration_loss_coeff_schedule, algo.exploration_loss_coeff, total_env_steps
        )
        self._divergences: list[float] = []  # of the present epoch's updates
        rate = optim.learning_rate
        self._rate, self._value_rate = self._rate_rule.bounded(rate) if self.looks_at_updates else rate, optim.value_lr
        self.exploration = algo.exploration_loss_coeff
        self._kl_rule = kl_penalty_weight(algo.kl_target) if algo.kl_target else None
        self.kl = algo.kl_loss_coeff if self._kl_rule is None else self._kl_rule.bounded(algo.kl_loss_coeff)
        self.at(0)

    @property
    def rates(self) -> Rates:
        """Learning rates of the next update."""
        return Rates(self._rate, self._value_rate if self._optim.separate_value_optimizer else None)

    @property
    def in_force(self) -> InForce:
        """The numbers of the next update."""
        return InForce(self.rates, self.exploration, self.kl or None)

    def by_name(self) -> dict[str, float]:
        """All values in force, by their names in TRAIN_STATISTICS."""
        return {
            "learning_rate": self._rate,
            "value_learning_rate": self._value_rate if self._optim.separate_value_optimizer else self._rate,
            "exploration_coeff": self.exploration,
            "kl_coeff": self.kl,
        }

    @property
    def looks_at_updates(self) -> bool:
        """Whether to call ``after_update``; its divergence costs a forward pass."""
        return self._optim.lr_schedule in KL_ADAPTIVE

    @property
    def adapts_at_once(self) -> bool:
        """Whether ``after_update`` is to be called before the next update, and not at the end of a pass."""
        return self._optim.lr_schedule == "kl_adaptive_minibatch"

    @property
    def looks_at_datasets(self) -> bool:
        """Whether to call ``after_dataset``."""
        return self._kl_rule is not None

    def at(self, env_steps: int) -> None:
        """Follow the schedules to ``env_steps``."""
        if self._rate_line is not None:
            self._rate = self._rate_line.value(env_steps)
        if self._value_line is not None:
            self._value_rate = self._value_line.value(env_steps)
        if self._exploration_line is not None:
            self.exploration = self._exploration_line.value(env_steps)

    def after_update(self, kl: float) -> None:
        """Adapt after an update: ``kl`` is the divergence from the behavior policy on the update's minibatch."""
        self._divergences.append(kl)
        if self.adapts_at_once:
            self.after_epoch()

    def after_epoch(self) -> None:
        """Adapt after an epoch, by the mean divergence of its updates."""
        if self._divergences:
            self._rate = self._rate_rule.next(self._rate, sum(self._divergences) / len(self._divergences))
            self._divergences.clear()

    def after_dataset(self, kl: float) -> None:
        """Adapt after a dataset: ``kl`` is the divergence from the behavior policy."""
        if self._kl_rule is not None:
            self.kl = self._kl_rule.next(self.kl, kl)

    def state(self) -> dict[str, dict[str, Any]]:
        """For a checkpoint: plain values."""
        optim, algo = self._optim, self._algo
        return {
            "learning_rate": {"schedule": optim.lr_schedule, "initial": optim.learning_rate, "value": self._rate},
            "kl": {"adaptive": self._kl_rule is not None, "initial": algo.kl_loss_coeff, "value": self.kl},
        }

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue with the adaptive values of ``state``, within the present bounds, if they began with this start."""
        now, rate, kl = self.state(), state["learning_rate"], state.get("kl")
        same = all(rate[key] == now["learning_rate"][key] for key in ("schedule", "initial"))
        if self.looks_at_updates and same:
            self._rate = self._rate_rule.bounded(float(rate["value"]))
        if self._kl_rule is not None and kl is not None:
            same = all(kl[key] == now["kl"][key] for key in ("adaptive", "initial"))
            self.kl = self._kl_rule.bounded(float(kl["value"])) if same else self.kl


def standing_still(config: OptimConfig) -> OptimConfig:
    """``config`` with rates of 0: updates take as long, and change no weight."""
    return replace(config, learning_rate=0.0, lr_schedule="constant", value_lr=0.0, value_lr_schedule="")


def _line(schedule: str, initial: float, total: int) -> PiecewiseLinear | None:
    """The values of points, or of a decay from ``initial`` by the limit ``total``; None if ``schedule`` is neither."""
    if decays(schedule):
        start, end = decay_shares(schedule)
        return PiecewiseLinear(((start * total, initial), (end * total, 0.0)))
    return PiecewiseLinear(parse_points(schedule)) if ":" in schedule else None
