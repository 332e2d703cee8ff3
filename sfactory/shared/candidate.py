"""Room: the weights that are being evaluated. In: published weights. Out: one version of them, for all evaluators."""

from __future__ import annotations

import numpy as np

from sfactory.shared.memory import SharedArrays
from sfactory.shared.weights import SharedWeights
from sfactory.spec import TensorSpec


class Candidate:
    """The policy that evaluators play, and who is done with it.

    The first evaluator presents it, and the next one only when all are done with this one: so all episodes of an
    evaluation are of one policy version, however slow an env is.
    """

    def __init__(self, nbytes: int, evaluators: int, policy: int = 0) -> None:
        """``nbytes``: as of the SharedWeights that candidates are taken from."""
        self.weights = SharedWeights(nbytes, policy)
        self._shared = SharedArrays(
            "candidate", {"done": TensorSpec((evaluators,), "int64"), "version": TensorSpec((1,), "int64")}
        )

    @property
    def number(self) -> int:
        """How many candidates there have been; 0 before the first."""
        return self.weights.publications

    @property
    def version(self) -> int:
        """The policy version of the present one."""
        return int(self._shared["version"][0])

    @property
    def done(self) -> bool:
        """True if every evaluator is done with the present candidate, and before there is one."""
        return bool((self._shared["done"] == self.number).all())

    def present(self, published: SharedWeights) -> None:
        """Make the newest of ``published`` the candidate. For one process, once everybody is ``done``."""
        assert self.done, f"candidate {self.number} is still being played"
        weights = np.empty(published.nbytes, np.uint8)
        _, version = published.read_into(weights)
        self._shared["version"][0] = version
        self.weights.publish(weights, version)

    def mark_done(self, evaluator: int, number: int) -> None:
        """``evaluator`` is done with candidate ``number``."""
        self._shared["done"][evaluator] = number
