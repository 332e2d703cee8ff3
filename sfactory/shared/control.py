"""Room: what main asks of its children. In: main's writes alone. Out: flags that children read between waits.

Main writes no queue: a ring whose lock died with some process could otherwise hang the one process that
has to end the run. Children look here at least every BLOCK_S. See NOTE [Who may block].

Room: what main wants of a learner in mid-run. In: an order. Out: the same order, and whether it was carried out.

Plain shared memory and not a queue, see NOTE [Saving waits for no ring]. One order to a policy is under way at a
time: main writes the order and then its number, the learner carries it out and then writes the answer and the number.

Room: by which reward shaping each policy is trained. In: main's writes alone. Out: the newest scheme of a policy.

NOTE [Schemes]: main writes a scheme and then counts its version up; an actor that sees another version than it applied
reads the scheme. It may read one that is being written: then the version is another one afterwards, and it looks again.
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


_TEXT_BYTES = 65_536


@dataclass(frozen=True)
class LearnerCommand:
    """Save; or learn on with other values of flags; or do that with the weights and the optimiser of another policy.

    parent: the folder of the checkpoints of the policy to take over from, None for one's own weights.
    hyperparameters: by flag; {} leaves all as they are. save: save a checkpoint, before anything else.
    """

    save: bool = False
    parent: str | None = None
    hyperparameters: Mapping[str, float] | None = None


class LearnerCommands:
    """One place for each policy."""

    def __init__(self, num_policies: int) -> None:
        rows = TensorSpec((num_policies,), "int64")
        texts = TensorSpec((num_policies, _TEXT_BYTES), "uint8")
        fields = {"given": rows, "answered": rows, "order_length": rows, "answer_length": rows}
        self._shared = SharedArrays("orders", {**fields, "order": texts, "answer": texts})

    def give(self, policy: int, order: LearnerCommand) -> None:
        """By main: have the learner of ``policy`` do something; only once it has answered the order before."""
        assert self.answer(policy) is not None, f"policy {policy} has an order that it has not answered"
        self._write("order", policy, json.dumps(asdict(order)))
        self._shared["given"][policy] += 1

    def answer(self, policy: int) -> str | None:
        """By main: why the last order could not be carried out, "" if it was; None as long as it is under way."""
        if self._shared["answered"][policy] != self._shared["given"][policy]:
            return None
        return self._read("answer", policy)

    def waiting(self, policy: int) -> LearnerCommand | None:
        """By the learner: the order that is to be carried out now, if there is one."""
        if self._shared["answered"][policy] == self._shared["given"][policy]:
            return None
        return LearnerCommand(**json.loads(self._read("order", policy)))

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


_SCHEME_BYTES = 16_384
_LONGEST = -1.2345678901234567e-100


class SharedRewardShaping:
    """One for each policy; version 0 is the env's own."""

    def __init__(self, num_policies: int) -> None:
        rows, texts = TensorSpec((num_policies,), "int64"), TensorSpec((num_policies, _SCHEME_BYTES), "uint8")
        self._shared = SharedArrays("schemes", {"begun": rows, "version": rows, "length": rows, "text": texts})

    def set(self, policy: int, scheme: Mapping[str, Any]) -> None:
        """By main. Raises EnvError for a scheme of more text than there is room for."""
        # What fits now is to fit when it was mutated.
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
        """How often the scheme of ``policy`` was set."""
        return int(self._shared["version"][policy])

    def read(self, policy: int) -> Mapping[str, Any] | None:
        """The scheme of ``policy``; None while it is being written: look again later."""
        version = self._shared["version"][policy]
        length = int(self._shared["length"][policy])
        data = self._shared["text"][policy, :length].tobytes()
        if self._shared["begun"][policy] != version:
            return None
        scheme: Mapping[str, Any] = json.loads(data)
        return scheme


def _at_most(tree: object) -> object:
    """The same with every number as long as one can be."""
    return {name: _at_most(part) for name, part in tree.items()} if isinstance(tree, Mapping) else _LONGEST
