"""Passes orders and settings from main to its children through shared memory.

``Control`` holds stop orders, ``LearnerCommands`` orders to learners during a run, and ``SharedRewardShaping`` the
reward-shaping scheme of each policy. Main writes to no queue: a ring with a lock that died with a process could hang
main, which must end the run. Children read the flags at least every BLOCK_S. See NOTE [Who may block] and
NOTE [Saving waits for no ring].

Each policy has at most one learner order in progress: main writes the order and then its number; the learner carries it
out and then writes the answer and the number.

NOTE [Schemes]: main writes a scheme and then increments its version. An actor that sees a version other than the
applied one reads the scheme. If main is writing the scheme at that time, the version differs afterwards, and the actor
reads it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from sfactory.errors import EnvError
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec


class Stop(IntEnum):
    """The stop order."""

    NO = 0
    SAVE = 1  # finish the step, save, exit
    NOW = 2  # exit without saving


class Control:
    """Stop orders to all processes, and the objective of each policy, by which learners find their best weights."""

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
        """The current stop order."""
        return Stop(int(self._stop[0]))

    @property
    def stopping(self) -> bool:
        """True once a stop was ordered."""
        return bool(self._stop[0])

    def order_stop(self, stop: Stop) -> None:
        """Order a stop; an order can only become stricter."""
        self._stop[0] = max(int(self._stop[0]), int(stop))

    def tell_objective(self, policy: int, objective: float) -> None:
        """Send the mean of ``save_best_metric`` over the last stats_avg episodes to the learner of ``policy``."""
        self._shared["objective"][policy] = objective

    def objective(self, policy: int) -> float:
        """The mean of ``save_best_metric`` over the last stats_avg episodes; -inf before that many episodes."""
        return float(self._shared["objective"][policy])


_TEXT_BYTES = 65_536


@dataclass(frozen=True)
class LearnerCommand:
    """An order to save, to change hyperparameters, or to load the weights and optimizer of another policy.

    save: save a checkpoint first
    parent: checkpoint folder of the policy to copy, None to keep the own weights
    hyperparameters: new values by flag; {} changes nothing
    """

    save: bool = False
    parent: str | None = None
    hyperparameters: Mapping[str, float] | None = None


class LearnerCommands:
    """One order and one answer per policy."""

    def __init__(self, num_policies: int) -> None:
        rows = TensorSpec((num_policies,), "int64")
        texts = TensorSpec((num_policies, _TEXT_BYTES), "uint8")
        fields = {"given": rows, "answered": rows, "order_length": rows, "answer_length": rows}
        self._shared = SharedArrays("orders", {**fields, "order": texts, "answer": texts})

    def give(self, policy: int, order: LearnerCommand) -> None:
        """Called by main: give ``policy``'s learner an order, only after it has answered the previous one."""
        assert self.answer(policy) is not None, f"policy {policy} has an order that it has not answered"
        self._write("order", policy, json.dumps(asdict(order)))
        self._shared["given"][policy] += 1

    def answer(self, policy: int) -> str | None:
        """Called by main: why the last order failed, "" if it succeeded, None while it is in progress."""
        if self._shared["answered"][policy] != self._shared["given"][policy]:
            return None
        return self._read("answer", policy)

    def waiting(self, policy: int) -> LearnerCommand | None:
        """Called by the learner: the order to carry out now, or None."""
        if self._shared["answered"][policy] == self._shared["given"][policy]:
            return None
        return LearnerCommand(**json.loads(self._read("order", policy)))

    def answered(self, policy: int, problem: str = "") -> None:
        """Called by the learner: report that the order is done, or why it failed."""
        self._write("answer", policy, problem)
        self._shared["answered"][policy] = self._shared["given"][policy]

    def _write(self, name: str, policy: int, text: str) -> None:
        data = text.encode(errors="replace")[:_TEXT_BYTES]
        self._shared[name][policy, : len(data)] = memoryview(data)
        self._shared[f"{name}_length"][policy] = len(data)

    def _read(self, name: str, policy: int) -> str:
        length = int(self._shared[f"{name}_length"][policy])
        return self._shared[name][policy, :length].tobytes().decode(errors="replace")


_SCHEME_BYTES = 16_384
_LONGEST = -1.2345678901234567e-100


class SharedRewardShaping:
    """The reward-shaping scheme of each policy; version 0 is the env's default."""

    def __init__(self, num_policies: int) -> None:
        rows, texts = TensorSpec((num_policies,), "int64"), TensorSpec((num_policies, _SCHEME_BYTES), "uint8")
        self._shared = SharedArrays("schemes", {"begun": rows, "version": rows, "length": rows, "text": texts})

    def set(self, policy: int, scheme: Mapping[str, Any]) -> None:
        """Set the scheme of ``policy``; called by main. Raises EnvError if its text is too long."""
        # The scheme must still fit after mutations.
        if (most := len(json.dumps(_at_most(scheme)).encode())) > _SCHEME_BYTES:
            raise EnvError(
                f"the env's reward shaping is too large: {most} characters of JSON, if every number has as many digits "
                f"as one can have; {_SCHEME_BYTES} are possible"
            )
        data = json.dumps(scheme).encode()
        self._shared["begun"][policy] += 1
        self._shared["text"][policy, : len(data)] = memoryview(data)
        self._shared["length"][policy] = len(data)
        self._shared["version"][policy] += 1

    def version(self, policy: int) -> int:
        """Number of times that the scheme of ``policy`` was set."""
        return int(self._shared["version"][policy])

    def read(self, policy: int) -> Mapping[str, Any] | None:
        """The scheme of ``policy``; None while main writes it (try again later)."""
        version = self._shared["version"][policy]
        length = int(self._shared["length"][policy])
        data = self._shared["text"][policy, :length].tobytes()
        if self._shared["begun"][policy] != version:
            return None
        scheme: Mapping[str, Any] = json.loads(data)
        return scheme


def _at_most(tree: object) -> object:
    """Copy ``tree`` with the longest possible number in place of every number."""
    return {name: _at_most(part) for name, part in tree.items()} if isinstance(tree, Mapping) else _LONGEST
