"""Room: published weights. In: the learner's flat state as bytes. Out: whole copies of it, by version.

NOTE [Weights seqlock]: two buffers; publication k is written to buffer k % 2. The writer announces k in
``writing`` before it touches the buffer and in ``written`` after. A reader copies buffer ``written`` % 2 and
is sure of its copy if by then no publication later than written + 1 has been announced (written + 1 goes to
the other buffer). Nobody waits for a lock, and a dead reader or writer blocks nobody. Python offers no
memory fence; an uncontended lock is taken and released where the order of stores and loads matters, which is a
full fence on x86-64 and orders both sides on the other processors torch runs on.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from sfactory.clock import Deadline
from sfactory.errors import SFactoryError
from sfactory.shared.gate import Gate
from sfactory.shared.memory import SharedArrays
from sfactory.spec import TensorSpec

Bytes = npt.NDArray[np.uint8]

_READ_LIMIT_S = 5.0
_WRITING, _WRITTEN = 0, 1


class TornWeights(SFactoryError):
    """No whole copy could be read in time: the writer publishes faster than a copy takes, or it died within one."""


class SharedWeights:
    """One policy's weights as ``nbytes`` bytes, with the policy version they belong to.

    ``published`` is a gate that opens with the first publication.
    """

    def __init__(self, nbytes: int, policy: int = 0) -> None:
        self._shared = SharedArrays(
            f"weights-p{policy}",
            {
                "sequence": TensorSpec((2,), "int64"),
                "version": TensorSpec((2,), "int64"),
                "data": TensorSpec((2, nbytes), "uint8"),
            },
        )
        self.published = Gate()
        self._attach()

    def _attach(self) -> None:
        self._sequence = self._shared["sequence"]
        self._version = self._shared["version"]
        self._data = self._shared["data"]
        self._fence = threading.Lock()

    def __getstate__(self) -> tuple[SharedArrays, Gate]:
        return self._shared, self.published

    def __setstate__(self, state: tuple[SharedArrays, Gate]) -> None:
        self._shared, self.published = state
        self._attach()

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return int(self._data.shape[1])

    @property
    def publications(self) -> int:
        """How often weights have been published; 0 before the first time. A reader compares it with its last."""
        return int(self._sequence[_WRITTEN])

    def publish(self, source: Bytes, version: int) -> None:
        """Make ``source`` [nbytes] uint8 the current weights, as policy version ``version``. One writer only."""
        k = int(self._sequence[_WRITTEN]) + 1
        self._sequence[_WRITING] = k
        self._barrier()
        self._data[k % 2] = source
        self._version[k % 2] = version
        self._barrier()
        self._sequence[_WRITTEN] = k
        if k == 1:
            self.published.open()

    def read_into(self, target: Bytes) -> tuple[int, int]:
        """Copy the current weights to ``target`` [nbytes] uint8; returns (publication, policy version).

        Raises TornWeights if no whole copy could be had within 5 seconds.
        """
        deadline = Deadline(_READ_LIMIT_S)
        while not deadline.passed:
            k = int(self._sequence[_WRITTEN])
            self._barrier()
            target[:] = self._data[k % 2]
            version = int(self._version[k % 2])
            self._barrier()
            if int(self._sequence[_WRITING]) <= k + 1:
                return k, version
        raise TornWeights(f"no whole copy of the weights within {_READ_LIMIT_S} s at publication {self.publications}")

    def _barrier(self) -> None:
        with self._fence:
            pass
