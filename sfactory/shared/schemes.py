"""Room: by which reward shaping each policy is trained. In: main's writes alone. Out: the newest scheme of a policy.

NOTE [Schemes]: main writes a scheme and then counts its version up; an actor that sees another version than it applied
reads the scheme. It may read one that is being written: then the version is another one afterwards, and it looks again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sfactory.errors import EnvError
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec

_TEXT_BYTES = 16_384
_LONGEST = -1.2345678901234567e-100


class Schemes:
    """One for each policy; version 0 is the env's own."""

    def __init__(self, num_policies: int) -> None:
        rows, texts = TensorSpec((num_policies,), "int64"), TensorSpec((num_policies, _TEXT_BYTES), "uint8")
        self._shared = SharedArrays("schemes", {"begun": rows, "version": rows, "length": rows, "text": texts})

    def set(self, policy: int, scheme: Mapping[str, Any]) -> None:
        """By main. Raises EnvError for a scheme of more text than there is room for."""
        # What fits now is to fit when it was mutated.
        if (most := len(json.dumps(_at_most(scheme)).encode())) > _TEXT_BYTES:
            raise EnvError(
                f"the env's reward shaping is too large: {most} characters of JSON, if every number has as many digits "
                f"as one can have; {_TEXT_BYTES} are possible"
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
