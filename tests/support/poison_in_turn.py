"""A hook that spoils one policy once another has learned, which they see in FOLDER."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sfactory.learner.hooks import LearnerFacts
from tests.support.poison import a_weight_of_the_first_policy

FOLDER = "SFACTORY_TEST_POISON"


def a_weight_once_another_policy_has_learned(learner: LearnerFacts, stats: Mapping[str, float]) -> None:
    """As ``a_weight_of_the_first_policy``, not before another one has learned from a dataset."""
    learned = Path(os.environ[FOLDER]) / "another_has_learned"
    if learner.policy != 0:
        learned.touch()
    elif learned.exists():
        a_weight_of_the_first_policy(learner, stats)
