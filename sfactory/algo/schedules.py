"""Room: learning rates over time.

In: progress or the divergence just measured. Out: the rate to use. Nothing here remembers anything: what has
to survive a resume is the rate itself and the caller's counters.
"""

from __future__ import annotations

from dataclasses import dataclass

_FACTOR = 1.5
_TOLERANCE = 2.0


def linear_decay(initial: float, done: float, total: float) -> float:
    """``initial`` at the start, 0 once ``done`` reaches ``total`` > 0 (both in the same unit), a line between."""
    return initial * min(1.0, max(0.0, 1.0 - done / total))


@dataclass(frozen=True)
class KlAdaptive:
    """Keeps the divergence of an update near ``threshold`` by the learning rate, within [minimum, maximum].

    The divergence is that of the behavior policy and the policy after an update: of the last minibatch, if the
    caller adapts per minibatch, or the mean over an epoch. Source: Heess et al. 2017, "Emergence of
    locomotion behaviours", the rule for its penalty, applied to the rate.
    """

    threshold: float
    minimum: float
    maximum: float

    def next(self, learning_rate: float, kl: float) -> float:
        """The rate after ``learning_rate``: /1.5 if kl > 2 * threshold, *1.5 if kl < threshold / 2, else the same.

        A NaN divergence, as of a skipped update, tells nothing and changes nothing.
        """
        if kl > _TOLERANCE * self.threshold:
            learning_rate /= _FACTOR
        elif kl < self.threshold / _TOLERANCE:
            learning_rate *= _FACTOR
        return self.bounded(learning_rate)

    def bounded(self, learning_rate: float) -> float:
        """The nearest rate within [minimum, maximum]."""
        return min(self.maximum, max(self.minimum, learning_rate))
