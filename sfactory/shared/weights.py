"""Publishes policy weights from the learner to all readers, without locks between processes.

NOTE [Weights seqlock]: there are two buffers; publication k is written to buffer k % 2. The writer stores k in
``writing`` before it writes the buffer and in ``written`` afterwards. A reader copies buffer ``written`` % 2. The copy
is valid if no publication later than written + 1 has started by then (written + 1 goes to the other buffer). No process
waits for a lock, and a dead reader or writer blocks no other process. Python has no memory fence; where the order of
stores and loads matters, an uncontended lock is taken and released. This is a full fence on x86-64, and it orders both
sides on the other processors that torch supports.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfactory.clock import Deadline
from sfactory.errors import SFactoryError
from sfactory.shared.memory import SharedArrays, SharedEvent
from sfactory.spec import TensorSpec

Bytes = npt.NDArray[np.uint8]

_READ_LIMIT_S, _LEAST_TRIES = 5.0, 10
_WRITING, _WRITTEN = 0, 1
COUNTS = ("env_steps", "agent_steps", "run_env_steps", "train_seconds")  # what weights have been trained for


class TornWeights(SFactoryError):
    """No complete copy in time: the writer publishes faster than a copy takes, or it died during a write."""


class SharedWeights:
    """The weights of one policy, of ``nbytes`` bytes at most, with their policy version.

    ``published`` is an event that opens with the first publication.
    """

    def __init__(self, nbytes: int, policy: int = 0) -> None:
        pair = TensorSpec((2,), "int64")
        fields = {"sequence": pair, "version": pair, "counts": TensorSpec((2, len(COUNTS)), "float64")}
        fields |= {"data": TensorSpec((2, nbytes), "uint8")}
        self.__setstate__((SharedArrays(f"weights-p{policy}", fields), SharedEvent()))

    def __getstate__(self) -> tuple[SharedArrays, SharedEvent]:
        return self._shared, self.published

    def __setstate__(self, state: tuple[SharedArrays, SharedEvent]) -> None:
        self._shared, self.published = state
        self._sequence, self._version = self._shared["sequence"], self._shared["version"]
        self._counts, self._data = self._shared["counts"], self._shared["data"]
        self._fence = threading.Lock()

    @property
    def nbytes(self) -> int:
        return int(self._data.shape[1])

    @property
    def publications(self) -> int:
        """Number of publications so far. Readers compare it with their last one to find new weights."""
        return int(self._sequence[_WRITTEN])

    @property
    def version(self) -> int:
        return int(self._version[self.publications % 2])

    def publish(self, source: Bytes, version: int, counts: Sequence[float] = (0.0,) * len(COUNTS)) -> None:
        """Make ``source`` uint8, of nbytes at most, the current weights, as policy version ``version``. One writer.

        counts: COUNTS of these weights, where they are read.
        """
        k = int(self._sequence[_WRITTEN]) + 1
        self._sequence[_WRITING] = k
        self._barrier()
        self._data[k % 2, : len(source)] = source
        self._version[k % 2] = version
        self._counts[k % 2] = counts
        self._barrier()
        self._sequence[_WRITTEN] = k
        if k == 1:
            self.published.open()

    def read_into(self, target: Bytes, counts: npt.NDArray[np.float64] | None = None) -> tuple[int, int]:
        """Copy the current weights to ``target`` uint8, of their size; returns (publication, policy version).

        counts: gets their COUNTS. Raises TornWeights if no complete copy succeeds within 5 seconds and 10 tries.
        """
        deadline, tries = Deadline(_READ_LIMIT_S), 0
        # A process may be stopped for longer than that within a copy, which is then no whole one.
        while tries < _LEAST_TRIES or not deadline.passed:
            tries += 1
            k = int(self._sequence[_WRITTEN])
            self._barrier()
            target[:] = self._data[k % 2, : len(target)]
            version = int(self._version[k % 2])
            if counts is not None:
                counts[:] = self._counts[k % 2]
            self._barrier()
            if int(self._sequence[_WRITING]) <= k + 1:
                return k, version
        raise TornWeights(f"no whole copy of the weights within {_READ_LIMIT_S} s at publication {self.publications}")

    def _barrier(self) -> None:
        with self._fence:
            pass


class EvalWeights:
    """The candidate weights that evaluators play, which evaluators have finished with them, and their mean return.

    A new candidate is presented only after all evaluators have finished the current one. So all episodes of an
    evaluation use one policy version, even if an env is slow. Where evaluations decide which policy is the best, the
    learner must have judged the candidate, too: it saves the very weights that were played.

    others: by policy from 1, the weights of policies that play agents of their own beside the candidate's.
    """

    def __init__(self, nbytes: int, evaluators: int, policies: int = 1) -> None:
        """``nbytes``: that of the SharedWeights that candidates are copied from."""
        self.weights = SharedWeights(nbytes)
        self.others = [SharedWeights(nbytes, policy) for policy in range(1, policies)]
        one = TensorSpec((1,), "int64")
        fields = {"done": TensorSpec((evaluators,), "int64"), "mean": TensorSpec((1,), "float64")}
        self._shared = SharedArrays("candidate", {**fields, "played": one, "judged": one})

    @property
    def number(self) -> int:
        """Number of candidates so far; 0 before the first."""
        return self.weights.publications

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def done(self) -> bool:
        """True if all evaluators have finished the current candidate, or if there is none yet."""
        return bool((self._shared["done"] == self.number).all())

    def done_by(self, evaluator: int) -> int:
        """Number of the last candidate that ``evaluator`` has finished."""
        return int(self._shared["done"][evaluator])

    def present(self, published: Sequence[SharedWeights]) -> None:
        """Make the newest weights of the first policy of ``published`` the candidate; called by one process, only when
        ``done``.
        """
        assert self.done, f"candidate {self.number} is still being played"
        block, counts = np.empty(self.weights.nbytes, np.uint8), np.empty(len(COUNTS))
        for own, theirs in zip(self.others, published[1:], strict=False):
            _, version = theirs.read_into(block)
            own.publish(block, version)
        _, version = published[0].read_into(block, counts)
        self.weights.publish(block, version, counts.tolist())  # last, as it is what evaluators look at

    def mark_done(self, evaluator: int, number: int) -> None:
        self._shared["done"][evaluator] = number

    def tell_mean(self, number: int, mean: float) -> None:
        """Called by main: the mean return of candidate ``number``, for the learner."""
        self._shared["mean"][0] = mean
        self._shared["played"][0] = number

    @property
    def mean(self) -> float | None:
        """The mean return of the candidate, None before main knows it."""
        return float(self._shared["mean"][0]) if self.number and self._shared["played"][0] == self.number else None

    @property
    def judged(self) -> bool:
        """True if the learner needs the candidate no more, or if there is none yet."""
        return bool(self._shared["judged"][0] == self.number)

    def mark_judged(self) -> None:
        """Called by the learner, once it has seen ``mean``."""
        self._shared["judged"][0] = self.number

    def read(self) -> tuple[Bytes, int, dict[str, float]]:
        """The candidate: weights, policy version, and their COUNTS."""
        block, counts = np.empty(self.weights.nbytes, np.uint8), np.empty(len(COUNTS))
        _, version = self.weights.read_into(block, counts)
        return block, version, dict(zip(COUNTS, counts.tolist(), strict=True))
