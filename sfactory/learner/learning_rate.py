"""Room: the learning rate of one learner. In: progress, divergences of updates. Out: the rate to step with."""

from __future__ import annotations

from collections.abc import Mapping

from sfactory.algo.schedules import KlAdaptive, linear_decay
from sfactory.config.schema import OptimConfig


class LearningRate:
    """The rate that ``lr_schedule`` sets. ``value``: the one in force."""

    def __init__(self, config: OptimConfig, total_env_steps: int) -> None:
        """``total_env_steps``: where linear decay ends."""
        self._config, self._total = config, total_env_steps
        self._adaptive = KlAdaptive(config.lr_schedule_kl_threshold, config.lr_adaptive_min, config.lr_adaptive_max)
        self._divergences: list[float] = []  # of the present epoch's updates
        self.value = config.learning_rate

    @property
    def looks_at_updates(self) -> bool:
        """Whether ``after_update`` wants to be told; measuring what it wants costs a forward pass."""
        return self._config.lr_schedule in ("kl_adaptive_minibatch", "kl_adaptive_epoch")

    def at(self, env_steps: int) -> None:
        """Training stands at ``env_steps``."""
        if self._config.lr_schedule == "linear_decay":
            self.value = linear_decay(self._config.learning_rate, env_steps, self._total)

    def after_update(self, kl: float) -> None:
        """After an update the policy has diverged by ``kl`` from the one that acted, on the update's own minibatch."""
        if self._config.lr_schedule == "kl_adaptive_minibatch":
            self.value = self._adaptive.next(self.value, kl)
        else:
            self._divergences.append(kl)

    def after_epoch(self) -> None:
        """An epoch is over."""
        if self._divergences:
            self.value = self._adaptive.next(self.value, sum(self._divergences) / len(self._divergences))
            self._divergences.clear()

    def state(self) -> dict[str, float | str]:
        """What a resumed run needs to go on: plain values."""
        return {"schedule": self._config.lr_schedule, "initial": self._config.learning_rate, "value": self.value}

    def restore(self, state: Mapping[str, float | str]) -> None:
        """Go on from where an adaptive schedule was, within the bounds of now, unless another start is wanted now.

        Other rates follow the configuration.
        """
        same = (state["schedule"], state["initial"]) == (self._config.lr_schedule, self._config.learning_rate)
        if self.looks_at_updates and same:
            self.value = self._adaptive.bounded(float(state["value"]))
