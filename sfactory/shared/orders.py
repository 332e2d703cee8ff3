"""Room: what main wants of a learner in mid-run. In: an order. Out: the same order, and whether it was carried out.

Plain shared memory and not a queue, see NOTE [Who saves waits on no ring]. One order to a policy is under way at a
time: main writes the order and then its number, the learner carries it out and then writes the answer and the number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec

_TEXT_BYTES = 65_536


@dataclass(frozen=True)
class Order:
    """Save; or learn on with other values of flags; or do that with the weights and the optimiser of another policy.

    parent: the folder of the checkpoints of the policy to take over from, None for one's own weights.
    hyperparameters: by flag; {} leaves all as they are. save: save a checkpoint, before anything else.
    """

    save: bool = False
    parent: str | None = None
    hyperparameters: Mapping[str, float] | None = None


class Orders:
    """One place for each policy."""

    def __init__(self, num_policies: int) -> None:
        rows = TensorSpec((num_policies,), "int64")
        texts = TensorSpec((num_policies, _TEXT_BYTES), "uint8")
        fields = {"given": rows, "answered": rows, "order_length": rows, "answer_length": rows}
        self._shared = SharedArrays("orders", {**fields, "order": texts, "answer": texts})

    def give(self, policy: int, order: Order) -> None:
        """By main: have the learner of ``policy`` do something; only once it has answered the order before."""
        assert self.answer(policy) is not None, f"policy {policy} has an order that it has not answered"
        self._write("order", policy, json.dumps(asdict(order)))
        self._shared["given"][policy] += 1

    def answer(self, policy: int) -> str | None:
        """By main: why the last order could not be carried out, "" if it was; None as long as it is under way."""
        if self._shared["answered"][policy] != self._shared["given"][policy]:
            return None
        return self._read("answer", policy)

    def waiting(self, policy: int) -> Order | None:
        """By the learner: the order that is to be carried out now, if there is one."""
        if self._shared["answered"][policy] == self._shared["given"][policy]:
            return None
        return Order(**json.loads(self._read("order", policy)))

    def answered(self, policy: int, problem: str = "") -> None:
        """By the learner: the order was carried out, or could not be, and why."""
        self._write("answer", policy, problem)
        self._shared["answered"][policy] = self._shared["given"][policy]

    def _write(self, name: str, policy: int, text: str) -> None:
        data = text.encode(errors="replace")[:_TEXT_BYTES]
        self._shared[name][policy, : len(data)] = memoryview(data)
        self._shared[f"{name}_length"][policy] = len(data)

    def _read(self, name: str, policy: int) -> str:
        length = int(self._shared[f"{name}_length"][policy])
        return self._shared[name][policy, :length].tobytes().decode(errors="replace")
