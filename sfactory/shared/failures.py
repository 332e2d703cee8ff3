"""Room: how a child says why it died. In: one text per process. Out: that text, after the death.

Plain shared memory and not a queue: it needs no lock, and survives the writer being killed a moment later.
"""

from __future__ import annotations

from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec

_TEXT_BYTES = 16_384


class FailureBoard:
    """One text per process, in the order of ``names``."""

    def __init__(self, names: list[str]) -> None:
        self._names = list(names)
        self._shared = SharedArrays(
            "failures",
            {
                "length": TensorSpec((len(names),), "int64"),
                "text": TensorSpec((len(names), _TEXT_BYTES), "uint8"),
            },
        )

    def write(self, name: str, text: str) -> None:
        """Leave ``text`` (its last 16 KiB) as the reason of ``name``'s death."""
        row = self._names.index(name)
        data = text.encode(errors="replace")[-_TEXT_BYTES:]
        self._shared["text"][row, : len(data)] = memoryview(data)
        self._shared["length"][row] = len(data)

    def read(self, name: str) -> str:
        """What ``name`` left, or ''."""
        row = self._names.index(name)
        length = int(self._shared["length"][row])
        return self._shared["text"][row, :length].tobytes().decode(errors="replace")
