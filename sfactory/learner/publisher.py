"""Room: when weights reach the policies. In: the count of updates. Out: published weights, or an error: they are bad.

What is published reaches every reader: it lies in shared memory, see NOTE [Weights seqlock].
"""

from __future__ import annotations

from sfactory.errors import DivergedError
from sfactory.model.flat_state import FlatState
from sfactory.shared.weights import SharedWeights


class Publisher:
    """Publishes every ``interval`` updates; looked at after each pass over a dataset."""

    def __init__(
        self, flat: FlatState, weights: SharedWeights, interval: int, unpublished: FlatState | None = None
    ) -> None:
        """``unpublished``: what is learned along but not acted with; it has to be finite, too."""
        self._flat, self._weights, self._interval, self._unpublished = flat, weights, interval, unpublished
        self._last = 0

    def publish(self, train_step: int) -> None:
        """Publish now, as policy version ``train_step``; raises DivergedError instead if a weight is not finite."""
        self.check(train_step)
        self._weights.publish(self._flat.to_host(), train_step)
        self._last = train_step

    def after_updates(self, train_step: int) -> bool:
        """Publish if it is due; whether it was. Raises DivergedError as ``publish`` does."""
        due = train_step - self._last >= self._interval
        if due:
            self.publish(train_step)
        return due

    def check(self, train_step: int) -> None:
        """Raises DivergedError if a weight is not finite, so that it is neither published nor saved."""
        if not self._flat.is_finite() or not (self._unpublished is None or self._unpublished.is_finite()):
            raise DivergedError(
                f"weights are not finite after update {train_step}; they were not published or "
                "saved; lower --learning_rate, or look for extreme rewards or observations"
            )
