"""A hook that keeps a learner busy."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from sfactory.learner.hooks import LearnerFacts

NAPPING = "the learner naps"


def a_long_nap(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """Longer than any stop waits for a last checkpoint."""
    print(NAPPING, file=sys.stderr, flush=True)
    time.sleep(30)
