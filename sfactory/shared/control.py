"""Room: what main asks of its children. In: main's writes alone. Out: flags that children read between waits.

Main writes no queue: a ring whose lock died with some process could otherwise hang the one process that
has to end the run. Children look here at least every BLOCK_S. See NOTE [Who may block].
"""

from __future__ import annotations

from enum import IntEnum

from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec


class Stop(IntEnum):
    """Whether to go on."""

    NO = 0
    SAVE = 1  # finish the step, save, exit
    NOW = 2  # exit without saving


class Control:
    """Main's orders to all processes, and the objective per policy, by which learners know their best weights."""

    def __init__(self, num_policies: int) -> None:
        self._shared = SharedArrays(
            "control",
            {
                "stop": TensorSpec((1,), "int64"),
                "objective": TensorSpec((num_policies,), "float64"),
            },
        )
        self._shared["objective"][:] = float("-inf")
        self._attach()

    def _attach(self) -> None:
        self._stop = self._shared["stop"]

    def __getstate__(self) -> SharedArrays:
        return self._shared

    def __setstate__(self, shared: SharedArrays) -> None:
        self._shared = shared
        self._attach()

    @property
    def stop(self) -> Stop:
        """The current order; see ``Stop``."""
        return Stop(int(self._stop[0]))

    @property
    def stopping(self) -> bool:
        """True once any stop was ordered."""
        return bool(self._stop[0])

    def order_stop(self, stop: Stop) -> None:
        """Order a stop; orders only ever get stricter."""
        self._stop[0] = max(int(self._stop[0]), int(stop))

    def tell_objective(self, policy: int, objective: float) -> None:
        """Let ``policy``'s learner know the mean of ``save_best_metric`` over the last stats_avg episodes."""
        self._shared["objective"][policy] = objective

    def objective(self, policy: int) -> float:
        """The mean of ``save_best_metric`` over the last stats_avg episodes; -inf before there are as many."""
        return float(self._shared["objective"][policy])
